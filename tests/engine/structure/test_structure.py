"""Answers held to a form: whatever is drawn of what is allowed, the whole is valid."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from transformers import AutoTokenizer

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.data import Structure, Thinking, ToolUse
from lmx.protocol.states import StructureKind
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.values import Constraint, ConstraintSource
from tests.support.models.tiny_models import make_tokenizer
from tests.support.references.grammar_walk import allowed_tokens, feed, walk
from tests.support.references.json_schemas import SCHEMAS
from tests.support.rigs.budgets import examples

TOKENIZER = make_tokenizer()
EOS = frozenset({256, 258})
# Wider than the tokenizer, as with models whose embeddings are padded.
VOCABULARY = 300
COMPILER = ConstraintCompiler(TOKENIZER, VOCABULARY, EOS, None, None)
PARAM = "response_format"
SEEDS = range(4)

INTEGER = Structure(StructureKind.JSON_SCHEMA, '{"type": "integer", "maximum": 9}', PARAM)


def constraint(
    kind: StructureKind, text: str, compiler: ConstraintCompiler = COMPILER
) -> Constraint:
    structure = Structure(kind, text, PARAM)
    maker = compiler.compile(ConstraintSource(structure, None, Thinking(), False))
    assert maker is not None
    return maker()


def tokens(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def holds(kind: StructureKind, form: str, text: str) -> bool:
    """Return whether ``text`` is a whole answer under the form."""
    return spells(constraint(kind, form), text)


def spells(one: Constraint, text: str) -> bool:
    """Return whether a constraint allows ``text``, and its end after it."""
    for token in tokens(text):
        if token not in allowed_tokens(one):  # type: ignore[operator]
            return False
        one.accept(token)
    return set(allowed_tokens(one)) >= EOS  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_drawn_satisfies_the_schema(name: str) -> None:
    schema = SCHEMAS[name]
    for seed in SEEDS:
        drawn = walk(
            constraint(StructureKind.JSON_SCHEMA, json.dumps(schema)), TOKENIZER, EOS, seed
        )
        checker = Draft202012Validator.FORMAT_CHECKER
        Draft202012Validator(schema, format_checker=checker).validate(
            json.loads(TOKENIZER.decode(drawn))
        )


@pytest.mark.parametrize("name", ["nested", "any of", "formats", "unicode", "recursion"])
def test_tokens_of_many_characters_satisfy_the_schema_too(name: str, smollm2_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    eos = frozenset({tokenizer.eos_token_id})
    compiler = ConstraintCompiler(tokenizer, 49152, eos, None, None)
    schema = SCHEMAS[name]
    for seed in SEEDS:
        one = constraint(StructureKind.JSON_SCHEMA, json.dumps(schema), compiler)
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(
            json.loads(tokenizer.decode(walk(one, tokenizer, eos, seed)))
        )


@pytest.mark.parametrize("form", [None, '{"type": "object"}'])
def test_a_json_object_is_one(form: str | None) -> None:
    kind = StructureKind.JSON_SCHEMA if form else StructureKind.JSON_OBJECT
    for seed in SEEDS:
        drawn = walk(constraint(kind, form or ""), TOKENIZER, EOS, seed)
        assert isinstance(json.loads(TOKENIZER.decode(drawn)), dict)


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z]{2,4}-[0-9]+",
        "(yes|no)( maybe)?",
        'a/b\\\\c"d',
        "\\p{Lu}\\w{0,3}",
        "été?|夏",
        "^anchored$",
        "cents\\$",
        "two\nlines",
    ],
)
def test_whatever_is_drawn_matches_the_regex(pattern: str) -> None:
    expected = pattern.replace("\\p{Lu}", "[^\\W\\d_a-z]")
    for seed in SEEDS:
        drawn = walk(constraint(StructureKind.REGEX, pattern), TOKENIZER, EOS, seed)
        assert re.fullmatch(expected, TOKENIZER.decode(drawn))


@pytest.mark.parametrize(
    "choices",
    [
        ["yes"],
        ["a", "ab", "abc"],
        ['"quoted"', "a\nb", "é😀", "\\d"],
        [str(n) for n in range(5000)],
    ],
)
def test_a_choice_is_one_of_them(choices: list[str]) -> None:
    for seed in SEEDS:
        one = constraint(StructureKind.CHOICE, json.dumps(choices))
        assert TOKENIZER.decode(walk(one, TOKENIZER, EOS, seed)) in choices
    assert all(holds(StructureKind.CHOICE, json.dumps(choices), one) for one in choices[:5])


SUM_LARK = 'start: NUMBER ("+" NUMBER)+\nNUMBER: /[0-9]{1,3}/'
SUM_GBNF = 'root ::= number ("+" number)+\nnumber ::= [0-9] [0-9]? [0-9]?'


@pytest.mark.parametrize("grammar", [SUM_LARK, SUM_GBNF])
def test_whatever_is_drawn_is_of_the_grammar(grammar: str) -> None:
    for seed in SEEDS:
        drawn = walk(constraint(StructureKind.GRAMMAR, grammar), TOKENIZER, EOS, seed)
        assert re.fullmatch(r"\d{1,3}(\+\d{1,3})+", TOKENIZER.decode(drawn))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a": 1, "b": [1, 2]}', True),
        ('{"a":1,"b":[1,2]}', True),
        ('{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}', True),
        ('{"a":  1, "b": []}', False),
        ('{\n\n"a": 1, "b": []}', False),
        (' {"a": 1, "b": []}', False),
        ('{"a": 1, "b": []}\n', False),
    ],
)
def test_white_space_is_what_models_write_and_bounded(text: str, fits: bool) -> None:
    schema = {
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["a", "b"],
        "type": "object",
    }
    assert holds(StructureKind.JSON_SCHEMA, json.dumps(schema), text) is fits


@pytest.mark.parametrize(
    ("whitespace", "fits"),
    [("", ['{"a":1}']), (" ?", ['{"a":1}', '{"a": 1}']), (" {2}", ['{"a":1}', '{  "a":  1  }'])],
)
def test_white_space_is_what_the_request_says(whitespace: str, fits: list[str]) -> None:
    form = '{"properties": {"a": {"const": 1}}, "required": ["a"], "type": "object"}'
    texts = ['{"a":1}', '{"a": 1}', '{  "a":  1  }', '{\n"a":1}']
    for text in texts:
        structure = Structure(StructureKind.JSON_SCHEMA, form, PARAM, whitespace)
        maker = COMPILER.compile(ConstraintSource(structure, None, Thinking(), False))
        assert maker is not None
        assert spells(maker(), text) is (text in fits)


def test_white_space_that_is_no_expression_is_refused() -> None:
    structure = Structure(StructureKind.JSON_OBJECT, "", PARAM, "(")
    with pytest.raises(RequestError, match=r"can't be held to response_format"):
        COMPILER.compile(ConstraintSource(structure, None, Thinking(), False))


def test_a_schema_does_not_set_its_own_strictness() -> None:
    schema = {"type": "string", "x-guidance": {"json_allowed_escapes": ""}}
    assert holds(StructureKind.JSON_SCHEMA, json.dumps(schema), '"a\\nb"')


def test_the_end_is_any_eos_and_nothing_else() -> None:
    one = constraint(StructureKind.REGEX, "ab?")
    feed(one, tokens("a"))
    assert set(allowed_tokens(one)) == {*tokens("b"), *EOS}  # type: ignore[arg-type]
    feed(one, tokens("b"))
    assert set(allowed_tokens(one)) == EOS  # type: ignore[arg-type]
    feed(one, [258])
    # With ignore_eos a row goes on.
    feed(one, [256])


@pytest.mark.parametrize("width", [VOCABULARY, 257, 259])
def test_the_mask_is_as_wide_as_the_logits(width: int) -> None:
    compiler = ConstraintCompiler(TOKENIZER, width, frozenset({256}), None, None)
    mask: Any = constraint(StructureKind.REGEX, "(.|\n)*", compiler).mask()
    assert mask.dtype == "uint32"
    assert mask.shape == ((width + 31) // 32,)
    one = constraint(StructureKind.REGEX, "(.|\n)*", compiler)
    assert max(allowed_tokens(one)) == 256  # type: ignore[arg-type]


def test_a_token_that_is_not_allowed_raises() -> None:
    one = constraint(StructureKind.REGEX, "ab")
    with pytest.raises(LmxError) as raised:
        one.accept(tokens("b")[0])
    assert raised.value.code is ErrorCode.ENGINE_ERROR
    # It has failed for good: nothing unconstrained comes out of it later.
    with pytest.raises(LmxError):
        one.mask()


def test_a_fork_goes_its_own_way() -> None:
    one = constraint(StructureKind.REGEX, "a(b|c)d")
    feed(one, tokens("a"))
    other = one.fork()
    feed(one, tokens("bd"))
    feed(other, tokens("c"))
    assert set(allowed_tokens(other)) == set(tokens("d"))  # type: ignore[arg-type]


def test_rows_of_one_request_do_not_share_their_state() -> None:
    structure = Structure(StructureKind.REGEX, "ab", PARAM)
    maker = COMPILER.compile(ConstraintSource(structure, None, Thinking(), False))
    assert maker
    first, second = maker(), maker()
    feed(first, tokens("a"))
    feed(second, tokens("ab"))
    feed(first, tokens("b"))


SCHEMA = StructureKind.JSON_SCHEMA
DEEP = '{"items":' * 200 + "{}" + "}" * 200


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (SCHEMA, "{", "no JSON"),
        (SCHEMA, "[]", "is a JSON object"),
        (SCHEMA, '{"type": "strong"}', "strong"),
        (SCHEMA, '{"properties": {"a": {"minLength": -1}}}', "`minLength` .* #/properties/a/min"),
        (SCHEMA, '{"items": {"not": {"format": "uri"}}}', "`not` .* at #/items"),
        (SCHEMA, '{"type": "string", "pattern": "(?=a"}', "is no expression"),
        (SCHEMA, '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', "itself"),
        (SCHEMA, '{"$ref": "#/$defs/gone"}', "gone"),
        (SCHEMA, '{"$ref": "https://example.org/schema"}', "example.org"),
        (SCHEMA, '{"type": "integer", "minimum": 2, "maximum": 1}', "nothing satisfies it, at #"),
        (SCHEMA, '{"enum": []}', "empty"),
        (SCHEMA, DEEP, "recursion|deep"),
        (SCHEMA, '{"items":' * 20_000 + "{}" + "}" * 20_000, "deep"),
        (StructureKind.REGEX, "(a", "unclosed group"),
        (StructureKind.REGEX, "(a)\\1", "backreferences"),
        (StructureKind.REGEX, "(" * 2000 + "a" + ")" * 2000, "nest"),
        (StructureKind.CHOICE, "[]", "nothing to choose"),
        (StructureKind.CHOICE, '["a", 1]', "array of strings"),
        (StructureKind.CHOICE, "yes", "no JSON"),
        (StructureKind.GRAMMAR, "start: unknown", "unknown"),
        (StructureKind.GRAMMAR, 'root ::= "a" | other', "other"),
        (StructureKind.GRAMMAR, "what is this", "neither Lark nor GBNF"),
        (StructureKind.GRAMMAR, "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "Lark"),
        (StructureKind.GRAMMAR, "start: <nothing_special>", "special"),
    ],
)
def test_what_cannot_be_enforced_is_an_error_before_anything_runs(
    kind: StructureKind, text: str, said: str
) -> None:
    with pytest.raises(RequestError, match=said) as raised:
        constraint(kind, text)
    assert raised.value.code is ErrorCode.INVALID_VALUE
    assert raised.value.param == PARAM
    assert len(raised.value.message) < 500


def cycle(rules: int) -> dict[str, Any]:
    """Every rule may be every other: what costs a parser most for its size."""
    others = [{"$ref": f"#/$defs/{n}"} for n in range(rules)]
    return {
        "$defs": {f"{n}": {"anyOf": [*others, {"const": n}]} for n in range(rules)},
        "$ref": "#/$defs/0",
    }


PATTERNS = {"type": "string", "allOf": [{"pattern": f"a{n}b"} for n in range(40)]}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SCHEMA, json.dumps(cycle(120))),
        (SCHEMA, json.dumps({"properties": {f"p{n}": {} for n in range(20_000)}})),
        (StructureKind.REGEX, "a" * 300_000),
        (
            StructureKind.GRAMMAR,
            "start: a0\n"
            + "\n".join(f"a{n}: " + " | ".join(f"a{m}" for m in range(90)) for n in range(90)),
        ),
    ],
)
def test_what_would_take_too_long_is_refused_for_its_size(kind: StructureKind, text: str) -> None:
    # Each of them takes from seconds to for ever where the bound for it is missing.
    with pytest.raises(RequestError, match="more than"):
        constraint(kind, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SCHEMA, json.dumps({"enum": [f"value {n * 7919}" for n in range(2500)]})),
        (SCHEMA, json.dumps({"type": "array", "items": {}, "minItems": 1_000_000})),
        (SCHEMA, json.dumps({"type": "string", "minLength": 1_000_000})),
        (StructureKind.REGEX, "(a{1,1000}){1,1000}"),
        (StructureKind.REGEX, ".*a.{30}"),
        (SCHEMA, json.dumps({"properties": {f"p{n}": {"pattern": f"a{n}"} for n in range(99)}})),
        (SCHEMA, json.dumps({"type": "number", "multipleOf": 0.01})),
        (StructureKind.GRAMMAR, "start: " + " ".join(['"&"'] * 50)),
    ],
)
def test_what_is_only_large_to_the_eye_is_taken(kind: StructureKind, text: str) -> None:
    assert len(allowed_tokens(constraint(kind, text)))  # type: ignore[arg-type]


def test_a_format_that_nobody_enforces_is_a_remark() -> None:
    schema = {
        "type": "object",
        "properties": {"format": {"type": "string", "format": "password"}},
        "required": ["format"],
        "additionalProperties": False,
    }
    one = constraint(StructureKind.JSON_SCHEMA, json.dumps(schema))
    feed(one, tokens('{"format":"secret"}'))


def test_descriptions_do_not_count_for_the_size_of_a_schema() -> None:
    schema = {
        "type": "object",
        "description": "long " * 50_000,
        # A property of that name is none.
        "properties": {"description": {"const": "kept"}},
        "required": ["description"],
        "additionalProperties": False,
    }
    one = constraint(StructureKind.JSON_SCHEMA, json.dumps(schema))
    feed(one, tokens('{"description":"kept"}'))


def test_nothing_asked_is_no_constraint() -> None:
    assert COMPILER.compile(ConstraintSource(None, None, Thinking(), False)) is None
    tools = ToolUse(({"type": "function", "function": {"name": "f"}},))
    assert COMPILER.compile(ConstraintSource(None, tools, Thinking(), False)) is None
    budget = Thinking(budget_tokens=5)
    assert COMPILER.compile(ConstraintSource(None, None, budget, False)) is None


WORDS_IN_LENGTH = {
    "type": "string",
    "maxLength": 5000,
    "pattern": "^(?:\\S+\\s+){0,99}\\S+$",
}
LATER = {
    "type": "object",
    "properties": {f"p{n}": {"type": "integer"} for n in range(40)} | {"x": WORDS_IN_LENGTH},
    "required": [f"p{n}" for n in range(40)],
}
# Tokens of whole words, and no bytes for some of the control characters.
HOSTILE: list[tuple[StructureKind, str, str, str]] = [
    (StructureKind.JSON_SCHEMA, json.dumps(WORDS_IN_LENGTH), PARAM, "too complex"),
    (StructureKind.JSON_SCHEMA, json.dumps(LATER), f"{PARAM}.properties.x", "too complex"),
    (StructureKind.CHOICE, '["ok", "a\\u0004b"]', f"{PARAM}[1]", "no tokens for"),
    (StructureKind.CHOICE, json.dumps(["x" * 20_000]), PARAM, "16384 characters"),
    (StructureKind.REGEX, "x\x04y", PARAM, "no tokens for"),
    (StructureKind.REGEX, "x\\x04y", PARAM, "no tokens for"),
    (StructureKind.REGEX, "[\x04\x06]", PARAM, "nothing that this model can write"),
    (StructureKind.REGEX, "a{100000}", PARAM, "too complex"),
    (StructureKind.REGEX, "(a{1000}){1000}", PARAM, "too complex"),
    (StructureKind.REGEX, "\ud83d", PARAM, "surrogate"),
    (StructureKind.GRAMMAR, "start: <nope>", PARAM, "<nope>"),
]


@pytest.fixture(scope="module")
def words(smollm2_dir: Path) -> tuple[Any, ConstraintCompiler]:
    """A tokenizer of words, and its compiler."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    eos = frozenset({tokenizer.eos_token_id})
    return tokenizer, ConstraintCompiler(tokenizer, 49152, eos, None, None)


