"""The fields that all answers have around their choices: identity, usage, timings. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NotRequired

from lmx.protocol.messages import data
from lmx.protocol.messages.data import ChoiceEnded, Finished
from lmx.protocol.states import FinishReason
from lmx.router.http.responses import Answer


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
    """The stop strings. They distinguish a stop string that ended a choice from a token id."""
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
    tier: Literal["flex", "default"] | None = None
    """The service tier, where the answer says it."""


def utc_text(at_s: int) -> str:
    """Return a Unix time as RFC 3339 has it, in UTC: ``2026-01-31T08:30:00Z``."""
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")


def fingerprint(version: str, model_id: str, source: str) -> str:
    """Return the ``system_fingerprint``. It changes with lmx's version and the model's source."""
    digest = hashlib.sha256("\0".join((version, model_id, source)).encode())
    return f"fp_{digest.hexdigest()[:10]}"


class Warnings(Answer):
    """What was done otherwise than requested."""

    warnings: NotRequired[list[str] | None]
    """Sentences about what was done otherwise than requested. They are there only when there are
    some."""


class AnswerHead(Warnings):
    """What an answer and each of its chunks begin with."""

    id: str
    """The id of the answer: its job has the same."""
    created: int
    """Seconds since 1970."""
    model: str
    """The id of the model that answered."""
    system_fingerprint: str
    """It changes with lmx's version and the model's source."""
    service_tier: NotRequired[Literal["flex", "default"] | None]
    """The tier by which it was served, where the request named one."""


class WholeAnswer(AnswerHead):
    """An answer that does not stream."""

    usage: GenerationUsage
    """How many tokens it took."""
    timings: Timings
    """Where the time went."""


class Chunk(AnswerHead):
    """The data of one event. The last one has the timings, and the usage where it is requested;
    after it comes ``[DONE]``."""

    usage: NotRequired[GenerationUsage | None]
    """How many tokens it took, in the last chunk or in each, where it was requested."""
    timings: NotRequired[Timings | None]
    """Where the time went, in the last chunk."""


class AnswerChoice(Answer):
    """What a choice has in every form."""

    index: int
    """Its place among the answers, from 0."""
    token_ids: NotRequired[Sequence[int] | None]
    """The tokens, where they were requested."""


def head_object(identity: Identity, kind: str, form: Form) -> dict[str, Any]:
    """Return the first fields of an answer or a chunk. ``kind`` is its ``object``."""
    tier = {} if form.tier is None else {"service_tier": form.tier}
    return {
        **tier,
        "id": identity.completion_id,
        "object": kind,
        "created": identity.created_s,
        "model": identity.model_id,
        "system_fingerprint": identity.fingerprint,
    }


FinishWord = Literal["stop", "length", "tool_calls", "function_call"]
_FINISH_WORDS: Final[dict[FinishReason, FinishWord]] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


class ChoiceEnd(Answer):
    """Why a choice ended."""

    finish_reason: FinishWord
    """Why the answer ended. `function_call` is for requests with `functions`."""
    stop_reason: str | int | None
    """The stop string, or the stop token, that ended the answer. Null for the model's own end."""


def end_object(ended: ChoiceEnded, form: Form) -> ChoiceEnd:
    """Return why a choice ended. ``stop_reason`` is vLLM's field: the stop string, or the stop
    token as a number, that ended it."""
    reason = _FINISH_WORDS[ended.reason]
    if ended.reason is FinishReason.TOOL_CALLS:
        if form.calls_stop:
            reason = "stop"
        elif form.functions:
            reason = "function_call"
    return {"finish_reason": reason, "stop_reason": _stop_reason(ended.stop, form.stop)}


def _stop_reason(stop: str | None, strings: tuple[str, ...]) -> str | int | None:
    is_token = stop is not None and stop not in strings and stop.isascii() and stop.isdecimal()
    return int(stop) if stop is not None and is_token else stop


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
    image_tokens: NotRequired[int | None]
    """Tokens of the prompt that stand for images. It is there where there are some, as the next two
    are."""
    audio_tokens: NotRequired[int | None]
    """Tokens of the prompt that stand for sounds."""
    video_tokens: NotRequired[int | None]
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
    """From the first token to the last. It is 0 if all came at once, as those do that a grammar
    leaves no choice of: they are computed together."""
    tokens_per_s: float
    """Tokens a second, after each answer's first token; 0 where `decode_s` is."""
    drafted_tokens: NotRequired[int | None]
    """Tokens that were guessed ahead. It is there where there were some, as the next two are."""
    accepted_tokens: NotRequired[int | None]
    """How many of the guesses were right."""
    acceptance_rate: NotRequired[float | None]
    """What share of the guesses was right."""
    energy_joules: NotRequired[float | None]
    """The energy that the machine's processors took for it. It is there where the machine measures
    it, as the next one is: docs/monitoring.md says how it is divided among requests."""
    joules_per_token: NotRequired[float | None]
    """That energy for each token of the answer, the prompt's included."""


def usage_object(usage: data.Usage) -> GenerationUsage:
    """Return OpenAI's usage, with Moonshot's ``cached_tokens``. Media are counted where there are
    some."""
    details: PromptTokens = {"cached_tokens": usage.cached_tokens}
    if usage.image_tokens:
        details["image_tokens"] = usage.image_tokens
    if usage.audio_tokens:
        details["audio_tokens"] = usage.audio_tokens
    if usage.video_tokens:
        details["video_tokens"] = usage.video_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def tokens_per_s(finished: Finished, answers: int) -> float:
    """Return the tokens after each answer's first, over the time they took; 0 if there were none,
    or if they took no time."""
    later_tokens, decode_s = finished.usage.completion_tokens - answers, finished.timings.decode_s
    return later_tokens / decode_s if later_tokens > 0 and decode_s > 0 else 0.0


def timings_object(finished: Finished, clocked: RouterTimings) -> Timings:
    """Return how long each part took, in seconds. With speculation it also shows how many tokens
    were drafted, and how many and what share of them were accepted."""
    timings = finished.timings
    rate = tokens_per_s(finished, clocked.answers)
    shown: Timings = {
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
    if timings.energy_joules is not None:
        shown["energy_joules"] = round(timings.energy_joules, 3)
        if tokens := finished.usage.completion_tokens:
            shown["joules_per_token"] = round(timings.energy_joules / tokens, 4)
    return shown
