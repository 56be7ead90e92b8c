"""What POST /v1/chat/completions answers, whole and as a stream."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer
from lmx.router.schema.answers.errors import GenerationUsage, Timings

FinishReason = Literal["stop", "length", "tool_calls"]


class AlternativeToken(Answer):
    """A token that could have been. ``bytes`` tell a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(AlternativeToken):
    """A token of the answer, with the likeliest ones in its place."""

    top_logprobs: list[AlternativeToken]


class ChatLogprobs(Answer):
    """The tokens of the content, one by one."""

    content: list[TokenLogprobs]
    refusal: None


class CalledFunction(Answer):
    """The function's name, and its arguments as JSON text."""

    name: str
    arguments: str


class CalledTool(Answer):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Answer):
    """The model's turn. ``content`` is null where there are only calls."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None


class ChatChoice(Answer):
    """One of the answers. ``stop_reason``: the stop string, or the stop token, that ended it."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatCompletion(Answer):
    """The whole answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: GenerationUsage
    timings: Timings
    warnings: list[str] | None = None
    prompt_token_ids: list[int] | None = None


class CalledFunctionPiece(Answer):
    """More of the arguments, and the name with a call's beginning."""

    name: str | None = None
    arguments: str


class CalledToolPiece(Answer):
    """A piece of the call at ``index``. ``id`` and ``type`` come with its beginning alone."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionPiece


class ChatDelta(Answer):
    """What a chunk adds to a choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledToolPiece] | None = None


class ChatChunkChoice(Answer):
    """What a chunk says of one choice. Its last one has the finish reason."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletionChunk(Answer):
    """The data of one event. The last one has the timings, and the usage where it is asked for;
    after it comes ``[DONE]``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: GenerationUsage | None = None
    timings: Timings | None = None
    warnings: list[str] | None = None
    prompt_token_ids: list[int] | None = None
