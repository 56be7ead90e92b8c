"""What a request that names no value gets. Pure.

Order: the request, the model's configuration (the spec), its generation_config.json, then
temperature 0.7 and what changes nothing for all else.
"""

from __future__ import annotations

from typing import Final

from lmx.protocol.data import Sampling
from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.specs import WorkerSpec
from lmx.worker.engine import ModelFacts, RowSampling

DEFAULT_TEMPERATURE: Final = 0.7
DEFAULT_TOP_P: Final = 1.0

_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF


def resolve_sampling(
    asked: Sampling, spec: WorkerSpec, facts: ModelFacts, random_seed: int
) -> RowSampling:
    """Return how a row is sampled; ``random_seed`` is taken when the request has none.

    Raises :class:`RequestError` for a token id that the model doesn't have.
    """
    for bias in asked.logit_bias:
        _check_token(bias.token, facts, "logit_bias")
    for token in asked.stop_token_ids:
        _check_token(token, facts, "stop_token_ids")
    return RowSampling(
        temperature=_first(
            asked.temperature, spec.temperature, facts.temperature, DEFAULT_TEMPERATURE
        ),
        top_p=_first(asked.top_p, spec.top_p, facts.top_p, DEFAULT_TOP_P),
        top_k=max(0, int(_first(asked.top_k, spec.top_k, facts.top_k, 0))),
        min_p=_first(asked.min_p, spec.min_p, facts.min_p, 0.0),
        typical_p=_first(asked.typical_p, facts.typical_p, 1.0),
        repetition_penalty=_first(
            asked.repetition_penalty, spec.repetition_penalty, facts.repetition_penalty, 1.0
        ),
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        logit_bias=tuple((bias.token, bias.bias) for bias in asked.logit_bias),
        min_tokens=asked.min_tokens,
        end_ids=(frozenset() if asked.ignore_eos else facts.eos_token_ids)
        | frozenset(asked.stop_token_ids),
        seed=random_seed if asked.seed is None else asked.seed,
    )


def answer_seed(seed: int, index: int) -> int:
    """Return the seed of one of several answers (splitmix64); the first has the request's own."""
    if index == 0:
        return seed
    mixed = (seed + index * 0xD1B5_4A32_D192_ED03) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _WORD
    return mixed ^ (mixed >> 31)


def resolve_max_tokens(
    asked: int | None, spec: WorkerSpec, prompt_tokens: int, context_tokens: int, param: str
) -> int:
    """Return how many tokens an answer may have: at least 1.

    Raises :class:`RequestError` (``context_length_exceeded``) when the prompt leaves no room
    for a single one. A limit that is too high is lowered, not refused.
    """
    room = context_tokens - prompt_tokens
    if room < 1:
        raise RequestError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"The {param} {'is' if param == 'prompt' else 'are'} {prompt_tokens} tokens long, and "
            f"the model's context of {context_tokens} tokens has to hold them and the answer: "
            "shorten them.",
            param=param,
        )
    wanted = asked if asked is not None else spec.default_max_tokens
    limits = [room, wanted, spec.max_tokens_limit]
    return max(1, min(limit for limit in limits if limit is not None))


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _check_token(token: int, facts: ModelFacts, param: str) -> None:
    if not 0 <= token < facts.vocabulary_size:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`{param}` has the token {token}, and the model's tokens are 0 to "
            f"{facts.vocabulary_size - 1}.",
            param=param,
        )
