"""Calls that must be made: in every family's form, and read back by the output parser."""

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import AddedToken

from lmx.protocol.errors import RequestError
from lmx.protocol.messages.data import Structure, Thinking, ToolUse
from lmx.protocol.states import DeltaKind, StructureKind, ToolChoice
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.values import ConstraintSource
from lmx.worker.formats.families.table import marker_ids
from lmx.worker.formats.parser import OutputParser
from tests.support.models.tiny_models import make_tokenizer
from tests.support.references.grammar_walk import allowed_tokens, feed
from tests.support.rigs.matrices import combinations
from tests.support.rigs.tool_families import (
    CASES,
    ENDS,
    FAMILIES,
    NEXT,
    PARAMETERS,
    PHRASES,
    SINGLE,
    STRING,
    TOOLS,
    Family,
    check,
    closed,
    parameters,
    required,
    the_family,
)

marked = pytest.mark.parametrize(("family", "as_text"), parameters(CASES))


@pytest.mark.parametrize(
    ("family", "names"),
    combinations(list(FAMILIES), [[name] for name in PARAMETERS] + [["weather", "typed"]]),
)
def test_whatever_is_drawn_is_a_call_with_valid_arguments(family: str, names: list[str]) -> None:
    it = the_family(family)
    for seed in range(3):
        use = required(names)
        calls = it.calls(it.draw(use, seed), use.tools)
        assert calls
        check(calls)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_in_the_family_s_own_form(family: str) -> None:
    it = the_family(family)
    feed(it.constraint(required(["weather", "typed"])), it.tokens(it.begins))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_special_tokens_of_calls_stay_text(family: str) -> None:
    it = the_family(family)
    special = it.tokenizer.convert_tokens_to_ids(FAMILIES[family][1])
    assert marker_ids(it.tokenizer, it.parser, None) >= set(special)


@marked
def test_without_parallel_there_is_one_call(family: str, as_text: bool) -> None:
    it = the_family(family, as_text)
    use = required(["weather", "typed"], parallel=False)
    for seed in range(4):
        assert len(it.calls(it.draw(use, seed, ENDS if as_text else PHRASES), use.tools)) == 1


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - SINGLE))
def test_with_parallel_there_may_be_more(family: str) -> None:
    it = the_family(family)
    use = required(["typed", "nothing"])
    more = NEXT.get(family, "\n<tool_call>")
    drawn = (it.draw(use, seed, [*PHRASES, more, more, more]) for seed in range(60))
    assert any(len(it.calls(text, use.tools)) > 1 for text in drawn)


@pytest.mark.parametrize("named", [True, False])
@marked
def test_a_named_call_ends_the_answer_and_others_may_end_as_freely_as_any(
    family: str, as_text: bool, named: bool
) -> None:
    it = the_family(family, as_text)
    one = it.constraint(required(["weather", "nothing"], "nothing" if named else None))
    feed(one, it.tokens(it.draw(required(["nothing"], parallel=False), 0)))
    choices = set(allowed_tokens(one))  # type: ignore[arg-type]
    if named:
        assert choices == it.eos
        return
    # Whatever it writes: another call goes on, anything else comes to nothing and ends it.
    assert choices >= set(range(256)) | it.eos
    other = one.fork()
    for _ in range(2):
        if set(allowed_tokens(one)) != it.eos:  # type: ignore[arg-type]
            feed(one, it.tokens("\n"))
    assert set(allowed_tokens(one)) == it.eos  # type: ignore[arg-type]
    feed(other, it.tokens("I"))
    assert set(allowed_tokens(other)) == set(allowed_tokens(other.fork())) == it.eos  # type: ignore[arg-type]
    other.accept(min(it.eos))
    # With ignore_eos a row goes on.
    assert set(allowed_tokens(other)) == it.eos  # type: ignore[arg-type]


def test_what_an_answer_ends_with_after_its_calls_is_no_content() -> None:
    it = Family("json_tools")
    call = it.draw(required(["nothing"], parallel=False), 0)
    ways: tuple[dict[str, Any], ...] = ({"calls_only": True}, {"either": True})
    for reported in ways:
        parser = OutputParser(None, False, it.parser, [TOOLS["nothing"]], **reported)
        parts = [*parser.add(call), *parser.add("\n"), *parser.add("Well"), *parser.finish()]
        assert {part.kind for part in parts} == {DeltaKind.TOOL_CALL}


