"""Schemas beyond what llguidance knows: said in other words, or checked when an answer is whole."""

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Structure, Thinking, ToolUse
from lmx.protocol.states import StructureKind, ToolChoice
from lmx.worker.constraints import compiler as module
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.constraints.probe import Verdict, verdict
from lmx.worker.engine.values import ConstraintMaker, ConstraintSource
from lmx.worker.formats import closed_objects
from tests.support.models.tiny_models import make_tokenizer
from tests.support.references.grammar_walk import allowed_tokens, walk
from tests.support.references.schema_cases import HOSTILE, SCHEMAS, VALUES
from tests.support.rigs.budgets import examples

TOKENIZER = make_tokenizer()
EOS = frozenset({256, 258})
COMPILER = ConstraintCompiler(TOKENIZER, 300, EOS, None, None)


def compiled(schema: Any) -> ConstraintMaker:
    structure = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "response_format")
    maker = COMPILER.compile(ConstraintSource(structure, None, Thinking(), False))
    assert maker is not None
    return maker


def spells(maker: ConstraintMaker, text: str) -> bool:
    one = maker()
    for token in TOKENIZER.encode(text, add_special_tokens=False):
        if token not in allowed_tokens(one):  # type: ignore[operator]
            return False
        one.accept(token)
    return set(allowed_tokens(one)) >= EOS  # type: ignore[arg-type]


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


COLOUR = {"enum": ["red", "green", "blue"]}
INTEGER = {"type": "integer"}
TEXT = {"type": "string"}
ABC = closed(a=INTEGER, b=INTEGER, c=INTEGER)

# Schema, answers that it allows, answers that it does not.
ENFORCED: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "exactly one of two": (
        {**ABC, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a": 1}', '{"b": 1, "c": 2}'],
        ["{}", '{"a": 1, "b": 2}'],
    ),
    "one of kinds": (
        {"oneOf": [{**closed(kind={"const": k}, n=INTEGER), "required": ["kind"]} for k in "xy"]},
        ['{"kind": "x"}', '{"kind": "y", "n": 1}'],
        ["{}", '{"kind": "z"}'],
    ),
    "one of ranges": (
        {"type": "integer", "oneOf": [{"maximum": 5}, {"minimum": 4}]},
        ["3", "6"],
        ["4", "5"],
    ),
    "no forbidden property": (
        {**ABC, "not": {"required": ["b"]}}, ['{"a": 1}', "{}"], ['{"b": 1}'],
    ),
    "no forbidden pair": (
        {**ABC, "not": {"required": ["a", "b"]}},
        ['{"a": 1}', '{"b": 1}'],
        ['{"a": 1, "b": 1}'],
    ),
    "no forbidden value": (
        {"type": "object", "properties": {"a": {**COLOUR, "not": {"const": "red"}}},
         "required": ["a"], "additionalProperties": False},
        ['{"a": "blue"}'],
        ['{"a": "red"}'],
    ),
    "no forbidden text": (
        {"type": "string", "not": {"enum": ["no", "none", ""]}},
        ['"n"', '"yes"', '"nonets"', '"non"'],
        ['"no"', '"none"', '""'],
    ),
    "no forbidden number": (
        {"type": "integer", "not": {"enum": [0, 5]}}, ["-1", "3", "6"], ["0", "5"],
    ),
    "no forbidden type": ({"not": {"type": ["object", "string"]}}, ["1", "[]"], ["{}", '"a"']),
    "if a value then more": (
        {**closed(kind=COLOUR, shade=INTEGER), "required": ["kind"],
         "if": {"properties": {"kind": {"const": "red"}}},
         "then": {"required": ["shade"]}, "else": {"properties": {"shade": False}}},
        ['{"kind": "red", "shade": 1}', '{"kind": "blue"}'],
        ['{"kind": "red"}', '{"kind": "blue", "shade": 1}'],
    ),
    "if a text then more": (
        {**closed(kind=TEXT, shade=INTEGER), "required": ["kind"],
         "if": {"properties": {"kind": {"const": "red"}}}, "then": {"required": ["shade"]}},
        ['{"kind": "red", "shade": 1}', '{"kind": "rad"}'],
        ['{"kind": "red"}'],
    ),
    "dependencies": (
        {**ABC, "dependencies": {"a": ["b"], "b": {"required": ["c"]}}},
        ["{}", '{"c": 1}', '{"b": 1, "c": 1}', '{"a": 1, "b": 1, "c": 1}'],
        ['{"a": 1}', '{"a": 1, "b": 1}', '{"b": 1}'],
    ),
    "both or neither": (
        {**ABC, "dependentRequired": {"a": ["b"], "b": ["a"]}},
        ["{}", '{"a": 1, "b": 1}'],
        ['{"a": 1}', '{"b": 1}'],
    ),
    "two of three": (
        {**ABC, "minProperties": 2}, ['{"a": 1, "c": 1}'], ["{}", '{"b": 1}'],
    ),
    "two of three at most": (
        {**ABC, "maxProperties": 2}, ["{}", '{"b": 1, "c": 1}'], ['{"a": 1, "b": 1, "c": 1}'],
    ),
    "names of a list": (
        {"type": "object", "propertyNames": COLOUR, "additionalProperties": INTEGER},
        ["{}", '{"red": 1, "blue": 2}'],
        ['{"black": 1}', '{"red": "a"}'],
    ),
    "names of a form": (
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, ['{"ab": []}'], ['{"A": 1}'],
    ),
    "names of a length": (
        {"type": "object", "propertyNames": {"maxLength": 2}}, ['{"ab": 1}'], ['{"abc": 1}'],
    ),
    "each once": (
        {"type": "array", "items": COLOUR, "uniqueItems": True, "minItems": 1},
        ['["red"]', '["blue", "red", "green"]'],
        ["[]", '["red", "red"]'],
    ),
    "nothing but what is named": (
        {"allOf": [{"properties": {"a": INTEGER}}], "type": "object",
         "properties": {"b": INTEGER}, "unevaluatedProperties": False},
        ['{"a": 2, "b": 1}'],
        ['{"c": 1}'],
    ),
    "looking ahead": (
        {"type": "string", "pattern": "^(?=.{2,3}$)[a-z]+$"}, ['"ab"'], ['"a"', '"abcd"', '"A1"'],
    ),
    "a tuple of draft 7": (
        {"type": "array", "items": [INTEGER, TEXT], "additionalItems": False, "minItems": 2},
        ['[1, "a"]'],
        ["[1]", '[1, "a", 2]'],
    ),
    "ASCII digits": ({"type": "string", "pattern": r"^\d$"}, ['"5"'], ['"\u09ea"']),
}  # fmt: skip

