"""The families of models by how they call tools: their special tokens, and the grammars of their
calls, over a tokenizer with a token for each byte."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tokenizers import AddedToken

from lmx.protocol.messages.data import Structure, Thinking, ToolUse
from lmx.protocol.states import DeltaKind, ToolChoice
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.values import Constraint, ConstraintSource
from lmx.worker.formats.parser import OutputParser
from tests.support.models.tiny_models import make_tokenizer
from tests.support.references.grammar_walk import walk

STRING = {"type": "string"}
_NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, "required": ["v"],
    "additionalProperties": False}  # fmt: skip


def closed(properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


# fmt: off
PARAMETERS: dict[str, dict[str, Any] | None] = {
    "weather": closed(
        {"city": STRING, "days": {"type": "integer", "minimum": 1, "maximum": 14}}, ["city"]),
    "typed": closed(
        {
            "a": {"type": "number"}, "b": {"type": "boolean"},
            "c": {"type": "string", "enum": ["x y", "z", "ü"]},
            "d": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
            "e": closed({"k": STRING, "n": {"type": "integer"}}, ["n"]),
            "f": {"type": "string", "maxLength": 6}}, ["b", "c", "d"]),
    "nothing": None,
    # What few forms can say but JSON.
    "hard": closed(
        {
            "when": {"type": "string", "format": "date"},
            "who": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}]},
            "hex": {"type": "string", "pattern": "^[a-f]{2,3}$"}}, ["when", "who"]),
    "linked": {"$defs": {"node": _NODE}, **closed({"n": {"$ref": "#/$defs/node"}}, ["n"])},
    "listed": closed({"l": {"type": "array", "items": closed({"q": STRING}, ["q"])}}, ["l"]),
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
            "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:"),
    "atem": (
        "atem", ["<|start|>", "<|message|>", "<|eom|>"],
        '<|start|>assistant to=weather<|message|><atem:function_calls>'
            '<atem:invoke name="weather"><atem:parameter name="city">'),
    "cohere2_moe": (
        "cohere2_moe", ["<|START_ACTION|>", "<|END_ACTION|>"],
        '<|START_ACTION|>[\n    {"tool_call_id": "'),
    "pythonic": (
        "pythonic", ["<|tool_call_start|>", "<|tool_call_end|>"],
        '<|tool_call_start|>[weather(city="'),
    "glm47": (
        "glm47",
        ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"),
    "longcat": (
        "longcat", ["<longcat_tool_call>", "</longcat_tool_call>"],
        "<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n"),
    "qwen3_coder": (
        "qwen3_coder", ["<tool_call>", "</tool_call>"],
        "<tool_call>\n<function=weather>\n<parameter=city>\n"),
    "minimax_m2": (
        "minimax_m2", ["<minimax:tool_call>", "</minimax:tool_call>"],
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">'),
    "gemma4": (
        "gemma4", ["<|tool_call>", "<tool_call|>", '<|"|>'], '<|tool_call>call:weather{city:<|"|>'),
    "harmony": (
        "harmony",
        ["<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>", "<|constrain|>"],
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"),
    "minimax_m3": ("minimax_m3", [], '<tool_call>\n{"name": "'),
    "apertus": (
        "apertus", ["<|tools_prefix|>", "<|tools_suffix|>"], '<|tools_prefix|>[{"weather": {'),
    "deepseek_v3": (
        "deepseek_v3",
        [
            *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
            *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>")],
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"),
    "deepseek_v31": (
        "deepseek_v31",
        [
            *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
            *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>")],
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"),
    "deepseek_v32": (
        "deepseek_v32", ["｜DSML｜"],
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
            '<｜DSML｜parameter name="city" string="true">'),
    "functiongemma": (
        "functiongemma", ["<start_function_call>", "<end_function_call>", "<escape>"],
        "<start_function_call>call:weather{city:<escape>"), "glm4": ("glm4", [], "weather\n{"),
    "llama3_json": ("llama3_json", [], '{"name": "weather", "parameters": {'),
    "granite": ("granite", ["<|tool_call|>"], '<|tool_call|>[{"name": "weather", "arguments": {'),
    "hunyuan": (
        "hunyuan", ["<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>"],
        "<tool_calls>\n<tool_call>weather\n```json\n{"),
    "internlm": (
        "internlm", ["<|action_start|>", "<|plugin|>", "<|action_end|>"],
        '<|action_start|><|plugin|>\n{"name": "weather", "parameters": {'),
    "jamba": ("jamba", [], '<tool_calls>[{"name": "weather", "arguments": {'),
    "llama4": ("llama4", ["<|python_start|>", "<|python_end|>"], '<|python_start|>[weather(city="'),
    "nemotron": ("nemotron", [], '<TOOLCALL>[{"name": "weather", "arguments": {'),
    "olmo3": ("olmo3", [], '<function_calls>\nweather(city="'),
    "phi4": (
        "phi4", ["<|tool_call|>", "<|/tool_call|>"],
        '<|tool_call|>[{"name": "weather", "arguments": {'),
    "seed_oss": (
        "seed_oss", ["<seed:tool_call>", "</seed:tool_call>"],
        "<seed:tool_call>\n<function=weather>\n<parameter=city>"),
    "step3": (
        "step3",
        [
            *("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>"),
            *("<｜tool_call_end｜>", "<｜tool_sep｜>")],
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="weather"><steptml:parameter name="city">')}
# What ends a text where no token does.
PHRASES = [
    *("\n</parameter>\n", "</parameter>\n", "</longcat_arg_value>\n"),
    *("</｜DSML｜parameter>\n", "</steptml:parameter>", "</atem:parameter>")]
# What ends a text where the marks are ordinary text too.
ENDS = [*PHRASES, "</arg_value>\n", '<|"|>', "<escape>"]
# How another call begins in the forms in which nothing encloses them: the special token, else
# what all of them begin with.
NEXT = {
    "longcat": "<longcat_tool_call>", "mistral": "[TOOL_CALLS]", "gemma4": "<|tool_call>",
    "functiongemma": "<start_function_call>", "internlm": "\n<|action_start|>",
    "seed_oss": "\n<seed:tool_call>"}
# fmt: on
# Whose answers have one call.
SINGLE = {"harmony", "glm4", "llama3_json"}

# Each family with its special tokens, and with marks that are ordinary text.
CASES = [
    (name, as_text)
    for name, (_, special, _) in FAMILIES.items()
    for as_text in (False, True)
    if not (as_text and (name == "harmony" or not special))
]
AS_TEXT_QUICK = (
    "json_tools",
    "mistral v3",
    "pythonic",
    "qwen3_coder",
    "gemma4",
    "hunyuan",
    "step3",
)
"""Those whose marks `make test` has as ordinary text, for each way to write a call one."""


def parameters(cases: Sequence[tuple[str, bool]]) -> list[Any]:
    """Return a parameter for each case. `make conformance` has all of them."""
    return [
        pytest.param(
            *(name, as_text),
            marks=pytest.mark.conformance if as_text and name not in AS_TEXT_QUICK else (),
            id=f"{name}{'-text' * as_text}",
        )
        for name, as_text in cases
    ]


class Family:
    """A tokenizer with a family's special tokens, and the compiler for it. ``as_text``: without
    those, so that the family's marks are ordinary text."""

    def __init__(self, name: str, *, as_text: bool = False) -> None:
        self.parser, special, self.begins = FAMILIES[name]
        special = [] if as_text else special
        self.tokenizer = make_tokenizer(None)
        self.tokenizer.add_tokens([AddedToken(one, special=True) for one in special])
        harmony = "<|return|>" in special
        ends = ["<|call|>", "<|return|>"] if harmony else ["<|end|>"]
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


@cache
def the_family(name: str, as_text: bool = False) -> Family:
    """Return a family that many tests share, and none changes."""
    return Family(name, as_text=as_text)


def required(names: Sequence[str], function: str | None = None, parallel: bool = True) -> ToolUse:
    return ToolUse(tuple(TOOLS[one] for one in names), ToolChoice.REQUIRED, function, parallel)


def strict(names: Sequence[str], parallel: bool = True) -> ToolUse:
    """Return tools that may be called, all of them strict."""
    tools = [
        {"type": "function", "function": {**TOOLS[one]["function"], "strict": True}}
        for one in names
    ]
    return ToolUse(tuple(tools), ToolChoice.AUTO, None, parallel)


def check(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        schema = PARAMETERS[name] or {"const": {}}
        checker = Draft202012Validator.FORMAT_CHECKER
        Draft202012Validator(schema, format_checker=checker).validate(arguments)
