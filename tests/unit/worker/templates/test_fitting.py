"""Conversations that clients send, and templates with the quirks of published ones."""

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lmx.worker.templates.environment import render
from lmx.worker.templates.fitting import SHAPES, Fitting, fit, probe
from lmx.worker.templates.history import Message

ALTERNATING = """
{%- set ms = messages[1:] if messages[0].role == 'system' else messages -%}
{%- for m in ms -%}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles') }}{%- endif -%}
  [{{ m.role }}]{{ messages[0].content if loop.first and ms | length < messages | length }}
  {{- m.content }}
{%- endfor -%}"""
"""One system message, then user and assistant in turns; it knows no tools."""

FIRST_SYSTEM_ONLY = """
{%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- if messages | selectattr('role', 'eq', 'user') | list == [] -%}
  {{- raise_exception('no user') -}}
{%- endif -%}
{%- for m in messages -%}
  {%- if m.role == 'system' and not loop.first -%}{{ raise_exception('first') }}{%- endif -%}
  [{{ m.role }}]{{ m.content }}
  {%- for c in m.tool_calls or [] -%}
    {%- for k, v in c.function.arguments.items() -%}<{{ k }}={{ v }}>{%- endfor -%}
  {%- endfor -%}
{%- endfor -%}"""
"""A system message may only come first, somebody must ask, and arguments are objects."""

ONE_CALL = """
{%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- for m in messages -%}
  {%- if m.tool_calls -%}
    {%- if m.tool_calls | length > 1 -%}{{ raise_exception('one call') }}{%- endif -%}
    [call]{{ m.tool_calls[0].function.arguments | tojson }}
  {%- else -%}[{{ m.role }}]{{ m.content }}
  {%- endif -%}
{%- endfor -%}"""
"""One call a turn, and the text of a turn with a call is dropped."""

LAST_SYSTEM = """
{%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- set ns = namespace(system='') -%}
{%- for m in messages if m.role == 'system' -%}{%- set ns.system = m.content -%}{%- endfor -%}
{{- ns.system -}}
{%- for m in messages if m.role in ('user', 'assistant', 'tool') -%}
  [{{ m.role }}]{{ m.content }}
{%- endfor -%}"""
"""The last system message counts, and calls are not shown."""

NO_SYSTEM = """
{%- for m in messages -%}
  {%- if m.role not in ('user', 'assistant') -%}{{ raise_exception('role') }}{%- endif -%}
  [{{ m.role }}]{{ m.content }}
{%- endfor -%}"""

THOUGHT_OR_TEXT = """
{%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- for m in messages -%}
  {%- if m.tool_calls and m.content and m.reasoning_content -%}
    {{- raise_exception('Cannot pass both') -}}
  {%- endif -%}
  [{{ m.role }}]{{ m.content }}
  {%- if m.tool_calls -%}{{ m.reasoning_content }}{%- endif -%}
  {%- for c in m.tool_calls or [] -%}<{{ c.function.arguments }}>{%- endfor -%}
{%- endfor -%}"""
"""In front of a call there is a thought or a text, as in gpt-oss's."""

TAKES_ALL = """
{%- if tools -%}{{ tools | tojson }}{%- endif -%}
{%- for m in messages -%}
  [{{ m.role }}]{{ m.content }}
  {%- for c in m.tool_calls or [] -%}<{{ c.function.arguments }}>{%- endfor -%}
{%- endfor -%}"""

TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": {}}}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calls(*arguments: Any, text: str = "", first: int = 0) -> Message:
    listed = [
        {"id": f"c{first + i}", "type": "function", "function": {"name": "look", "arguments": one}}
        for i, one in enumerate(arguments)
    ]
    return {"role": "assistant", "content": text, "tool_calls": listed}


def result(text: str, number: int = 0) -> Message:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


