"""Puts a conversation together of messages as workers take them: those of one role that follow each
other are one turn, and results of calls that are not there are told as such. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def add_message(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Add a message to a conversation, or to its last message if both are of one turn. The output
    of a call is always a message of its own."""
    if messages and messages[-1]["role"] == message["role"] != "tool":
        _join(messages[-1], message)
    else:
        messages.append(message)


def with_stray_results(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return a conversation in which the results of calls that it does not have are said by the
    user, with words about what they are; None if it has no such results.

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
    shown: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            # The results of the calls before it stay together.
            (waiting if index in stray else shown).append(message)
            continue
        joined = bool(waiting)
        _tell(shown, waiting)
        if joined:
            add_message(shown, dict(message))
        else:
            shown.append(message)
    _tell(shown, waiting)
    return shown


def _tell(messages: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """Move results that belong to no call to the end of ``messages``."""
    if results and messages:
        messages[-1] = dict(messages[-1])  # It is the request's own until here.
    for result in results:
        of_tool = f" of the tool {result['name']}" if result.get("name") else ""
        head = f"[The result of a call{of_tool} that is not in this conversation:]"
        parts = joined_parts(_parts_of(head), _parts_of(result["content"]))
        is_text = all(part["type"] == "text" for part in parts)
        content = parts[0]["text"] if is_text else parts
        add_message(messages, {"role": "user", "content": content})
    results.clear()


def joined_parts(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of both. Texts that follow each other are one, with a line break between."""
    if one and other and one[-1]["type"] == other[0]["type"] == "text":
        text = f"{one[-1]['text']}\n{other[0]['text']}"
        return [*one[:-1], {"type": "text", "text": text}, *other[1:]]
    return [*one, *other]


def _join(message: dict[str, Any], more: dict[str, Any]) -> None:
    before, after = message["content"], more["content"]
    if message["role"] == "assistant":
        # The texts of an answer are pieces of one text: nothing was between them.
        message["content"] = before + after
    elif isinstance(before, str) and isinstance(after, str):
        message["content"] = "\n".join(filter(None, (before, after)))
    else:
        message["content"] = joined_parts(_parts_of(before), _parts_of(after))
    if "reasoning_content" in more:
        message["reasoning_content"] = (
            message.get("reasoning_content", "") + more["reasoning_content"]
        )
    if "tool_calls" in more:
        message["tool_calls"] = [*message.get("tool_calls", ()), *more["tool_calls"]]


def _parts_of(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content
