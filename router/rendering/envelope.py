"""What all answers have around their choices: identity, usage, timings. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from lmx.protocol.messages.data import ChoiceEnded, Finished, Usage


@dataclass(slots=True)
class Identity:
    """What all chunks of one completion share. ``created_s`` is Unix time. The model, and with it
    the fingerprint, may change while none can be had (:mod:`lmx.router.workers.fallback`): so the
    first chunk is written, and anything else made of it, after that."""

    completion_id: str
    created_s: int
    model_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class RouterTimings:
    """What the router measured, in seconds from the request's arrival; ``load_s`` is how long
    the model was waited for. ``answers``: how many were made at once."""

    total_s: float
    first_token_s: float
    load_s: float
    answers: int = 1


@dataclass(frozen=True, slots=True)
class Form:
    """What of a request decides the form of its answer. ``choices``: how many it has.
    ``stop``: the stop strings, which tell one that ended a choice from a token id.
    ``continuous_usage``: every chunk of a stream has the usage so far.
    ``token_ids``: those of prompt and answer are in it."""

    choices: int = 1
    logprobs: bool = False
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    continuous_usage: bool = False
    token_ids: bool = False


def fingerprint(version: str, model_id: str, source: str) -> str:
    """Return the ``system_fingerprint``: changes with lmx's version and the model's source."""
    digest = hashlib.sha256("\0".join((version, model_id, source)).encode())
    return f"fp_{digest.hexdigest()[:10]}"


def head_object(identity: Identity, kind: str) -> dict[str, Any]:
    """Return the first fields of an answer or a chunk; ``kind`` is its ``object``."""
    return {
        "id": identity.completion_id,
        "object": kind,
        "created": identity.created_s,
        "model": identity.model_id,
        "system_fingerprint": identity.fingerprint,
    }


def end_object(ended: ChoiceEnded, form: Form) -> dict[str, Any]:
    """Return why a choice ended; ``stop_reason`` is vLLM's: the stop string, or the stop token
    as a number, that ended it."""
    return {"finish_reason": ended.reason.value, "stop_reason": _stop_reason(ended.stop, form.stop)}


def _stop_reason(stop: str | None, strings: tuple[str, ...]) -> str | int | None:
    is_token = stop is not None and stop not in strings and stop.isascii() and stop.isdecimal()
    return int(stop) if stop is not None and is_token else stop


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage, with Moonshot's ``cached_tokens``."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_object(finished: Finished, clocked: RouterTimings) -> dict[str, float]:
    """Return where the time went, in seconds. ``tokens_per_s`` counts the tokens after each
    answer's first, over the time they took; 0 when there was none. Where tokens were guessed ahead:
    how many, and how many and what share of them were right."""
    timings = finished.timings
    later_tokens = finished.usage.completion_tokens - clocked.answers
    rate = later_tokens / timings.decode_s if later_tokens > 0 and timings.decode_s > 0 else 0.0
    shown = {
        "total_s": round(clocked.total_s, 4),
        "queue_s": round(timings.queue_s, 4),
        "load_s": round(clocked.load_s, 4),
        "prefill_s": round(timings.prefill_s, 4),
        "first_token_s": round(clocked.first_token_s, 4),
        "decode_s": round(timings.decode_s, 4),
        "tokens_per_s": round(rate, 2),
    }
    if timings.drafted_tokens > 0:
        shown["drafted_tokens"] = timings.drafted_tokens
        shown["accepted_tokens"] = timings.accepted_tokens
        shown["acceptance_rate"] = round(timings.accepted_tokens / timings.drafted_tokens, 4)
    return shown
