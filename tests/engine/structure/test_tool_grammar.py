"""Calls that must be made: in every family's form, and read back by the output parser."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from grammar_walk import allowed_tokens, feed, walk
from jsonschema import Draft202012Validator
from tiny_models import make_tokenizer
from tokenizers import AddedToken

from lmx.protocol.errors import RequestError
from lmx.protocol.messages.data import Structure, Thinking, ToolUse
from lmx.protocol.states import DeltaKind, StructureKind, ToolChoice
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine import Constraint, ConstraintSource
from lmx.worker.formats.families.table import marker_ids
from lmx.worker.formats.parser import OutputParser

_STRING = {"type": "string"}
_NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["v"],
    "additionalProperties": False,
}


def closed(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


PARAMETERS: dict[str, dict[str, Any] | None] = {
    "weather": closed(
        {"city": _STRING, "days": {"type": "integer", "minimum": 1, "maximum": 14}}, ["city"]
    ),
    "typed": closed(
        {
            "a": {"type": "number"},
            "b": {"type": "boolean"},
            "c": {"type": "string", "enum": ["x y", "z", "ü"]},
            "d": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
            "e": closed({"k": _STRING, "n": {"type": "integer"}}, ["n"]),
            "f": {"type": "string", "maxLength": 6},
        },
        ["b", "c", "d"],
    ),
    "nothing": None,
    # What few forms can say but JSON.
    "hard": closed(
        {
            "when": {"type": "string", "format": "date"},
            "who": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}]},
            "hex": {"type": "string", "pattern": "^[a-f]{2,3}$"},
        },
        ["when", "who"],
    ),
    "linked": {"$defs": {"node": _NODE}, **closed({"n": {"$ref": "#/$defs/node"}}, ["n"])},
    "listed": closed({"l": {"type": "array", "items": closed({"q": _STRING}, ["q"])}}, ["l"]),
    "free": {"type": "object"},
}
TOOLS: dict[str, dict[str, Any]] = {
    name: {
        "type": "function",
        "function": {"name": name} | ({} if schema is None else {"parameters": schema}),
    }
    for name, schema in PARAMETERS.items()
}

# The special tokens of each family, and what its calls begin with.
FAMILIES: dict[str, tuple[str | None, list[str], str]] = {
    "unknown": (None, [], '<tool_call>\n{"name": "'),
    "json_tools": ("json_tools", ["<tool_call>", "</tool_call>"], '<tool_call>\n{"name": "'),
    "mistral": ("mistral", ["[TOOL_CALLS]", "[ARGS]"], "[TOOL_CALLS]weather[ARGS]{"),
    "mistral v3": ("mistral", ["[TOOL_CALLS]"], '[TOOL_CALLS] [{"name": "'),
    "kimi_k2": (
        "kimi_k2",
        [
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ],
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:",
    ),
    "cohere2_moe": (
        "cohere2_moe",
        ["<|START_ACTION|>", "<|END_ACTION|>"],
        '<|START_ACTION|>[\n    {"tool_call_id": "',
    ),
    "pythonic": (
        "pythonic",
        ["<|tool_call_start|>", "<|tool_call_end|>"],
        '<|tool_call_start|>[weather(city="',
    ),
    "glm47": (
        "glm47",
        [
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ],
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>",
    ),
    "longcat": (
        "longcat",
        ["<longcat_tool_call>", "</longcat_tool_call>"],
        "<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n",
    ),
    "qwen3_coder": (
        "qwen3_coder",
        ["<tool_call>", "</tool_call>"],
        "<tool_call>\n<function=weather>\n<parameter=city>\n",
    ),
    "minimax_m2": (
        "minimax_m2",
        ["<minimax:tool_call>", "</minimax:tool_call>"],
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">',
    ),
    "gemma4": (
        "gemma4",
        ["<|tool_call>", "<tool_call|>", '<|"|>'],
        '<|tool_call>call:weather{city:<|"|>',
    ),
    "harmony": (
        "harmony",
        ["<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>", "<|constrain|>"],
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{",
    ),
    "minimax_m3": ("minimax_m3", [], '<tool_call>\n{"name": "'),
    "apertus": (
        "apertus",
        ["<|tools_prefix|>", "<|tools_suffix|>"],
        '<|tools_prefix|>[{"weather": {',
    ),
    "deepseek_v3": (
        "deepseek_v3",
        [
            *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
            *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
        ],
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{",
    ),
    "deepseek_v31": (
        "deepseek_v31",
        [
            *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
            *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
        ],
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{",
    ),
    "deepseek_v32": (
        "deepseek_v32",
        ["｜DSML｜"],
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">',
    ),
    "functiongemma": (
        "functiongemma",
        ["<start_function_call>", "<end_function_call>", "<escape>"],
        "<start_function_call>call:weather{city:<escape>",
    ),
    "glm4": ("glm4", [], "weather\n{"),
    "granite": ("granite", ["<|tool_call|>"], '<|tool_call|>[{"name": "weather", "arguments": {'),
    "hunyuan": (
        "hunyuan",
        ["<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>"],
        "<tool_calls>\n<tool_call>weather\n```json\n{",
    ),
    "internlm": (
        "internlm",
        ["<|action_start|>", "<|plugin|>", "<|action_end|>"],
        '<|action_start|><|plugin|>\n{"name": "weather", "parameters": {',
    ),
    "jamba": ("jamba", [], '<tool_calls>[{"name": "weather", "arguments": {'),
    "llama4": (
        "llama4",
        ["<|python_start|>", "<|python_end|>"],
        '<|python_start|>[weather(city="',
    ),
    "nemotron": ("nemotron", [], '<TOOLCALL>[{"name": "weather", "arguments": {'),
    "olmo3": ("olmo3", [], '<function_calls>\nweather(city="'),
    "phi4": (
        "phi4",
        ["<|tool_call|>", "<|/tool_call|>"],
        '<|tool_call|>[{"name": "weather", "arguments": {',
    ),
    "seed_oss": (
        "seed_oss",
        ["<seed:tool_call>", "</seed:tool_call>"],
        "<seed:tool_call>\n<function=weather>\n<parameter=city>",
    ),
    "step3": (
        "step3",
        [
            *("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>"),
            *("<｜tool_call_end｜>", "<｜tool_sep｜>"),
        ],
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="weather"><steptml:parameter name="city">',
    ),
}
# What ends a text where no token does.
PHRASES = [
    *("\n</parameter>\n", "</parameter>\n", "</longcat_arg_value>\n"),
    *("</｜DSML｜parameter>\n", "</steptml:parameter>"),
]
# How another call begins in the forms in which nothing encloses them: the special token, else
# what all of them begin with.
NEXT = {
    "longcat": "<longcat_tool_call>",
    "mistral": "[TOOL_CALLS]",
    "gemma4": "<|tool_call>",
    "functiongemma": "<start_function_call>",
    "internlm": "\n<|action_start|>",
    "seed_oss": "\n<seed:tool_call>",
}
# Whose answers have one call.
SINGLE = {"harmony", "glm4"}


class Family:
    """A tokenizer with a family's special tokens, and the compiler for it."""

    def __init__(self, name: str) -> None:
        self.parser, special, self.begins = FAMILIES[name]
        self.tokenizer = make_tokenizer()
        self.tokenizer.add_tokens([AddedToken(one, special=True) for one in special])
        ends = ["<|end|>", *(one for one in ("<|call|>", "<|return|>") if one in special)]
        self.eos = frozenset(self.tokenizer.convert_tokens_to_ids(ends))
        self.compiler = ConstraintCompiler(
            self.tokenizer, len(self.tokenizer), self.eos, None, self.parser
        )

    def constraint(self, use: ToolUse, structure: Structure | None = None) -> Constraint:
        maker = self.compiler.compile(ConstraintSource(structure, use, Thinking(), False))
        assert maker is not None
        return maker()

    def tokens(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def draw(self, use: ToolUse, seed: int, phrases: Sequence[str] = PHRASES) -> str:
        drawn = walk(self.constraint(use), self.tokenizer, self.eos, seed, phrases)
        return str(self.tokenizer.decode(drawn, skip_special_tokens=False))

    def calls(self, text: str, tools: Sequence[dict[str, Any]]) -> list[tuple[str, Any]]:
        """Return the calls that a client gets of this text, and nothing else."""
        parser = OutputParser(None, False, self.parser, tools, calls_only=True)
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for part in [*parser.add(text), *parser.finish()]:
            assert part.kind is DeltaKind.TOOL_CALL
            assert part.call
            names.setdefault(part.call.index, part.call.name or "")
            arguments[part.call.index] = arguments.get(part.call.index, "") + part.text
        return [(name, json.loads(arguments[index])) for index, name in names.items()]


def required(names: Sequence[str], function: str | None = None, parallel: bool = True) -> ToolUse:
    return ToolUse(tuple(TOOLS[one] for one in names), ToolChoice.REQUIRED, function, parallel)


def check(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        schema = PARAMETERS[name] or {"const": {}}
        checker = Draft202012Validator.FORMAT_CHECKER
        Draft202012Validator(schema, format_checker=checker).validate(arguments)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("names", [[name] for name in PARAMETERS] + [["weather", "typed"]])
def test_whatever_is_drawn_is_a_call_with_valid_arguments(family: str, names: list[str]) -> None:
    it = Family(family)
    for seed in range(3):
        use = required(names)
        calls = it.calls(it.draw(use, seed), use.tools)
        assert calls
        check(calls)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_in_the_family_s_own_form(family: str) -> None:
    it = Family(family)
    feed(it.constraint(required(["weather", "typed"])), it.tokens(it.begins))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_special_tokens_of_calls_stay_text(family: str) -> None:
    it = Family(family)
    special = it.tokenizer.convert_tokens_to_ids(FAMILIES[family][1])
    assert marker_ids(it.tokenizer, it.parser, None) >= set(special)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_parallel_there_is_one_call(family: str) -> None:
    it = Family(family)
    use = required(["weather", "typed"], parallel=False)
    for seed in range(4):
        assert len(it.calls(it.draw(use, seed), use.tools)) == 1


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - SINGLE))
def test_with_parallel_there_may_be_more(family: str) -> None:
    it = Family(family)
    use = required(["typed", "nothing"])
    more = NEXT.get(family, "\n<tool_call>")
    drawn = (it.draw(use, seed, [*PHRASES, more, more, more]) for seed in range(60))
    assert any(len(it.calls(text, use.tools)) > 1 for text in drawn)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_named_call_ends_the_answer_and_others_may_end_as_freely_as_any(
    family: str, named: bool
) -> None:
    it = Family(family)
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
    for told in ({"calls_only": True}, {"either": True}):
        parser = OutputParser(None, False, it.parser, [TOOLS["nothing"]], **told)
        parts = [*parser.add(call), *parser.add("\n"), *parser.add("Well"), *parser.finish()]
        assert {part.kind for part in parts} == {DeltaKind.TOOL_CALL}