@pytest.mark.parametrize(("kind", "text", "param", "said"), HOSTILE)
def test_what_cannot_be_enforced_is_refused_before_anything_runs(
    kind: StructureKind, text: str, param: str, said: str, words: tuple[Any, ConstraintCompiler]
) -> None:
    for _ in range(2):  # The second time it is known.
        with pytest.raises(RequestError, match=said) as raised:
            constraint(kind, text, words[1])
        assert raised.value.code is ErrorCode.INVALID_VALUE
        assert str(raised.value.param).startswith(param)


@pytest.mark.parametrize("options", ["", '%llguidance {"no_forcing": false}\n'])
def test_a_grammar_without_an_end_does_not_hang(
    options: str, words: tuple[Any, ConstraintCompiler]
) -> None:
    one = constraint(StructureKind.GRAMMAR, f"{options}start: /y+/ /y+/", words[1])
    for _ in range(5):
        one.accept(int(allowed_tokens(one)[0]))  # type: ignore[index]


def test_a_dead_end_in_an_answer_is_an_error_of_the_form(
    words: tuple[Any, ConstraintCompiler],
) -> None:
    """Only where the beginnings that were tried out did not come by it."""
    _, compiler = words
    long = "".join(f'"w{n} " ' for n in range(60))
    one = constraint(StructureKind.GRAMMAR, f"start: {long} /\\x04/", compiler)
    with pytest.raises(LmxError, match="any further") as raised:
        for _ in range(600):
            choices = allowed_tokens(one)
            assert choices is not None
            one.accept(int(choices[0]))
    assert raised.value.code is ErrorCode.STRUCTURE_NOT_ENFORCEABLE


