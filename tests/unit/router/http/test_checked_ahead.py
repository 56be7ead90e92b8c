"""A large body is checked in steps, and nobody can tell: the same requests come of it, and the same
errors."""

import copy
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from lmx.protocol.errors import RequestError
from lmx.router.http.bodies import json_body
from lmx.router.http.bodies.json_body import IS_LARGE, checked_ahead
from lmx.router.schema.requests.anthropic.conversation import TURNS
from lmx.router.schema.requests.anthropic.messages import parse_messages
from lmx.router.schema.requests.chat import parse_chat
from lmx.router.schema.requests.conversation.messages import MAX_ITEMS, MESSAGES
from lmx.router.schema.requests.conversation.older_forms import modernized
from lmx.router.schema.requests.responses.items import ITEMS
from lmx.router.schema.requests.responses.responses import asked_of, parse_responses

Shaped = Callable[[dict[str, Any]], dict[str, Any]]

PARTS = st.sampled_from(
    [
        {"type": "text", "text": "a"}, {"type": "input_text", "text": "a"}, {"type": "text"},
        {"type": "text", "text": 1}, {"type": "nope"}, {}, 7, None,
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 2**70}},
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "b"}]},
        {"type": "new_kind", "text": "a"},
    ]
)  # fmt: skip
CONTENTS: st.SearchStrategy[Any] = (
    st.none() | st.just("words") | st.lists(PARTS, max_size=4) | st.just({})
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "user", "assistant", "system", "tool", "function", "x", 1])},
    optional={
        "content": CONTENTS,
        "tool_call_id": st.just("call_1"),
        "function_call": st.just({"name": "f", "arguments": {"a": 1}}),
        "type": st.sampled_from(["message", "reasoning", "function_call_output", "other", 3]),
        "call_id": st.just("call_1"),
        "output": CONTENTS,
        "summary": CONTENTS,
    },
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "turns": st.lists(TURN | st.just(5), max_size=9) | st.just("text") | st.none(),
        "temperature": st.sampled_from([0.5, "hot"]),
        "top_p": st.sampled_from([0.5, 9]),
    },
)
MANY = {"role": "user", "content": [{"type": "text", "text": "a"}] * 1_000}
TOO_MANY = {"turns": [MANY] * (MAX_ITEMS // 1_000 + 1)}


def run(steps: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Take all steps at once: each ends with ``asyncio.sleep(0)``, which needs no loop."""
    while True:
        try:
            steps.send(None)
        except StopIteration as end:
            whole: dict[str, Any] = end.value
            return whole


def test_others_have_their_turn_between_its_steps() -> None:
    steps = checked_ahead({IS_LARGE: True}, {"turns": [MANY] * 3}, "turns", MESSAGES)  # type: ignore[arg-type]
    taken = 0
    with pytest.raises(StopIteration):
        while True:
            steps.send(None)
            taken += 1
    assert taken >= 3


def responses(body: dict[str, Any]) -> Any:
    wanted = parse_responses(body)
    return wanted, asked_of(wanted, wanted.items, b"k" * 32)


def made(parse: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> Any:
    try:
        return parse(body)
    except RequestError as error:
        return error.code, error.message, error.param


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "_CHECKED_AT_ONCE", 3)


@pytest.mark.parametrize(
    ("field", "check", "parse", "shaped"),
    [
        ("messages", MESSAGES, parse_chat, modernized),
        ("messages", TURNS, parse_messages, dict),
        ("input", ITEMS, responses, dict),
    ],
)
@given(BODIES)
@example(TOO_MANY)
@example({"turns": [{"role": "user", "content": "a"}] * 10_001})
def test_what_comes_of_a_large_body_is_what_comes_of_it_at_once(
    field: str, check: TypeAdapter[list[Any]], parse: Callable[[dict[str, Any]], Any],
    shaped: Shaped, body: dict[str, Any],
) -> None:  # fmt: skip
    body = {"model": "m", "max_tokens": 5, **body}
    if "turns" in body:
        body[field] = body.pop("turns")
    request: Any = {IS_LARGE: True}
    ahead = run(checked_ahead(request, copy.deepcopy(body), field, check, shaped))
    assert made(parse, ahead) == made(parse, body)


def test_a_right_body_is_checked_whole_ahead() -> None:
    body = {"messages": [{"role": "user", "content": f"{n}"} for n in range(10)]}
    request: Any = {IS_LARGE: True}
    ahead = run(checked_ahead(request, body, "messages", MESSAGES))
    assert {type(message).__name__ for message in ahead["messages"]} == {"Message"}
    small: Any = {}
    assert run(checked_ahead(small, body, "messages", MESSAGES)) is body
