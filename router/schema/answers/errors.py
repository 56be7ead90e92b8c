"""What a refusal and a failure look like, on every route, and within a stream.

What all answers of models have: the tokens that they took, and the time.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lmx.protocol.errors import ErrorCode
from lmx.router.http.responses import Answer


class ErrorObject(Answer):
    """What went wrong. ``message`` says what to do next; ``param`` is the path of the field at
    fault (``messages[2].content``), where one is."""

    message: str
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "rate_limit_error",
        "server_error",
    ]
    param: str | None
    code: ErrorCode = Field(strict=False)
    job_id: str | None = None


class Error(Answer):
    """Every answer that is not well. ``job_id`` is there with ``sync_timeout``: the job goes on,
    and has the answer when it has ended."""

    error: ErrorObject


class Usage(Answer):
    """How many tokens a request took, counted by the worker."""

    prompt_tokens: int
    total_tokens: int


class CachedTokens(Answer):
    """How many of the prompt's tokens were not computed again."""

    cached_tokens: int


class ReasoningTokens(Answer):
    """How many of the answer's tokens are reasoning."""

    reasoning_tokens: int


class GenerationUsage(Usage):
    """``cached_tokens`` is Moonshot's, and the same as in ``prompt_tokens_details``."""

    completion_tokens: int
    cached_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class Timings(Answer):
    """Where the time went, in seconds. ``tokens_per_s`` counts the tokens after each answer's
    first. The last three are there where tokens were guessed ahead."""

    total_s: float
    queue_s: float
    load_s: float
    prefill_s: float
    first_token_s: float
    decode_s: float
    tokens_per_s: float
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    acceptance_rate: float | None = None
