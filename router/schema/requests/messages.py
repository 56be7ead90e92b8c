"""What the messages of a conversation may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, Tag
from pydantic_core import PydanticCustomError

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.schema.validation import LIST, TEXT, TEXT_OR_LIST, Strict

MAX_MESSAGES: Final = 10_000
MAX_PARTS: Final = 1_000
MAX_CALLS: Final = 1_000
MAX_ITEMS: Final = 20_000
"""The limit for the items of all messages together. They are checked on the event loop, at a few
microseconds an item, and an invalid array fails at its first wrong item. Without these two limits
15 MiB of zeros took a minute, and 15 MiB of valid parts took 5 s, in which no stream moved."""


class TextPart(Strict):
    """A piece of a message. Only text: media parts are for models that take media."""

    type: Literal["text"]
    """Text is the only kind of part."""
    text: str
    """A text."""


class FunctionCall(Strict):
    """The call that an earlier assistant message made."""

    name: str
    """The function that was called."""
    arguments: str
    """The arguments, as JSON text."""


class ToolCall(Strict):
    """One of the calls of an earlier assistant message."""

    id: str
    """The call's id, which its result names."""
    type: Literal["function"] = "function"
    """Functions are the only kind of tool."""
    function: FunctionCall
    """The function, and the arguments."""


_PARTS: Final = Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)

Content = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[TextPart], _PARTS, Tag(LIST)],
    TEXT_OR_LIST,
]


class Message(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks. `developer` is a later word for `system`."""
    content: Content | None = None
    """A text, or parts of one. It is optional for the role `assistant` alone."""
    name: str | None = None
    """Who speaks, among several in one role. It is given to the template."""
    tool_call_id: str | None = None
    """The id of the call that this is the result of. It is needed with the role `tool`."""
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    """The calls that the assistant made."""
    reasoning_content: str | None = None
    """What the assistant thought."""

    def plain(self) -> dict[str, Any]:
        """Return the message as a worker takes it.

        Text parts are joined by a line break into one string. Missing content becomes "", because
        templates add it to other text; other absent fields are left out. "developer" is OpenAI's
        later word for "system": templates know the older one, and some silently drop roles that
        they don't know.
        """
        message = self.model_dump(exclude_none=True)
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        message["content"] = content or ""
        if self.role == "developer":
            message["role"] = "system"
        if self.tool_calls == []:
            del message["tool_calls"]
        return message


def _bounded(messages: object) -> object:
    """Refuse too many parts and calls before any of them is checked."""
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
        return messages  # The next check refuses it without looking at any.
    items = 0
    for message in messages:
        if isinstance(message, dict):
            lists = (message.get("content"), message.get("tool_calls"))
            items += sum(len(one) for one in lists if isinstance(one, list))
    if items > MAX_ITEMS:
        raise PydanticCustomError(
            "too_many_items", "too many items", {"items": items, "max_items": MAX_ITEMS}
        )
    return messages


Messages = Annotated[
    list[Message],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    BeforeValidator(_bounded),
]


def check_messages(messages: Sequence[Message]) -> None:
    """Raise :class:`RequestError` for the first message whose fields don't fit its role."""
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")


def _check_message(message: Message, path: str) -> None:
    if message.content is None and message.role != "assistant":
        raise RequestError(
            ErrorCode.MISSING_PARAMETER,
            f"`{path}.content` is required for the role '{message.role}': "
            "a string or an array of text parts.",
            param=f"{path}.content",
        )
    if message.tool_calls and message.role != "assistant":
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`{path}.tool_calls` is allowed for the role 'assistant' only, "
            f"got role '{message.role}'.",
            param=f"{path}.tool_calls",
        )
    if message.tool_call_id is None and message.role == "tool":
        raise RequestError(
            ErrorCode.MISSING_PARAMETER,
            f"`{path}.tool_call_id` is required for the role 'tool': the id of the call that "
            "this is the result of.",
            param=f"{path}.tool_call_id",
        )
