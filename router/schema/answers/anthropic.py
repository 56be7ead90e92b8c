"""What the routes of Anthropic's Messages API answer, whole and as a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from lmx.router.http.responses import Answer

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextPiece(Answer):
    """A text."""

    type: Literal["text"]
    text: str
    """The text; empty where a stream's block begins."""


class ThinkingPiece(Answer):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    """The thoughts; empty where a stream's block begins, and with `display: omitted`."""
    signature: str
    """Any text: lmx takes thoughts back without looking at it."""


class ToolUsePiece(Answer):
    """A call that the model makes."""

    type: Literal["tool_use"]
    id: str
    """The call's id, which its result names."""
    name: str
    """The tool that is called."""
    input: dict[str, Any]
    """The arguments; empty where a stream's block begins."""


Piece = Annotated[TextPiece | ThinkingPiece | ToolUsePiece, Field(discriminator="type")]


class ThinkingTokens(Answer):
    """What the tokens of the answer were for."""

    thinking_tokens: int
    """How many of them were thoughts."""


class MessageUsage(Answer):
    """How many tokens it took. The first three together are the prompt."""

    input_tokens: int
    """How many tokens of the prompt were computed. In `message_start`, where that is not known yet,
    all of them."""
    cache_creation_input_tokens: int
    """Always 0."""
    cache_read_input_tokens: int
    """How many tokens of the prompt were in the prefix cache."""
    output_tokens: int
    """How many tokens the answer has."""
    output_tokens_details: ThinkingTokens
    """What they were for."""


class AnthropicMessage(Answer):
    """The whole answer to a conversation."""

    id: str
    """The id of the answer: its job has the same."""
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    """The id of the model that answered."""
    content: list[Piece]
    """The blocks of the answer."""
    stop_reason: StopReason | None
    """Why the answer ended; null before its end."""
    stop_sequence: str | None
    """The stop sequence that ended the answer."""
    usage: MessageUsage
    """How many tokens it took."""
    warnings: list[str] | None = None
    """Sentences about what was done otherwise than it was asked for. They are there only when there
    are some."""


class MessageStart(Answer):
    """The first event: the message without its content."""

    type: Literal["message_start"]
    message: AnthropicMessage


class BlockStart(Answer):
    """A block begins."""

    type: Literal["content_block_start"]
    index: int
    """Its place in the content, from 0."""
    content_block: Piece
    """The block, empty."""


class TextDelta(Answer):
    """More of a text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Answer):
    """More of what the model thinks."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(Answer):
    """The signature of a block of thinking, before its end."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(Answer):
    """More of a call's arguments, as JSON text."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Answer):
    """More of a block."""

    type: Literal["content_block_delta"]
    index: int
    """The block's place in the content."""
    delta: Annotated[
        TextDelta | ThinkingDelta | SignatureDelta | InputDelta, Field(discriminator="type")
    ]
    """What is new."""


class BlockStop(Answer):
    """A block has ended."""

    type: Literal["content_block_stop"]
    index: int
    """The block's place in the content."""


class MessageEnd(Answer):
    """Why the message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(Answer):
    """The message is about to end."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage
    """How many tokens it took."""
    warnings: list[str] | None = None
    """What could not be checked of the whole answer. They are there only when there are some."""


class MessageStop(Answer):
    """The last event."""

    type: Literal["message_stop"]


class MessagePing(Answer):
    """It keeps the connection alive, and may come at any time."""

    type: Literal["ping"]


MessageEvent = Annotated[
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | MessagePing,
    Field(discriminator="type"),
]
"""The data of an event of a stream."""


class TokenCount(Answer):
    """How many tokens a prompt has."""

    input_tokens: int
    """The tokens of the messages, the system prompt and the tools, as the model's template shows
    them."""