_PIECES = ["a", "b", ".", "\\S", "\\w+", "[^x]", "\x04", "(?:ab|c)", "é", "\\d"]
_COUNTS = ["", "*", "+", "?", "{0,3}", "{2,90}", "{1,3000}"]


@st.composite
def regexes(draw: st.DrawFn, depth: int = 2) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        nested = depth > 0 and draw(st.booleans())
        part = f"(?:{draw(regexes(depth - 1))})" if nested else draw(st.sampled_from(_PIECES))
        parts.append(part + draw(st.sampled_from(_COUNTS)))
    return draw(st.sampled_from(["", "|"])).join(parts)


_RULES = ["a", "b", "T", "U", '%json {"type": "integer"}', '"x"', "/y+/", '"\\u0004"', ""]


@st.composite
def grammars(draw: st.DrawFn) -> str:
    def body(names: list[str]) -> str:
        atoms = draw(st.lists(st.sampled_from(names), max_size=4))
        counted = [f"({one}){draw(st.sampled_from(['', '*', '?', '+']))}" for one in atoms if one]
        return draw(st.sampled_from([" ", " | "])).join(counted)

    rules = [f"{name}: {body(_RULES)}" for name in ("start", "a", "b")]
    return "\n".join([*rules, f"T: /{draw(regexes())}/", f"U: /{draw(regexes())}/"])


