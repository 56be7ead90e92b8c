"""The fields that all answers have around their choices: identity, usage, timings. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lmx.protocol.messages.data import ChoiceEnded, Finished, Usage
from lmx.protocol.states import FinishReason


@dataclass(slots=True)
class Identity:
    """The fields that all chunks of one completion share.

    The model, and with it the fingerprint, may change until one is available
    (:mod:`lmx.router.workers.fallback`). So the first chunk, and everything else made of an
    identity, is written after that.
    """

    completion_id: str
    created_s: int
    """Unix time."""
    model_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class RouterTimings:
    """The times that the router measured, in seconds from the request's arrival."""

    total_s: float
    first_token_s: float
    load_s: float
    """How long the request waited for its model."""
    answers: int = 1
    """How many answers were made at once."""


@dataclass(frozen=True, slots=True)
class Form:
    """The options of a request that decide the form of its answer."""

    choices: int = 1
    """How many choices the answer has."""
    logprobs: bool = False
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    """The stop strings. They tell a stop string that ended a choice from a token id."""
    continuous_usage: bool = False
    """Whether every chunk of a stream has the usage until then."""
    token_ids: bool = False
    """Whether the answer has the tokens of the prompt and of the answer."""
    functions: bool = False
    """Whether a call is a ``function_call``, as OpenAI's API had it before tools."""
    prompt_logprobs: bool = False
    """Whether the answer has the logprobs of the prompt's tokens."""
    calls_stop: bool = False
    """Whether the end of an answer with calls is ``stop``."""


def utc_text(at_s: int) -> str:
    """Return a Unix time as RFC 3339 has it, in UTC: ``2026-01-31T08:30:00Z``."""
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")


def fingerprint(version: str, model_id: str, source: str) -> str:
    """Return the ``system_fingerprint``. It changes with lmx's version and the model's source."""
    digest = hashlib.sha256("\0".join((version, model_id, source)).encode())
    return f"fp_{digest.hexdigest()[:10]}"


def head_object(identity: Identity, kind: str) -> dict[str, Any]:
    """Return the first fields of an answer or a chunk. ``kind`` is its ``object``."""
    return {
        "id": identity.completion_id,
        "object": kind,
        "created": identity.created_s,
        "model": identity.model_id,
        "system_fingerprint": identity.fingerprint,
    }


def end_object(ended: ChoiceEnded, form: Form) -> dict[str, Any]:
    """Return why a choice ended. ``stop_reason`` is vLLM's field: the stop string, or the stop
    token as a number, that ended it."""
    reason = ended.reason.value
    if ended.reason is FinishReason.TOOL_CALLS:
        if form.calls_stop:
            reason = FinishReason.STOP.value
        elif form.functions:
            reason = "function_call"
    return {"finish_reason": reason, "stop_reason": _stop_reason(ended.stop, form.stop)}


def _stop_reason(stop: str | None, strings: tuple[str, ...]) -> str | int | None:
    is_token = stop is not None and stop not in strings and stop.isascii() and stop.isdecimal()
    return int(stop) if stop is not None and is_token else stop


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage, with Moonshot's ``cached_tokens``. Media are counted where there are
    some."""
    details = {"cached_tokens": usage.cached_tokens}
    for name in ("image_tokens", "audio_tokens", "video_tokens"):
        if tokens := getattr(usage, name):
            details[name] = tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_object(finished: Finished, clocked: RouterTimings) -> dict[str, float]:
    """Return how long each part took, in seconds.

    ``tokens_per_s`` counts the tokens after each answer's first, over the time they took; it is 0
    if there were none. With speculation it also shows how many tokens were drafted, and how many
    and what share of them were accepted.
    """
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
