"""The items of a response's input, in the form that workers take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from lmx.router.rendering.responses.sealing import unsealed
from lmx.router.rendering.responses.tools import INPUT, worker_name
from lmx.router.schema.requests.responses.items import (
    AdditionalToolsItem,
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    Item,
    ItemText,
    MessageItem,
    OtherItem,
    Part,
    ReasoningItem,
)
from lmx.router.schema.requests.responses.tools import Tool


def chat_messages(
    instructions: str | None, items: Sequence[Item], *, key: bytes
) -> list[dict[str, Any]]:
    """Return a conversation as the messages of a chat request.

    What the assistant said, thought and called between two others is one message, and so are the
    messages of one other role that follow each other. ``key`` is that of the tokens of thoughts.
    Items that are no part of a conversation are left out.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        made = _message(item, key)
        if made is None:
            continue
        if messages and _is_one_turn(messages[-1], made):
            _join(messages[-1], made)
        else:
            messages.append(made)
    return messages


def further_tools(items: Sequence[Item]) -> list[Tool]:
    """Return the tools that items bring with them."""
    return [tool for item in items if isinstance(item, AdditionalToolsItem) for tool in item.tools]


def unread_items(items: Sequence[Item], key: bytes) -> list[str]:
    """Return the names of what is left out of the conversation."""
    names = []
    for item in items:
        if isinstance(item, OtherItem):
            names.append(f"input.{item.type}")
        elif isinstance(item, ReasoningItem) and _is_foreign(item, key):
            names.append("input.encrypted_content")
    return list(dict.fromkeys(names))


def _is_foreign(item: ReasoningItem, key: bytes) -> bool:
    token = item.encrypted_content
    return bool(token) and not item.content and unsealed(token or "", key) is None


def _message(item: Item, key: bytes) -> dict[str, Any] | None:
    match item:
        case MessageItem():
            role = "system" if item.role == "developer" else item.role
            between = "" if role == "assistant" else "\n"
            return {"role": role, "content": _text(item.content, between)}
        case ReasoningItem():
            thoughts = _thoughts(item, key)
            return (
                {"role": "assistant", "content": "", "reasoning_content": thoughts}
                if (thoughts)
                else None
            )
        case FunctionCallItem():
            arguments = item.arguments
            if not isinstance(arguments, str):
                arguments = orjson.dumps(arguments).decode()
            return _call(item, arguments)
        case CustomCallItem():
            return _call(item, orjson.dumps({INPUT: item.input}).decode())
        case CallOutputItem():
            content = _text(item.output, "\n")
            return {"role": "tool", "tool_call_id": item.call_id, "content": content}
    return None


def _call(item: FunctionCallItem | CustomCallItem, arguments: str) -> dict[str, Any]:
    function = {"name": worker_name(item.name, item.namespace), "arguments": arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _thoughts(item: ReasoningItem, key: bytes) -> str:
    if item.content:
        return _text(item.content, "")
    if item.encrypted_content:
        kept = unsealed(item.encrypted_content, key)
        if kept is not None:
            return kept
    return _text(item.summary, "\n\n")


def _text(content: str | Sequence[Part] | None, between: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return between.join(
        part.text if isinstance(part, ItemText) else part.refusal for part in content
    )


def _is_one_turn(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["role"] != "tool" and bool(one["role"] == other["role"])


def _join(message: dict[str, Any], more: dict[str, Any]) -> None:
    between = "" if message["role"] == "assistant" else "\n"
    message["content"] = between.join(filter(None, (message["content"], more["content"])))
    if "reasoning_content" in more:
        message["reasoning_content"] = (
            message.get("reasoning_content", "") + more["reasoning_content"]
        )
    if "tool_calls" in more:
        message["tool_calls"] = [*message.get("tool_calls", ()), *more["tool_calls"]]