@pytest.mark.parametrize("family", ["json_tools", "qwen3_coder", "gemma4", "pythonic"])
def test_no_argument_is_invented(family: str) -> None:
    it = Family(family)
    inner = {"type": "object", "properties": {"n": {"type": "integer"}}}
    parameters = {"type": "object", "properties": {"a": _STRING, "o": inner}, "required": ["o"]}
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


def strict(names: Sequence[str], parallel: bool = True) -> ToolUse:
    """Return tools that may be called, all of them strict."""
    tools = [
        {"type": "function", "function": {**TOOLS[one]["function"], "strict": True}}
        for one in names
    ]
    return ToolUse(tuple(tools), ToolChoice.AUTO, None, parallel)


def begin(it: Family) -> str:
    """Return the special token that begins a call."""
    (first,) = it.tokenizer.encode(it.begins, add_special_tokens=False)[:1]
    return str(it.tokenizer.convert_ids_to_tokens(first))


TOLD = [
    name
    for name, (_, special, begins) in FAMILIES.items()
    if begins.startswith(tuple(special) or "\0") and name != "harmony"
]


@pytest.mark.parametrize("family", TOLD)
def test_a_strict_call_is_held_to_its_form_behind_free_text(family: str) -> None:
    it = Family(family)
    use = strict(["weather", "typed"], parallel=False)
    told = 'Well: {"name": "weather"} is < or > /that/.\n'
    for seed in range(3):
        one = it.constraint(use)
        assert allowed_tokens(one) is not None
        feed(one, it.tokens(told))
        assert set(allowed_tokens(one)) >= it.eos  # type: ignore[arg-type]
        feed(one, it.tokens(begin(it)))
        drawn = [
            *it.tokens(told + begin(it)),
            *walk(one, it.tokenizer, it.eos, seed, PHRASES),
        ]
        text = str(it.tokenizer.decode(drawn, skip_special_tokens=False))
        parser = OutputParser(None, False, it.parser, use.tools, marked_calls=True)
        parts = [*parser.add(text), *parser.finish()]
        content = "".join(part.text for part in parts if part.kind is DeltaKind.CONTENT)
        assert content.startswith(told.rstrip())
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for part in parts:
            if part.call is not None:
                names.setdefault(part.call.index, part.call.name or "")
                arguments[part.call.index] = arguments.get(part.call.index, "") + part.text
        assert names
        check([(name, json.loads(arguments[index])) for index, name in names.items()])


