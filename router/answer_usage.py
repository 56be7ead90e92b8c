"""What all answers of models have: the tokens that they took, and the time."""

from __future__ import annotations

from lmx.router.answer_types import Answer


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