# Schema, an answer that fits its grammar and its check, one that fits its grammar alone, and what
# is checked.
CHECKED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "distinct texts": (
        {"properties": {"a": {"type": "array", "items": TEXT, "uniqueItems": True}}},
        '{"a": ["b", "c"]}', '{"a": ["b", "b"]}', "`uniqueItems` at #/properties/a",
    ),
    "contains": (
        {"type": "array", "items": INTEGER, "contains": {"const": 1}}, "[1]", "[2]",
        "`contains` at #",
    ),
    "no such text": (
        {"type": "string", "not": {"pattern": "^a"}}, '"b"', '"a"', "`not` at #",
    ),
    "looking for what is not there": (
        {"type": "string", "pattern": "^(?!a)"}, '"b"', '"a"', "`pattern` at #",
    ),
    "some of an open object": (
        {"type": "object", "properties": {"a": INTEGER}, "minProperties": 2},
        '{"a": 1, "b": 2}', '{"a": 1}', "`minProperties` at #",
    ),
    "a condition without an opposite": (
        {**closed(a=TEXT, b=INTEGER), "if": {"properties": {"a": {"pattern": "^x"}}},
         "then": {"required": ["b"]}},
        '{"a": "x", "b": 1}', '{"a": "x"}', "`if` at #",
    ),
    "exactly one, where no grammar looks": (
        {"type": "array", "unevaluatedItems": {"oneOf": [INTEGER, {"minimum": 5}]},
         "dependentSchemas": {"a": False}},
        "[1, 5.5]", "[5]", "`unevaluatedItems` at #",
    ),
    "exactly one, after a condition without an opposite": (
        {"type": "object", "properties": {"a": TEXT, "b": True}, "additionalProperties": False,
         "if": {"properties": {"a": {"pattern": "^x"}}},
         "then": {"properties": {"b": {"oneOf": [INTEGER, {"minimum": 5}]}}}},
        '{"a": "x", "b": 1}', '{"a": "x", "b": 5}', "`if` at #",
    ),
    "patterns that meet": (
        {"type": "object", "patternProperties": {"^a": INTEGER, "b$": {"minimum": 5}}},
        '{"ab": 7}', '{"ab": 3}', "`patternProperties` at #",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENFORCED)
