"""Anthropic's messages, whole and as a stream. Pure.

Source: the documentation of Anthropic's Messages API ("Create a Message", "Streaming messages").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

import orjson
from pydantic import Field

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import ChoiceEnded, Delta, Usage
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.http.api_family import ANTHROPIC, named_event
from lmx.router.http.responses import Answer
from lmx.router.rendering.accumulator import AccumulatedChoice, arguments_object
from lmx.router.rendering.answer_format import Beginning, Ending, Generated, warnings_object
from lmx.router.rendering.envelope import Identity, Warnings

_DELTAS: Final = {
    DeltaKind.CONTENT: (b"text_delta", b"text"),
    DeltaKind.REASONING: (b"thinking_delta", b"thinking"),
    DeltaKind.TOOL_CALL: (b"input_json_delta", b"partial_json"),
}
"""The type of a piece, and its field."""

_STOP: Final = named_event({"type": "message_stop"})


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_STOP_REASONS: Final[dict[FinishReason, StopReason]] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}


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


class MessageEnd(Answer):
    """Why the message ended."""

    stop_reason: StopReason | None
    """Why the answer ended; null before its end."""
    stop_sequence: str | None
    """The stop sequence that ended the answer."""


class AnthropicMessage(MessageEnd, Warnings):
    """The whole answer to a conversation."""

    id: str
    """The id of the answer: its job has the same."""
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    """The id of the model that answered."""
    content: Sequence[Piece]
    """The blocks of the answer."""
    usage: MessageUsage
    """How many tokens it took."""


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


class MessageDelta(Answer):
    """The message is about to end."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage
    """How many tokens it took."""
    warnings: NotRequired[list[str] | None]
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


class MessageAnswer:
    """See :class:`lmx.router.rendering.answer_format.AnswerFormat`.

    ``stops`` are the request's stop sequences. With ``shows_thinking`` false the blocks of thinking
    have a signature and no text.
    """

    choices: Final = 1
    retained_logprobs: Final = None

    def __init__(self, stops: Sequence[str], *, shows_thinking: bool) -> None:
        self._stops = stops
        self._shows_thinking = shows_thinking

    def writer(self, identity: Identity, beginning: Beginning) -> MessageWriter:
        return MessageWriter(identity, beginning, self._stops, self._shows_thinking)

    def complete_answer(self, made: Generated) -> AnthropicMessage:
        """Return the whole message, or the part that exists until now, which has no reason for its
        end."""
        beginning, ending = made.beginning, made.ending
        usage = Usage(beginning.prompt_tokens, 0) if ending is None else ending.finished.usage
        end = _end_object(made.ends[0], self._stops) if 0 in made.ends else _NO_END
        blocks = self._blocks(made.choices[0])
        return _message(made.identity, beginning, blocks, end, usage, ending)

    def _blocks(self, made: AccumulatedChoice) -> list[Piece]:
        blocks: list[Piece] = []
        for part in made.parts():
            if part.call is not None:
                given = arguments_object(part.text)
                blocks.append(_call_block(part.call.call_id, part.call.name, given))
            elif part.kind is DeltaKind.REASONING:
                shown = part.text if self._shows_thinking else ""
                signature = _signature(hashlib.sha256(part.text.encode()))
                blocks.append({"type": "thinking", "thinking": shown, "signature": signature})
            else:
                blocks.append({"type": "text", "text": part.text})
        return blocks


