"""The items of a response's input, in the form that workers take. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.media.source import PartSource
from lmx.router.rendering.responses.sealing import compaction_key, is_sealed, unsealed
from lmx.router.rendering.responses.tools import INPUT, worker_name
from lmx.router.schema.requests.conversation.messages import placeholder
from lmx.router.schema.requests.conversation.turns import content_of, joined_turns
from lmx.router.schema.requests.responses.items import (
    AdditionalToolsItem,
    CallOutputItem,
    CompactionItem,
    CustomCallItem,
    FunctionCallItem,
    Item,
    ItemAudio,
    ItemFile,
    ItemImage,
    ItemRefusal,
    ItemText,
    MessageItem,
    OtherItem,
    Part,
    ReasoningItem,
)
from lmx.router.schema.requests.responses.tools import Tool
from lmx.router.schema.validation import invalid

_SUMMARY: Final = (
    "[Here the conversation was shortened: what was answered and done until now is not in it any "
    "more. This summary, which the assistant wrote, takes its place.]\n{}\n[End of the summary.]"
)

_MOST_THOUGHTS: Final = 16 * 1024 * 1024
"""The most characters of thoughts that tokens may stand for in one conversation: it is beyond every
model's context. A token is compressed, and the same one may come often."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as workers take it."""

    messages: list[dict[str, Any]]
    """The messages of a chat request. Their media are numbered by their place in ``media``."""
    media: tuple[PartSource, ...]
    """Where the images and sounds come from."""


def conversation_of(
    instructions: str | None,
    items: Sequence[Item],
    *,
    earlier: int,
    earlier_field: str,
    key: bytes,
    owner: str | None,
) -> Conversation:
    """Return a conversation in the form of a chat request.

    What the assistant answered, thought and called between two others is one message, and so are
    the messages of one other role that follow each other. The field ``earlier_field`` stands for
    the first ``earlier`` items. ``key`` is that of the tokens of thoughts, and ``owner`` whose
    summaries are read. Items that are no part of a conversation are left out, and so is what the
    last summary stands for: the assistant's items and the outputs of calls that come before it.
    Raises :class:`RequestError` for media that the assistant can't have sent, or that name no
    content, for a summary of another lmx or key, and for more thoughts than any model reads.
    """
    messages: list[dict[str, Any]] = []
    thoughts = 0
    media: list[PartSource] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    places = [index for index, item in enumerate(items) if isinstance(item, CompactionItem)]
    summary = places[-1] if places else -1
    for index, item in enumerate(items):
        if index < summary and not (isinstance(item, MessageItem) and item.role != "assistant"):
            continue
        path = earlier_field if index < earlier else f"input[{index - earlier}]"
        if isinstance(item, CompactionItem):
            content = _SUMMARY.format(summary_of(item, path, key, owner))
            messages.append({"role": "user", "content": content})
            continue
        message = _message(item, path, media, key)
        if message is None:
            continue
        messages.append(message)
        if isinstance(item, ReasoningItem) and not item.content:
            thoughts += len(message["reasoning_content"])
            if thoughts > _MOST_THOUGHTS:
                raise RequestError(
                    ErrorCode.REQUEST_TOO_LARGE,
                    f"The thoughts of the conversation have more than {_MOST_THOUGHTS} characters: "
                    "leave out what `encrypted_content` of earlier items has of them.",
                    param=path,
                )
    return Conversation(joined_turns(messages), tuple(media))


def summary_of(item: CompactionItem, path: str, key: bytes, owner: str | None) -> str:
    """Return the summary of the item at ``path``. Raises :class:`RequestError` for one that this
    lmx did not make for this owner."""
    summary = unsealed(item.encrypted_content, compaction_key(key, owner))
    if summary is None:
        raise invalid(
            f"{path}.encrypted_content" if path.endswith("]") else path,
            "has a compaction that this lmx did not make for this API key, or that was changed on "
            "its way: another server's, another key's, or one from before `security.admin_key` was "
            "changed. Leave the item out and send the conversation, or compact it here.",
        )
    return summary


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
    return bool(token) and not item.content and not is_sealed(token or "", key)


def _message(item: Item, path: str, media: list[PartSource], key: bytes) -> dict[str, Any] | None:
    match item:
        case MessageItem():
            role = "system" if item.role == "developer" else item.role
            if role == "user":
                content = _seen(item.content, f"{path}.content", media)
            else:
                content = _text(item.content, "" if role == "assistant" else "\n", path)
            return {"role": role, "content": content}
        case ReasoningItem():
            thoughts = _thoughts(item, path, key)
            if not thoughts:
                return None
            return {"role": "assistant", "content": "", "reasoning_content": thoughts}
        case FunctionCallItem():
            # An object became a text when it was checked.
            return _call(item, str(item.arguments))
        case CustomCallItem():
            return _call(item, orjson.dumps({INPUT: item.input}).decode())
        case CallOutputItem():
            output = _seen(item.output, f"{path}.output", media)
            return {"role": "tool", "tool_call_id": item.call_id, "content": output}
    return None


def _call(item: FunctionCallItem | CustomCallItem, arguments: str) -> dict[str, Any]:
    function = {"name": worker_name(item.name, item.namespace), "arguments": arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _thoughts(item: ReasoningItem, path: str, key: bytes) -> str:
    if item.content:
        return _text(item.content, "", path)
    if item.encrypted_content:
        kept = unsealed(item.encrypted_content, key)
        if kept is not None:
            return kept
    return _text(item.summary, "\n\n", path)


def _text(content: str | Sequence[Part] | None, between: str, path: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = _text_of(part)
        if text is None:
            param = f"{path}.content[{index}]"
            raise invalid(
                param,
                f"is of the type '{part.type}', which only messages of the role 'user' and "
                "outputs of calls may have.",
            )
        texts.append(text)
    return between.join(texts)


def _text_of(part: Part) -> str | None:
    if isinstance(part, ItemText):
        return part.text
    return part.refusal if isinstance(part, ItemRefusal) else None


def _seen(
    content: str | Sequence[Part] | None, path: str, media: list[PartSource]
) -> str | list[dict[str, Any]]:
    """Return the content for a model: one string if that is all text. ``media`` gets where the rest
    comes from."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        if isinstance(part, ItemImage | ItemAudio | ItemFile):
            found = part.content(f"{path}[{index}]")
        else:
            found = _text_of(part) or ""
        if not isinstance(found, str):
            parts.append(placeholder(found, media))
        elif found:
            parts.append({"type": "text", "text": found})
    return content_of(parts)