@pytest.mark.parametrize("family", ["json_tools", "qwen3_coder", "gemma4", "pythonic"])
def test_no_argument_is_invented(family: str) -> None:
    it = the_family(family)
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}}
    parameters = {"type": "object", "properties": {"a": STRING, "o": inner}, "required": ["o"]}
    tool = {"type": "function", "function": {"name": "open", "parameters": parameters}}
    for seed in range(6):
        use = ToolUse((tool,), ToolChoice.REQUIRED, "open")
        ((_, arguments),) = it.calls(it.draw(use, seed), use.tools)
        assert set(arguments) <= {"a", "o"}
        assert set(arguments["o"]) <= {"n"}


def test_tools_that_are_not_allowed_are_not_called() -> None:
    it = Family("json_tools")
    use = replace(required(list(PARAMETERS)), allowed=("nothing", "weather"))
    names = {name for seed in range(8) for name, _ in it.calls(it.draw(use, seed), use.tools)}
    assert names == {"nothing", "weather"}
    assert [tool["function"]["name"] for tool in use.known] == ["weather", "nothing"]


def test_a_named_function_is_the_one_that_is_called() -> None:
    it = Family("json_tools")
    use = required(list(PARAMETERS), "listed")
    for seed in range(3):
        assert {name for name, _ in it.calls(it.draw(use, seed), use.tools)} == {"listed"}


def test_a_text_argument_keeps_what_looks_like_tags() -> None:
    it = Family("qwen3_coder")
    text = (
        "<tool_call>\n<function=weather>\n<parameter=city>\nA <b>\nC</b> <function=x>\n"
        "</parameter>\n</function>\n</tool_call>"
    )
    feed(it.constraint(required(["weather"])), it.tokens(text))
    assert it.calls(text, [TOOLS["weather"]]) == [
        ("weather", {"city": "A <b>\nC</b> <function=x>"})
    ]


@pytest.mark.parametrize("special", [[], ["｜DSML｜"]])
def test_a_text_argument_keeps_what_looks_like_an_end(special: list[str]) -> None:
    it = Family("deepseek_v32")
    it.tokenizer = make_tokenizer()
    it.tokenizer.add_tokens([AddedToken(one, special=True) for one in special])
    it.compiler = ConstraintCompiler(it.tokenizer, len(it.tokenizer), it.eos, None, "deepseek_v32")
    ends = "".join(f"</｜DSML｜{one}>\n" for one in ("parameter", "invoke", "function_calls"))
    text = f"{it.begins}A </b> and </{ends}".removesuffix("\n")
    feed(it.constraint(required(["weather"])), it.tokens(text))
    assert it.calls(text, [TOOLS["weather"]]) == [("weather", {"city": "A </b> and </"})]


def test_a_tag_inside_json_is_not_for_the_grammar_to_write() -> None:
    it = Family("qwen3_coder")
    begun = '<tool_call>\n<function=listed>\n<parameter=l>\n[{"q": "a < b <i> <'
    one = it.constraint(required(["listed"]))
    feed(one, it.tokens(begun))
    assert it.tokens("/")[0] not in allowed_tokens(one)  # type: ignore[operator]


def test_tools_that_may_be_called_leave_the_answer_its_structure() -> None:
    it = Family("json_tools")
    use = ToolUse((TOOLS["nothing"],), ToolChoice.AUTO)
    structure = Structure(StructureKind.REGEX, "(yes|no)", "p")
    call = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
    for text in ("yes", call):
        one = it.constraint(use, structure)
        feed(one, it.tokens(text))
        assert it.eos <= set(allowed_tokens(one))  # type: ignore[arg-type]
    none = ToolUse((TOOLS["nothing"],), ToolChoice.NONE)
    assert it.tokens(call)[0] not in allowed_tokens(it.constraint(none, structure))  # type: ignore[operator]


def test_a_structure_is_in_the_final_channel_of_gpt_oss() -> None:
    it = Family("harmony")
    structure = Structure(StructureKind.JSON_SCHEMA, '{"type": "boolean"}', "p")
    maker = it.compiler.compile(ConstraintSource(structure, None, Thinking(), False))
    assert maker
    one = maker()
    feed(one, it.tokens("<|channel|>final<|message|>true"))
    assert set(allowed_tokens(one)) == it.eos  # type: ignore[arg-type]


