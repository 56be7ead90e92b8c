"""Puts a conversation together of messages as workers take them: those of one role that follow each
other are one turn, and results of unknown calls are marked as such. Pure.

Each text is copied once: a conversation of thousands of messages that is joined one by one would be
copied thousands of times.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

NAMED: Final = "file"
"""The type of a part that stands for a file which a request names by its id."""


def joined_turns(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation in which the messages of one turn are one. The output of a call is
    always a message of its own."""
    turns: list[list[dict[str, Any]]] = []
    for message in messages:
        _add(turns, message)
    return [_joined(turn) for turn in turns]


def joined_texts(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts, of which texts that follow each other are one, with a line break between."""
    joined: list[dict[str, Any]] = []
    for is_text, group in groupby(parts, key=lambda part: bool(part["type"] == "text")):
        if is_text:
            text = "\n".join(part["text"] for part in group)
            joined.append({"type": "text", "text": text})
        else:
            joined += group
    return joined


def content_of(parts: Iterable[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return parts as the content of a message: one string if all of them are texts."""
    joined = joined_texts(parts)
    if all(part["type"] == "text" for part in joined):
        return joined[0]["text"] if joined else ""
    return joined


def with_stray_results(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return a conversation in which the results of calls that it does not have are shown as the
    user's, with a note on what they are; None if it has no such results.

    Clients send them after they have cut off or summed up the beginning of a conversation. As
    messages of the role ``tool`` they would look like the results of other calls, and some
    templates refuse them.
    """
    made: set[str] = set()
    stray: set[int] = set()
    for index, message in enumerate(messages):
        made.update(call["id"] for call in message.get("tool_calls", ()))
        if message["role"] == "tool" and message.get("tool_call_id") not in made:
            stray.add(index)
    if not stray:
        return None
    turns: list[list[dict[str, Any]]] = []
    waiting: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if index in stray:
            waiting.append(_told(message))
        elif message["role"] == "tool" or not waiting:
            # The results of the calls before it stay together.
            turns.append([message])
        else:
            for one in (*waiting, message):
                _add(turns, one)
            waiting.clear()
    for one in waiting:
        _add(turns, one)
    return [_joined(turn) for turn in turns]


def _told(result: dict[str, Any]) -> dict[str, Any]:
    of_tool = f" of the tool {result['name']}" if result.get("name") else ""
    head = f"[The result of a call{of_tool} that is not in this conversation:]"
    content = content_of([*_parts_of(head), *_parts_of(result["content"])])
    return {"role": "user", "content": content}


def _add(turns: list[list[dict[str, Any]]], message: dict[str, Any]) -> None:
    if turns and turns[-1][-1]["role"] == message["role"] != "tool":
        turns[-1].append(message)
    else:
        turns.append([message])


def _joined(turn: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(turn) == 1:
        return turn[0]
    contents = [message["content"] for message in turn]
    joined = dict(turn[0])
    if joined["role"] == "assistant":
        # The texts of an answer are pieces of one text: nothing was between them.
        joined["content"] = "".join(contents)
    elif all(isinstance(content, str) for content in contents):
        joined["content"] = "\n".join(filter(None, contents))
    else:
        joined["content"] = joined_texts(
            part for content in contents for part in _parts_of(content)
        )
    thoughts = [one["reasoning_content"] for one in turn if "reasoning_content" in one]
    if thoughts:
        joined["reasoning_content"] = "".join(thoughts)
    calls = [call for message in turn for call in message.get("tool_calls", ())]
    if calls:
        joined["tool_calls"] = calls
    return joined


def _parts_of(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content