class MessageWriter:
    """Writes the events of one stream. See :class:`lmx.router.rendering.answer_format.EventWriter`.

    What is the same in all deltas of a block is encoded once. Blocks begin with their first piece,
    and end with the first piece of the next one.
    """

    def __init__(
        self, identity: Identity, beginning: Beginning, stops: Sequence[str], shows_thinking: bool
    ) -> None:
        self._identity = identity
        self._beginning = beginning
        self._stops = stops
        self._shows_thinking = shows_thinking
        self._index = -1
        self._kind: DeltaKind | None = None
        """That of the open block; None while none is open."""
        self._call: int | None = None
        """The open block's call."""
        self._before = b""
        """The beginning of each of the open block's deltas."""
        self._thoughts = hashlib.sha256()
        self._end = _NO_END

    def first(self) -> bytes:
        """Return the message without its content."""
        message = _message(
            self._identity, self._beginning, [], _NO_END, Usage(self._beginning.prompt_tokens, 0)
        )
        return _event("message_start", {"message": message})

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        pieces: list[bytes] = []
        for delta in deltas:
            call = delta.call
            kind = delta.kind if call is None else DeltaKind.TOOL_CALL
            if not delta.text and call is None:
                continue
            if kind is not self._kind or (call is not None and call.index != self._call):
                pieces += (self._close(), self._open(kind, delta))
            if kind is DeltaKind.REASONING:
                self._thoughts.update(delta.text.encode())
                if not self._shows_thinking:
                    continue
            if delta.text:
                pieces += (self._before, orjson.dumps(delta.text), b"}}\n\n")
        return b"".join(pieces)

    def ends(self, ended: Sequence[ChoiceEnded]) -> Iterator[bytes]:
        """Yield the end of the open block."""
        self._end = _end_object(ended[0], self._stops)
        yield self._close()

    def last(self, ending: Ending) -> bytes:
        """Return why the message ended, with its usage, and its end."""
        usage = _usage_object(ending.finished.usage)
        # The other warnings were in the first event.
        late = warnings_object(Beginning(), ending)
        return _event("message_delta", {"delta": self._end, "usage": usage, **late}) + _STOP

    def failed(self, error: LmxError, request_id: str | None) -> bytes:
        return ANTHROPIC.error_event(error, request_id)

    def _open(self, kind: DeltaKind, delta: Delta) -> bytes:
        self._index += 1
        self._kind = kind
        block: Piece
        if delta.call is not None:
            self._call = delta.call.index
            block = _call_block(delta.call.call_id, delta.call.name, {})
        elif kind is DeltaKind.REASONING:
            self._thoughts = hashlib.sha256()
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            block = {"type": "text", "text": ""}
        piece, field = _DELTAS[kind]
        self._before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (self._index, piece, field)
        )
        return _event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        signed = b""
        if self._kind is DeltaKind.REASONING:
            delta = {"type": "signature_delta", "signature": _signature(self._thoughts)}
            signed = _event("content_block_delta", {"index": self._index, "delta": delta})
        self._kind = self._call = None
        return signed + _event("content_block_stop", {"index": self._index})


_NO_END: Final[MessageEnd] = {"stop_reason": None, "stop_sequence": None}


def _message(
    identity: Identity,
    beginning: Beginning,
    blocks: Sequence[Piece],
    end: MessageEnd,
    usage: Usage,
    ending: Ending | None = None,
) -> AnthropicMessage:
    return {
        "id": identity.completion_id,
        "type": "message",
        "role": "assistant",
        "model": identity.model_id,
        "content": blocks,
        "stop_reason": end["stop_reason"],
        "stop_sequence": end["stop_sequence"],
        "usage": _usage_object(usage),
        **warnings_object(beginning, ending),
    }


def _end_object(ended: ChoiceEnded, stops: Sequence[str]) -> MessageEnd:
    """Return why a message ended."""
    if ended.reason is FinishReason.STOP and ended.stop in stops:
        return {"stop_reason": "stop_sequence", "stop_sequence": ended.stop}
    return {"stop_reason": _STOP_REASONS[ended.reason], "stop_sequence": None}


def _usage_object(usage: Usage) -> MessageUsage:
    """Return Anthropic's usage: ``input_tokens`` are those that the cache did not have. Before the
    end it is not known how many these are."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _call_block(call_id: str | None, name: str | None, given: dict[str, Any]) -> ToolUsePiece:
    return {"type": "tool_use", "id": call_id or "", "name": name or "", "input": given}


def _signature(thoughts: Any) -> str:
    """Return what stands where Anthropic proves that thoughts are its own: lmx takes any thoughts
    back, but clients expect a text that is not empty."""
    return f"lmx-{thoughts.hexdigest()[:32]}"


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return named_event({"type": name, **fields})