def shown(template: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    variables = {"messages": list(messages), "tools": list(tools) or None}
    return render(template, variables)


def learned(template: str) -> Fitting:
    def rendered(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str | None:
        try:
            return shown(template, messages, tools)
        except Exception:
            return None

    return probe(rendered, mentions_tools="tools" in template)


TALKS: dict[str, tuple[list[Message], str]] = {
    "system in the middle": (
        [system("s1"), user("u1"), answer("a1"), system("s2"), user("u2")],
        "s1 u1 a1 s2 u2",
    ),
    "system at the end": ([system("s1"), user("u1"), answer("a1"), system("s2")], "s1 u1 a1 s2"),
    "two systems": ([system("s1"), system("s2"), user("u1")], "s1 s2 u1"),
    "two users": ([system("s1"), user("u1"), user("u2")], "s1 u1 u2"),
    "a greeting first": ([system("s1"), answer("a1"), user("u1")], "s1 a1 u1"),
    "nobody asks": ([system("s1"), calls({"x": "k1"}, text="a1"), result("r1")], "s1 a1 k1 r1"),
    "a system alone": ([system("s1")], "s1"),
    "text behind a result": (
        [system("s1"), user("u1"), calls({"x": "k1"}), result("r1"), user("u2")],
        "s1 u1 k1 r1 u2",
    ),
    "two calls": (
        [user("u1"), calls({"x": "k1"}, {"x": "k2"}), result("r1"), result("r2", 1), user("u2")],
        "u1 k1 k2 u2 r1 r2",
    ),
    "a thought, a text and two calls": (
        [
            user("u1"),
            calls({"x": "k1"}, {"x": "k2"}, text="a1") | {"reasoning_content": "h1"},
            result("r1"),
            result("r2", 1),
            user("u2"),
        ],
        "u1 a1 k1 k2 r1 r2 u2",
    ),
    "cut arguments": ([user("u1"), calls('{"x": "k1'), result("r1"), user("u2")], "u1 k1 r1 u2"),
    "a reminder behind a result": (
        [user("u1"), calls({"x": "k1"}), result("r1"), system("s1"), answer("a1")],
        "u1 k1 r1 s1 a1",
    ),
}
TEMPLATES = {
    "alternating": ALTERNATING, "first system only": FIRST_SYSTEM_ONLY, "one call": ONE_CALL,
    "last system": LAST_SYSTEM, "no system": NO_SYSTEM, "takes all": TAKES_ALL,
    "thought or text": THOUGHT_OR_TEXT,
}  # fmt: skip


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_text_is_shown(template: str, talk: str) -> None:
    messages, words = TALKS[talk]
    fitting = learned(TEMPLATES[template])
    text = shown(TEMPLATES[template], *fit(messages, (TOOL,), fitting))
    assert [word for word in words.split() if word not in text] == []
    assert fitting.refused == frozenset()


@pytest.mark.parametrize("talk", TALKS)
def test_what_a_template_takes_stays_as_it_is(talk: str) -> None:
    messages, _ = TALKS[talk]
    assert fit(messages, (TOOL,), learned(TAKES_ALL)) == (messages, (TOOL,))


def test_a_later_system_text_stays_in_its_place() -> None:
    messages, _ = TALKS["system in the middle"]
    fitted, _ = fit(messages, (), learned(FIRST_SYSTEM_ONLY))
    reminder = user("<system-reminder>\ns2\n</system-reminder>")
    assert fitted == [system("s1"), user("u1"), answer("a1"), reminder, user("u2")]


def test_a_text_between_a_thought_and_a_call_stands_behind_the_thought() -> None:
    turn = calls({"x": "k1"}, text="a1") | {"reasoning_content": "h1"}
    talk = [user("u1"), turn, result("r1")]
    fitted, _ = fit(talk, (TOOL,), learned(THOUGHT_OR_TEXT))
    assert fitted == [
        user("u1"),
        turn | {"content": "", "reasoning_content": "h1\n\na1"},
        result("r1"),
    ]
    # Each of them alone stays what it is.
    alone = [user("u1"), calls({"x": "k1"}, text="a1"), result("r1")]
    assert fit(alone, (TOOL,), learned(THOUGHT_OR_TEXT))[0] == alone


def test_a_call_and_its_result_stay_together() -> None:
    turn = [user("u1"), calls({"x": 1}, {"x": 2}), result("r2", 1), result("r1"), user("u2")]
    fitted, _ = fit(turn, (TOOL,), learned(ONE_CALL))
    order = [m["content"] or m["tool_calls"][0]["function"]["arguments"]["x"] for m in fitted]
    assert order == ["u1", 1, "r1", 2, "r2", "u2"]


@pytest.mark.parametrize(
    ("given_arguments", "whole"),
    [
        ('{"path": "a", "text": "half of', {"path": "a", "text": "half of"}),
        ("no object", {"arguments": "no object"}),
        ("[1, 2]", {"arguments": "[1, 2]"}),
    ],
)
def test_arguments_become_an_object(given_arguments: str, whole: dict[str, Any]) -> None:
    turn = [user("u"), calls(given_arguments), result("r")]
    fitted, _ = fit(turn, (TOOL,), learned(FIRST_SYSTEM_ONLY))
    assert fitted[1]["tool_calls"][0]["function"]["arguments"] == whole


def test_what_nothing_helps_is_known() -> None:
    deaf = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    fitting = learned(deaf)
    assert "answer_first" in fitting.refused
    assert "several_systems" not in fitting.refused, "its texts stand in the user's"


# Properties, for every choice of remedies.


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Turns of all shapes. Each text is another one, so that a lost or moved one shows."""
    words = (f"w{number:03}w" for number in itertools.count())
    numbers = itertools.count()
    messages = [system(next(words)) for _ in range(draw(st.integers(0, 2)))]
    kinds = st.sampled_from(["system", "developer", "user", "assistant", "calls", "broken"])
    for kind in draw(st.lists(kinds, min_size=1, max_size=8)):
        if kind in ("calls", "broken"):
            count = draw(st.integers(1, 3))
            first = next(numbers)
            for _ in range(count - 1):
                next(numbers)
            given_arguments = [
                f'{{"x": "{next(words)}' if kind == "broken" else {"x": next(words)}
                for _ in range(count)
            ]
            text = next(words) if draw(st.booleans()) else ""
            messages.append(calls(*given_arguments, text=text, first=first))
            messages += [result(next(words), first + i) for i in range(count)]
        else:
            messages.append({"role": kind, "content": next(words)})
    return messages


@st.composite
def fittings(draw: st.DrawFn) -> Fitting:
    chosen = {
        shape.name: draw(st.sampled_from(shape.remedies)) for shape in SHAPES if draw(st.booleans())
    }
    return Fitting(draw(st.booleans()), chosen)


def test_a_long_row_of_results_is_joined_once() -> None:
    """Two at a time, these 10 MB would be copied ten thousand times, which takes minutes."""
    row = [{"role": "tool", "content": f"{number:0500}"} for number in range(20_000)]
    began_s = time.process_time()
    fitted, _ = fit([{"role": "user", "content": "w"}, *row], (), Fitting(tools_as_text=True))
    assert time.process_time() - began_s < 5
    assert [message["role"] for message in fitted] == ["user", "user"]
    assert fitted[1]["content"].count("<tool_response>") == len(row)


def words_of(messages: Sequence[Message]) -> list[str]:
    parts = json.dumps(messages).split("w")
    return [part for part in parts if len(part) == 3 and part.isdigit()]


@given(conversations(), fittings())
def test_no_text_is_lost_doubled_or_moved(messages: list[Message], fitting: Fitting) -> None:
    fitted, _ = fit(messages, (), fitting)
    assert sorted(words_of(fitted)) == sorted(words_of(messages))
    asked = [word for m in messages if m["role"] != "tool" for word in words_of([m])]
    results = {word for m in messages if m["role"] == "tool" for word in words_of([m])}
    assert [word for word in words_of(fitted) if word not in results] == asked


@given(conversations(), fittings(), st.data())
def test_a_longer_conversation_begins_as_the_shorter_one(
    messages: list[Message], fitting: Fitting, data: st.DataObject
) -> None:
    kept = {name: r for name, r in fitting.remedies.items() if name != "ends_with_result"}
    fitting = fitting._replace(remedies=kept)
    cut = data.draw(st.integers(1, len(messages)))
    assume(any(message["role"] not in ("system", "developer") for message in messages[:cut]))
    assume(cut == len(messages) or messages[cut]["role"] != "tool")
    shorter, _ = fit(messages[:cut], (), fitting)
    longer, _ = fit(messages, (), fitting)
    *before, last = shorter
    assert longer[: len(before)] == before
    assert longer[len(before)]["role"] == last["role"]
    assert longer[len(before)]["content"].startswith(last["content"])
