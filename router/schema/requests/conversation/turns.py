"""Puts a conversation together of messages as workers take them: those of one role that follow each
other are one turn. Pure."""

from __future__ import annotations

from typing import Any


def add_message(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Add a message to a conversation, or to its last message if both are of one turn. The output
    of a call is always a message of its own."""
    if messages and messages[-1]["role"] == message["role"] != "tool":
        _join(messages[-1], message)
    else:
        messages.append(message)


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