def test_it_is_enforced_as_it_is_written(name: str) -> None:
    schema, good, bad = ENFORCED[name]
    maker = compiled(schema)
    assert (maker.check, maker.remarks) == (None, ())
    assert [text for text in good if not spells(maker, text)] == []
    assert [text for text in bad if spells(maker, text)] == []
    for seed in range(2):
        drawn = TOKENIZER.decode(walk(maker(), TOKENIZER, EOS, seed))
        if "additionalItems" not in schema:
            Draft202012Validator(schema).validate(json.loads(drawn))


@pytest.mark.parametrize("name", CHECKED)
def test_what_no_grammar_enforces_is_checked(name: str) -> None:
    schema, good, bad, said = CHECKED[name]
    maker = compiled(schema)
    assert maker.check is not None
    assert maker.remarks == ()
    assert spells(maker, good)
    assert spells(maker, bad)
    assert maker.check(good) is None
    assert said in str(maker.check(bad))


def test_alternatives_that_are_not_disjoint_are_taken_as_any_of_them() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"oneOf": [{"type": "number"}, INTEGER, {"pattern": "^x"}]}},
        "required": ["a"],
    }
    maker = compiled(schema)
    assert maker.remarks == (
        "`oneOf` at #/properties/a is taken as `anyOf`: "
        "an answer may fit more than one of its schemas",
    )
    assert maker.check is None
    assert all(spells(maker, text) for text in ('{"a": 1}', '{"a": 0.5}', '{"a": "x"}'))


def test_arguments_that_no_grammar_enforces_are_checked_too() -> None:
    colours = {"type": "array", "items": TEXT, "uniqueItems": True}
    parameters = {"type": "object", "properties": {"a": colours}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    use = ToolUse((tool,), ToolChoice.REQUIRED)
    maker = COMPILER.compile(ConstraintSource(None, use, Thinking(), False))
    assert maker is not None
    assert maker.check is None
    check = maker.call_checks["f"]
    assert check('{"a": ["b"]}') is None
    assert "`uniqueItems` at #/properties/a" in str(check('{"a": ["b", "b"]}'))


# What the grammar does not look at is checked exactly, `oneOf` too.
UNSEEN = {
    "exclusiveMaximum": 0,
    "uniqueItems": False,
    "unevaluatedItems": {
        "const": None,
        "allOf": [True],
        "oneOf": [True, {"const": None}],
        "additionalProperties": False,
    },
    "dependentSchemas": {"a": False},
}


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, VALUES)
@example(UNSEEN, [None])
def test_no_answer_that_passes_is_invalid(schema: Any, value: Any) -> None:
    if not isinstance(schema, dict):
        return
    try:
        maker = compiled(schema)
    except RequestError:
        return
    text = json.dumps(value, separators=(", ", ": "))
    valid = Draft202012Validator(schema).is_valid(value)
    passes = spells(maker, text) and (maker.check is None or maker.check(text) is None)
    if not maker.remarks:
        assert valid or not passes
    if valid:
        assert maker.check is None or maker.check(text) is None


# Words of llguidance, of its JSON reader and of Python.
FOREIGN = re.compile(
    r"json-schema:|line \d+ column|Expected|stack level|intersection|sibling|llguid|digits|Error"
)


@settings(max_examples=examples(800), deadline=None, suppress_health_check=list(HealthCheck))
@given(HOSTILE, st.booleans())
@example({"pattern": ""}, False)
@example({"patternProperties": {"": {"type": "string"}}}, False)
@example({"minLength": 1e400}, False)
def test_whatever_is_sent_as_a_schema_is_enforced_or_refused(schema: Any, as_tool: bool) -> None:
    structure, use = None, None
    if as_tool:
        function = {"name": "f", "parameters": schema, "strict": True}
        tool = {"type": "function", "function": function}
        use = ToolUse((tool,), ToolChoice.REQUIRED)
    else:
        structure = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "response_format")
    try:
        maker = COMPILER.compile(ConstraintSource(structure, use, Thinking(), False))
    except RequestError as error:
        assert error.code is ErrorCode.INVALID_VALUE
        said = error.message.replace(json.dumps(schema), "")
        assert not FOREIGN.search(said), said
        return
    assert maker is not None
    assert allowed_tokens(maker()) is not None


