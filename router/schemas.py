"""What a chat request may hold. Types are strict: a boolean is no integer, "1" no number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.invalid import describe_invalid
from lmx.router.unsupported import refuse_unsupported

MAX_MESSAGES: Final = 10_000
MAX_PARTS: Final = 1_000
"""Checking happens on the event loop, a few microseconds an item, and an array that fails, fails
at its first wrong item: 15 MiB of zeros took a minute otherwise, in which no stream moved."""

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1

# The tag of a union member becomes part of an error's location; a name in angle brackets can
# be no field's, so that `invalid.param_path` can leave it out.
_TEXT: Final = "<text>"
_LIST: Final = "<list>"


def _text_or_list(value: object) -> str | None:
    if isinstance(value, str):
        return _TEXT
    return _LIST if isinstance(value, list) else None


_TEXT_OR_LIST: Final = Discriminator(
    _text_or_list,
    custom_error_type="text_or_list",
    custom_error_message="a string or an array",
)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class TextPart(_Strict):
    """A piece of a message. Only text: media parts are for models that take media."""

    type: Literal["text"]
    text: str


class FunctionCall(_Strict):
    """The call that an earlier assistant message made. ``arguments`` is JSON text."""

    name: str
    arguments: str


class ToolCall(_Strict):
    """One of the calls of an earlier assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


_PARTS: Final = Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)

Content = Annotated[
    Annotated[str, Tag(_TEXT)] | Annotated[list[TextPart], _PARTS, Tag(_LIST)],
    _TEXT_OR_LIST,
]


class Message(_Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return the message as a worker takes it: text parts joined by a line break into one
        string, no content as "" (templates add it to other text), other absent fields left
        out. "developer" is OpenAI's later word for "system"; templates know the older one, and
        some drop in silence what they don't know."""
        message = self.model_dump(exclude_none=True)
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        message["content"] = content or ""
        if self.role == "developer":
            message["role"] = "system"
        return message


class StreamOptions(_Strict):
    """``include_usage``: a last chunk carries the usage, all others ``"usage": null``."""

    include_usage: bool | None = None


_StopText = Annotated[str, Field(min_length=1)]


class ChatRequest(_Strict):
    """The body of POST /v1/chat/completions, as far as lmx honours it by now.

    A field of the API that is not here is either refused (:mod:`lmx.router.unsupported`) or
    unknown and ignored. None means the same as leaving a field out.
    """

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: (
        Annotated[
            Annotated[_StopText, Tag(_TEXT)]
            | Annotated[list[_StopText], Field(max_length=4), Tag(_LIST)],
            _TEXT_OR_LIST,
        ]
        | None
    ) = None
    seed: Annotated[int, Field(ge=_INT64_MIN, le=_INT64_MAX)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def token_limit(self) -> int | None:
        """How many tokens the answer may have, under either of the two names."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The stop strings, none to four."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that carries the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def parse_chat(body: dict[str, Any]) -> ChatRequest:
    """Return the checked request. Raises :class:`RequestError` (400) for the first fault."""
    try:
        request = ChatRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise describe_invalid(
            first["type"], first["loc"], first.get("ctx", {}), first["input"]
        ) from error
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")
    _check_token_limits(request)
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            "`stream_options` is allowed with `stream: true` only: remove it, or stream.",
            param="stream_options",
        )
    refuse_unsupported(body)
    return request


def unknown_fields(body: dict[str, Any]) -> Iterator[str]:
    """Yield the names in the body that no field of :class:`ChatRequest` has."""
    return (name for name in body if name not in ChatRequest.model_fields)


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


def _check_token_limits(request: ChatRequest) -> None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`max_tokens` ({old}) and `max_completion_tokens` ({new}) differ: they are two "
            "names of one limit, send one of them.",
            param="max_tokens",
        )