def hold_or_refuse(words: tuple[Any, ConstraintCompiler], data: st.DataObject) -> None:
    """Nothing but a refusal before the answer, or an answer as far as it goes."""
    tokenizer, compiler = words
    eos = frozenset({tokenizer.eos_token_id})
    kind = data.draw(
        st.sampled_from([StructureKind.REGEX, StructureKind.JSON_SCHEMA, StructureKind.GRAMMAR])
    )
    text = data.draw(grammars() if kind is StructureKind.GRAMMAR else regexes())
    if kind is StructureKind.JSON_SCHEMA:
        most = data.draw(st.sampled_from([10, 4000]))
        text = json.dumps({"type": "string", "pattern": text, "maxLength": most})
    try:
        one = constraint(kind, text, compiler)
    except RequestError:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    for _ in range(40):
        try:
            choices = allowed_tokens(one)
            assert choices is not None and len(choices)
            token = int(rng.choice(choices))
            one.accept(token)
        except LmxError as error:
            # What the beginnings that were tried out did not come by.
            assert error.code is ErrorCode.STRUCTURE_NOT_ENFORCEABLE
            return
        if token in eos:
            break


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.data())
def test_hostile_forms_are_refused_or_can_be_answered(
    words: tuple[Any, ConstraintCompiler], data: st.DataObject
) -> None:
    hold_or_refuse(words, data)


@pytest.mark.soak
@pytest.mark.timeout(900)
@settings(max_examples=examples(1000), deadline=None)
@given(st.data())
def test_many_hostile_forms(words: tuple[Any, ConstraintCompiler], data: st.DataObject) -> None:
    hold_or_refuse(words, data)