def test_the_forms_of_one_request_have_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each of these takes a tenth of a second, and is no fault by itself.
    properties = {f"p{n}": {"type": "string", "pattern": f"^a{{{4000 + n}}}$"} for n in range(60)}
    judged: list[str] = []

    def counted(grammars: str, *arguments: Any, **options: Any) -> Any:
        judged.append(grammars)
        return verdict(grammars, *arguments, **options)

    monkeypatch.setattr(module, "verdict", counted)
    monkeypatch.setattr(module, "_MAX_S", 0.5)
    with pytest.raises(RequestError, match="too complex"):
        compiled({"type": "object", "properties": properties})
    assert 0 < len(judged) < len(properties)
    first = len(judged)
    # What is known by then need not be found out again.
    with pytest.raises(RequestError, match="too complex"):
        compiled({"type": "object", "properties": properties})
    assert len(set(judged)) == len(judged) > first


@pytest.mark.parametrize(
    ("size", "max_s", "said", "most"),
    [(20_000, 1e9, "characters together", 4), (10, -1.0, "too complex", 1)],
)
def test_no_tool_is_read_after_there_were_too_many(
    monkeypatch: pytest.MonkeyPatch, size: int, max_s: float, said: str, most: int
) -> None:
    looked_at: list[Any] = []

    def counted(schema: Any) -> Any:
        looked_at.append(schema)
        return closed_objects.closed(schema)

    monkeypatch.setattr(module, "closed", counted)
    # The clock of a verdict plays no part here.
    monkeypatch.setattr(module, "verdict", lambda *_, **__: Verdict(None))
    monkeypatch.setattr(module, "_MAX_S", max_s)
    functions = [
        {"name": f"f{n}", "parameters": closed(**{"x" * size: INTEGER}), "strict": n == 9}
        for n in range(10)
    ]
    tools = tuple({"type": "function", "function": function} for function in functions)
    with pytest.raises(RequestError, match=said):
        COMPILER.compile(ConstraintSource(None, ToolUse(tools, ToolChoice.AUTO), Thinking(), False))
    assert len(looked_at) <= most


def test_what_llguidance_refuses_is_refused_in_words_with_its_place() -> None:
    circle = {"allOf": [{"$ref": "#/$defs/b"}, {"properties": {"a": {"$ref": "#/$defs/a"}}}]}
    schema = {
        "properties": {"x": {"items": {"$ref": "#/$defs/a"}}},
        "$defs": {"a": circle, "b": {"properties": {"a": {"$ref": "#/$defs/b"}}}},
    }
    with pytest.raises(RequestError) as raised:
        compiled(schema)
    assert "combined" in raised.value.message
    assert "at #/$defs/a" in raised.value.message


PIECES = [{"properties": {f"p{n}": {"const": n}}, "required": [f"p{n}"]} for n in range(60)]


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": PIECES},
        {"type": "object", "oneOf": [{"required": [f"p{n}"]} for n in range(500)]},
        {"type": "object", "dependentRequired": {f"p{n}": [f"q{n}"] for n in range(500)}},
        {"type": "object", "allOf": [{"not": one} for one in PIECES]},
        {"type": "object", "properties": {f"p{n}": {} for n in range(90)}, "minProperties": 40,
         "additionalProperties": False},
        {"type": "object", "propertyNames": {"enum": [f"p{n}" for n in range(2000)]}},
        {"$defs": {f"{n}": {"oneOf": [{"$ref": f"#/$defs/{n + 1}"}] * 3} for n in range(50)}
         | {"50": {"not": {"const": "a"}}}, "$ref": "#/$defs/0"},
        {"$defs": {f"{n}": {"not": {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 3}}
                   for n in range(50)} | {"50": {"const": "a"}}, "$ref": "#/$defs/0"},
        {"allOf": [{"if": {"properties": {"k": {"const": n}}}, "then": {"required": [f"p{n}"]}}
                   for n in range(100)], "type": "object"},
    ],
)  # fmt: skip
def test_hostile_schemas_are_taken_or_refused_in_bounded_time(schema: dict[str, Any]) -> None:
    try:
        maker = compiled(schema)
    except RequestError as error:
        assert "response_format" in error.message
    else:
        assert allowed_tokens(maker()) is not None
