"""What POST /v1/completions answers, whole and as a stream."""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer
from lmx.router.schema.answers.errors import GenerationUsage, Timings


class TextLogprobLists(Answer):
    """Tokens in lists, as it was before chat. A prompt's first token has null for both."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextPiece(Answer):
    """What a chunk says of one choice. Its last one has the finish reason."""

    index: int
    text: str
    logprobs: TextLogprobLists | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class TextChoice(Answer):
    """Answer ``j`` to prompt ``i`` has the index ``i * n + j``."""

    index: int
    text: str
    logprobs: TextLogprobLists | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class TextCompletion(Answer):
    """What comes after the prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: GenerationUsage
    timings: Timings
    warnings: list[str] | None = None


class TextCompletionChunk(Answer):
    """The data of one event. The last one has the timings, and the usage where it is asked for;
    after it comes ``[DONE]``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextPiece]
    usage: GenerationUsage | None = None
    timings: Timings | None = None
    warnings: list[str] | None = None
