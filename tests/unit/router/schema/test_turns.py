"""Conversations are put together in a time that grows with their size, and not with its square."""

from typing import Any

import pytest

from lmx.router.schema.requests.conversation.turns import (
    joined_texts,
    joined_turns,
    with_stray_results,
)

COUNT = 10_000
PIECE = "x" * 3_000
"""Thirty megabytes in all: joined one by one they would be 150 gigabytes."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "content", [PIECE, [{"type": "image", "media": 0}, {"type": "text", "text": PIECE}]]
)
def test_many_messages_of_one_role_are_one_turn(content: Any) -> None:
    message = {"role": "user", "content": content}
    (turn,) = joined_turns([message] * COUNT)
    if isinstance(content, str):
        assert turn["content"] == "\n".join([PIECE] * COUNT)
    else:
        assert turn["content"] == content * COUNT
    assert message == {"role": "user", "content": content}, "the request's own is as it was"


@pytest.mark.timeout(60)
def test_many_texts_and_many_results_are_joined_once() -> None:
    (text,) = joined_texts([{"type": "text", "text": PIECE}] * COUNT)
    assert text == {"type": "text", "text": "\n".join([PIECE] * COUNT)}
    stray = {"role": "tool", "tool_call_id": "gone", "content": PIECE}
    shown = with_stray_results([stray] * COUNT)
    assert shown is not None
    (reported,) = shown
    assert reported["role"] == "user" and reported["content"].count(PIECE) == COUNT


def test_turns_have_the_texts_thoughts_and_calls_of_their_messages() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    image = {"type": "image", "media": 0}
    said: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": ""},
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": "Hel", "reasoning_content": "Hm"},
        {"role": "assistant", "content": "lo", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "1", "content": "b"},
    ]
    assert joined_turns(said) == [
        said[0],
        {"role": "user", "content": [{"type": "text", "text": "hi"}, image]},
        {"role": "assistant", "content": "Hello", "reasoning_content": "Hm", "tool_calls": [call]},
        *said[6:],
    ]
