"""What a refusal and a failure look like, on every route, and within a stream.

What all answers of models have: the tokens that they took, and the time.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from lmx.protocol.errors import ErrorCode
from lmx.router.http.api_family import ANTHROPIC, OLLAMA, OPENAI, RESPONSES, ApiFamily
from lmx.router.http.responses import Answer


class ErrorObject(Answer):
    """What went wrong."""

    message: str
    """What went wrong and what to do next, for people."""
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "rate_limit_error",
        "server_error",
    ]
    """The kind of error."""
    param: str | None
    """The path of the field at fault (`messages[2].content`), where one is."""
    code: ErrorCode = Field(strict=False)
    """What went wrong, for programs."""
    job_id: str | None = None
    """It is there with `sync_timeout`: the job goes on, and has the answer when it has ended."""


class Error(Answer):
    """Every answer that is not well."""

    error: ErrorObject
    """What went wrong."""


class AnthropicErrorObject(Answer):
    """What went wrong."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "conflict_error",
        "request_too_large",
        "rate_limit_error",
        "overloaded_error",
        "timeout_error",
        "api_error",
    ]
    """The kind of error, by its status."""
    message: str
    """What went wrong and what to do next, for people."""
    code: ErrorCode = Field(strict=False)
    """What went wrong, for programs."""
    param: str | None = None
    """The path of the field at fault, where one is."""
    details: dict[str, Any] | None = None
    """It is there where Anthropic's libraries go on by themselves without a field."""
    job_id: str | None = None
    """It is there with `sync_timeout`: the job goes on, and has the answer when it has ended."""


class AnthropicError(Answer):
    """Every answer of the Messages API that is not well; those of all other routes too, with the
    header `anthropic-version`."""

    type: Literal["error"]
    """It is always the same."""
    error: AnthropicErrorObject
    """What went wrong."""
    request_id: str | None = None
    """The request's id, as in the headers. The error that ends a stream has none."""


class OllamaError(Answer):
    """Every answer of Ollama's API that is not well."""

    error: str
    """What went wrong and what to do next, for people."""
    code: ErrorCode = Field(strict=False)
    """What went wrong, for programs."""
    param: str | None = None
    """The path of the field at fault, where one is."""
    job_id: str | None = None
    """It is there with `sync_timeout`: the job goes on, and has the answer when it has ended."""


ERROR_BODIES: Final[dict[ApiFamily, type[Answer]]] = {
    OPENAI: Error,
    RESPONSES: Error,
    ANTHROPIC: AnthropicError,
    OLLAMA: OllamaError,
}
"""The shape of each family's errors."""


class Usage(Answer):
    """How many tokens a request took, counted by the worker."""

    prompt_tokens: int
    """Tokens of the prompt."""
    total_tokens: int
    """All tokens."""


class PromptTokens(Answer):
    """What the prompt's tokens are."""

    cached_tokens: int
    """Tokens of the prompt that were not computed again."""
    image_tokens: int | None = None
    """Tokens of the prompt that stand for images. It is there where there are some, as the next two
    are."""
    audio_tokens: int | None = None
    """Tokens of the prompt that stand for sounds."""
    video_tokens: int | None = None
    """Tokens of the prompt that stand for the frames of videos."""


class ReasoningTokens(Answer):
    """How many of the answer's tokens are reasoning."""

    reasoning_tokens: int
    """Tokens of the answers that are reasoning."""


class GenerationUsage(Usage):
    """How many tokens a request took that generates text."""

    completion_tokens: int
    """Tokens of the answers, reasoning included."""
    cached_tokens: int
    """The same as in `prompt_tokens_details`, in Moonshot's place."""
    prompt_tokens_details: PromptTokens
    """Which of the prompt's tokens were cheaper, and which are no text."""
    completion_tokens_details: ReasoningTokens
    """What the answers' tokens were for."""


class Timings(Answer):
    """Where the time went, in seconds."""

    total_s: float
    """From the request's arrival to the answer's end."""
    queue_s: float
    """How long the request waited for its turn in the worker."""
    load_s: float
    """How long the model was waited for."""
    prefill_s: float
    """How long the prompt took."""
    first_token_s: float
    """From the request's arrival to the first token."""
    decode_s: float
    """From the first token to the last."""
    tokens_per_s: float
    """Tokens a second, after each answer's first token."""
    drafted_tokens: int | None = None
    """Tokens that were guessed ahead. It is there where there were some, as the next two are."""
    accepted_tokens: int | None = None
    """How many of the guesses were right."""
    acceptance_rate: float | None = None
    """What share of the guesses was right."""
