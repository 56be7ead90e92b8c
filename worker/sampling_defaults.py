"""What a request that names no temperature or limit gets. Pure.

Order: the request, the model's configuration (the spec), its generation_config.json, then
temperature 0.7 and top_p 1.0.
"""

from __future__ import annotations

from typing import Final

from lmx.protocol.data import Sampling
from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.specs import WorkerSpec
from lmx.worker.engine import ModelFacts, RowSampling

DEFAULT_TEMPERATURE: Final = 0.7
DEFAULT_TOP_P: Final = 1.0


def resolve_sampling(
    asked: Sampling, spec: WorkerSpec, facts: ModelFacts, random_seed: int
) -> RowSampling:
    """Return how the row is sampled; ``random_seed`` is taken when the request has none."""
    return RowSampling(
        temperature=_first(
            asked.temperature, spec.temperature, facts.temperature, DEFAULT_TEMPERATURE
        ),
        top_p=_first(asked.top_p, spec.top_p, facts.top_p, DEFAULT_TOP_P),
        seed=random_seed if asked.seed is None else asked.seed,
    )


def resolve_max_tokens(
    asked: int | None, spec: WorkerSpec, prompt_tokens: int, context_tokens: int
) -> int:
    """Return how many tokens the answer may have: at least 1.

    Raises :class:`RequestError` (``context_length_exceeded``) when the prompt leaves no room
    for a single one. A limit that is too high is lowered, not refused.
    """
    room = context_tokens - prompt_tokens
    if room < 1:
        raise RequestError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"The messages are {prompt_tokens} tokens long, and the model's context of "
            f"{context_tokens} tokens has to hold them and the answer: shorten them.",
            param="messages",
        )
    wanted = asked if asked is not None else spec.default_max_tokens
    limits = [room, wanted, spec.max_tokens_limit]
    return max(1, min(limit for limit in limits if limit is not None))


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
