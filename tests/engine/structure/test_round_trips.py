"""Calls as the models of each family write them are accepted by the grammar, and a client gets them
as they were meant, also with values that look like the family's own marks."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import Thinking, ToolUse
from lmx.protocol.states import ToolChoice
from lmx.worker.engine.values import ConstraintMaker, ConstraintSource
from lmx.worker.formats.families.table import call_forms, family_of
from tests.support.fakes import call_writers as writers
from tests.support.fakes.call_writers import Calls, dumps
from tests.support.references.grammar_walk import allowed_set
from tests.support.rigs.budgets import examples
from tests.support.rigs.tool_families import (
    CASES,
    FAMILIES,
    STRING,
    Family,
    closed,
    parameters,
    the_family,
)


def cohere(calls: Calls) -> str:
    lines = (
        f'    {{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {dumps(args)}}}'
        for index, (name, args) in enumerate(calls)
    )
    return "<|START_ACTION|>[\n" + ",\n".join(lines) + "\n]<|END_ACTION|>"


def python(start: str, end: str) -> Callable[[Calls], str]:
    def render(calls: Calls) -> str:
        written = (
            f"{name}({', '.join(f'{key}={dumps(value)}' for key, value in args.items())})"
            for name, args in calls
        )
        return f"{start}[{', '.join(written)}]{end}"

    return render


def atem(calls: Calls) -> str:
    return f"<|start|>assistant to={calls[0][0]}<|message|>{writers.atem(calls)}"


def harmony(calls: Calls) -> str:
    ((name, args),) = calls
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(args)}"


WRITERS: dict[str, Callable[[Calls], str]] = {
    "unknown": writers.json_tools,
    "json_tools": writers.json_tools,
    "mistral": writers.mistral,
    "mistral v3": writers.array("[TOOL_CALLS] ", ""),
    "kimi_k2": writers.kimi,
    "atem": atem,
    "cohere2_moe": cohere,
    "pythonic": python("<|tool_call_start|>", "<|tool_call_end|>"),
    "glm47": writers.prefixed(""),
    "longcat": writers.prefixed("longcat_"),
    "qwen3_coder": writers.qwen3_coder,
    "minimax_m2": writers.minimax_m2,
    "gemma4": writers.gemma4,
    "harmony": harmony,
    "minimax_m3": writers.json_tools,
    "apertus": writers.apertus,
    "deepseek_v3": writers.deepseek_v3,
    "deepseek_v31": writers.deepseek_v31,
    "deepseek_v32": writers.deepseek_v32,
    "functiongemma": writers.functiongemma,
    "glm4": writers.glm4,
    "granite": writers.array("<|tool_call|>", ""),
    "hunyuan": writers.hunyuan,
    "internlm": writers.internlm,
    "jamba": writers.array("<tool_calls>", "</tool_calls>"),
    "llama3_json": writers.llama3,
    "llama4": python("<|python_start|>", "<|python_end|>"),
    "nemotron": writers.array("<TOOLCALL>", "</TOOLCALL>"),
    "olmo3": writers.olmo3,
    "phi4": writers.array("<|tool_call|>", "<|/tool_call|>"),
    "seed_oss": writers.seed_oss,
    "step3": writers.step3,
}
# Whose parser takes line breaks on both sides of a text for a frame.
FRAMED = {"atem", "glm47", "longcat", "minimax_m2", "step3"}
ONE = {"harmony", "glm4", "llama3_json"}

SAVE = closed(
    {
        "text": STRING,
        "size": {"type": "integer"},
        "tags": {"type": "array", "items": STRING},
        "inner": closed({"k": STRING, "deep": closed({"n": {"type": "integer"}}, [])}, ["k"]),
    },
    [],
)
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in (("save", SAVE), ("now", closed({}, [])))
)
# Without its tokens Mistral has the older form.
ROUND = [case for case in CASES if case != ("mistral", True)]
families = pytest.mark.parametrize(("family", "as_text"), parameters(ROUND))


@cache
def compiled(family: str, as_text: bool, parallel: bool = False) -> tuple[Family, ConstraintMaker]:
    it = the_family(family, as_text)
    use = ToolUse(TOOLS, ToolChoice.REQUIRED, parallel=parallel)
    maker = it.compiler.compile(ConstraintSource(None, use, Thinking(), False))
    assert maker is not None
    return it, maker


def accepts(it: Family, maker: ConstraintMaker, text: str) -> bool:
    """Return whether ``text`` is a whole answer to the grammar."""
    one = maker()
    try:
        for token in it.tokens(text):
            one.accept(token)
    except LmxError:
        return False
    return allowed_set(one) >= it.eos


def meant(family: str, calls: Calls) -> Calls:
    """Return the calls as the family can say them."""

    def said(text: str) -> str:
        # Models of Seed put long texts on lines of their own.
        if family == "seed_oss" or (family in FRAMED and text.startswith("\n")):
            return text.removeprefix("\n").removesuffix("\n")
        return text

    return [
        (name, {key: said(one) if type(one) is str else one for key, one in args.items()})
        for name, args in calls
    ]


def marks(family: str) -> list[str]:
    """Return what the family writes around calls and arguments."""
    written = WRITERS[family]([("save", {"text": "\0", "size": 1, "tags": ["\0"]})])
    forms = call_forms(family_of(FAMILIES[family][0])) if family != "harmony" else ()
    found = {text for form in forms for text in (form.start, form.end, *form.tokens) if text}
    return [*found, *(part for part in written.replace("\\u0000", "\0").split("\0") if part)]


PLAIN = [
    *("", "a", "é🙂日本", "a\nb\n\nc", '"', "\\", "\\n", "'", "{", "}", "]})", "<", "</", "< b >"),
    *("<b>x</b>", "```\n", "a: b, c", "\t", "1", "true", "[1]", "nullable", "None of them", "&lt;"),
]


@families
def test_what_a_model_writes_is_accepted_and_read_as_it_was_meant(
    family: str, as_text: bool
) -> None:
    it, maker = compiled(family, as_text)
    write = WRITERS[family]
    lists: list[Calls] = [[("save", {"text": text})] for text in PLAIN]
    lists += [[("now", {})], [("save", {})]]
    full = {
        "text": "a",
        "size": -3,
        "tags": ["x", "y é", ""],
        "inner": {"k": "a b", "deep": {"n": 1}},
    }
    lists.append([("save", full)])
    for calls in lists:
        text = write(calls)
        assert accepts(it, maker, text), text
        assert it.calls(text, TOOLS) == meant(family, calls), text


@families
def test_several_calls_are_accepted_and_read(family: str, as_text: bool) -> None:
    if family in ONE:
        return
    it, maker = compiled(family, as_text, True)
    calls: Calls = [("save", {"text": "a", "size": 1}), ("now", {}), ("save", {"tags": ["b"]})]
    text = WRITERS[family](calls)
    one = maker()
    for token in it.tokens(text):
        # Behind a whole call any token is allowed, and one that begins no other call ends all.
        assert allowed_set(one) != it.eos
        one.accept(token)
    assert allowed_set(one) >= it.eos
    assert it.calls(text, TOOLS) == calls


@families
def test_no_value_is_read_as_another(family: str, as_text: bool) -> None:
    it, maker = compiled(family, as_text)
    write = WRITERS[family]
    for mark in marks(family):
        for value in (mark, f"a{mark}b", mark[:-1]):
            for arguments in ({"text": value}, {"inner": {"k": value}}):
                calls: Calls = [("save", arguments)]
                text = write(calls)
                if accepts(it, maker, text):
                    assert it.calls(text, TOOLS) == meant(family, calls), text


@given(st.sampled_from(ROUND), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_no_mixture_of_marks_is_read_as_another(
    case: tuple[str, bool], data: st.DataObject
) -> None:
    it, maker = compiled(*case)
    pieces = [*marks(case[0]), "<", "/", ">", "\n", " ", '"', "\\", "null", "é", "a", "x: 1, "]
    value = data.draw(st.lists(st.sampled_from(pieces), max_size=5).map("".join))
    key = data.draw(st.sampled_from(["text", "tags", "inner"]))
    arguments: dict[str, Any] = {"text": value, "tags": [value], "inner": {"k": value}}
    calls: Calls = [
        ("save", {key: arguments[key], "size": 1} if key == "text" else {key: arguments[key]})
    ]
    text = WRITERS[case[0]](calls)
    if accepts(it, maker, text):
        assert it.calls(text, TOOLS) == meant(case[0], calls)