@pytest.mark.parametrize("parser", ["harmony", "atem", "json_tools"])
@pytest.mark.parametrize("kind", [StructureKind.JSON_SCHEMA, StructureKind.CHOICE])
def test_a_structure_is_the_whole_text_where_no_header_and_no_thought_can_come_before_it(
    parser: str, kind: StructureKind
) -> None:
    it = Family(parser)
    form = '{"const": "yes"}' if kind is StructureKind.JSON_SCHEMA else '["\\"yes\\""]'
    source = ConstraintSource(Structure(kind, form, "p"), None, Thinking(), False, only_form=True)
    maker = it.compiler.compile(source)
    assert maker
    one = maker()
    quoted = set(it.tokens('"')) | set(it.tokens('"y')) | set(it.tokens('"yes"'))
    assert set(allowed_tokens(one)) <= quoted  # type: ignore[arg-type]
    feed(one, it.tokens('"yes"'))
    assert set(allowed_tokens(one)) == it.eos  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "header", ["", " to=user<|message|>", "<|start|>assistant to=user<|message|>"]
)
def test_a_structure_is_in_a_message_of_muse_to_the_user(header: str) -> None:
    it = Family("atem")
    structure = Structure(StructureKind.JSON_SCHEMA, '{"type": "boolean"}', "p")
    maker = it.compiler.compile(ConstraintSource(structure, None, Thinking(), False))
    assert maker
    one = maker()
    feed(one, it.tokens(f"{header}true"))
    assert set(allowed_tokens(one)) == it.eos  # type: ignore[arg-type]
    # A tool is no recipient of an answer.
    with pytest.raises(AssertionError, match="is not next"):
        feed(maker(), it.tokens(" to=weather"))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array"}, "arguments are an object"),
        ({"properties": {"a": {"not": {"format": "uri"}}}}, "`not` .* at #/properties/a"),
        ({"type": "object", "properties": {f"p{n}": {} for n in range(9000)}}, "more than"),
    ],
)
def test_arguments_that_cannot_be_enforced_are_an_error(schema: Any, said: str) -> None:
    bad = {"type": "function", "function": {"name": "bad", "parameters": schema}}
    it = Family("json_tools")
    with pytest.raises(RequestError, match=said) as raised:
        it.constraint(ToolUse((TOOLS["weather"], bad), ToolChoice.REQUIRED))
    assert raised.value.param == "tools[1].function.parameters"
    # Not where another is the one to call, nor where none must be.
    it.constraint(ToolUse((TOOLS["weather"], bad), ToolChoice.REQUIRED, "weather"))
    it.constraint(ToolUse((bad,)), Structure(StructureKind.REGEX, "a", "p"))


def test_arguments_are_enforced_in_other_words_where_that_is_needed() -> None:
    schema = {
        "type": "object",
        "properties": {
            "map": {"type": "object", "propertyNames": {"maxLength": 3}},
            "one": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        },
        "required": ["map", "one"],
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    it = Family("json_tools")
    use = ToolUse((tool,), ToolChoice.REQUIRED, "f")
    for seed in range(4):
        ((_, arguments),) = it.calls(it.draw(use, seed), use.tools)
        assert set(arguments) == {"map", "one"}
        assert all(len(name) <= 3 for name in arguments["map"])
    maker = it.compiler.compile(ConstraintSource(None, use, Thinking(), False))
    assert maker
    assert [one for one in maker.remarks if "oneOf" in one and one.startswith("tools[0].")]


def test_many_large_tools_are_an_error_together() -> None:
    schema = closed({f"p{n}": {"type": "integer"} for n in range(800)}, [])
    functions = [{"name": f"f{n}", "parameters": schema} for n in range(3)]
    tools = [{"type": "function", "function": one} for one in functions]
    with pytest.raises(RequestError, match="together"):
        Family("json_tools").constraint(ToolUse(tuple(tools), ToolChoice.REQUIRED))


def test_an_unknown_function_is_an_error() -> None:
    with pytest.raises(RequestError, match="gone") as raised:
        Family("json_tools").constraint(required(["weather"], "gone"))
    assert raised.value.param == "tool_choice"