@pytest.mark.parametrize("family", ["json_tools", "mistral", "kimi_k2", "pythonic"])
def test_every_strict_call_of_an_answer_is_held_to_its_form(family: str) -> None:
    it = Family(family)
    one = it.constraint(strict(["weather", "nothing"]))
    call = it.draw(required(["nothing"], parallel=False), 0)
    for _ in range(2):
        feed(one, it.tokens(f"Now.\n{call}\nAnd "))
    feed(one, it.tokens(begin(it)))
    assert len(allowed_tokens(one)) < 10  # type: ignore[arg-type]


def test_bare_calls_are_text_where_strict_ones_are_marked() -> None:
    text = '{"name": "weather", "arguments": {"days": 99}}'
    for marked in (False, True):
        parser = OutputParser(None, False, "json_tools", [TOOLS["weather"]], marked_calls=marked)
        parts = [*parser.add(text), *parser.finish()]
        assert parser.called is not marked
        assert marked is ("".join(p.text for p in parts if p.kind is DeltaKind.CONTENT) == text)


@pytest.mark.parametrize("family", TOLD)
def test_free_text_has_no_call_in_another_form(family: str) -> None:
    it = Family(family)
    one = it.constraint(strict(["weather"]))
    feed(one, it.tokens("a <tool_cal"))
    if "<tool_call>" not in FAMILIES[family][1]:
        with_it = it.tokens("l>")
        feed(one, with_it[:1])
        assert with_it[1] not in set(allowed_tokens(one))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - set(TOLD)))
def test_where_no_token_tells_a_call_strict_ones_are_free(family: str) -> None:
    it = Family(family)
    source = ConstraintSource(None, strict(["weather"]), Thinking(), False)
    assert it.compiler.compile(source) is None


def test_calls_that_nobody_wants_strict_are_free() -> None:
    it = Family("json_tools")
    use = replace(required(["weather"]), choice=ToolChoice.AUTO)
    assert it.compiler.compile(ConstraintSource(None, use, Thinking(), False)) is None
