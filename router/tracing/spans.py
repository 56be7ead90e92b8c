"""What the spans of a request say: the intervals of its phases, and attributes by OpenTelemetry's
semantic conventions for generative AI. Nothing of prompts and answers is in them. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lmx.router.http.endpoint import Endpoint
from lmx.router.http.outcome import Outcome, RequestContext
from lmx.router.jobs.live import LiveRequest, RequestKind
from lmx.router.jobs.phases import Phase

Attribute = str | bool | int | float | Sequence[str]

_OPERATIONS: Final = {
    RequestKind.CHAT: "chat",
    RequestKind.COMPLETION: "text_completion",
    RequestKind.EMBEDDING: "embeddings",
}
"""The operations that the conventions name. Others have the name of their kind."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A part of a request, on the monotonic clock."""

    phase: Phase
    began_s: float
    ended_s: float


def intervals(live: LiveRequest, measured: Outcome, ended_s: float) -> Iterator[Interval]:
    """Yield the phases of a request that ended at ``ended_s``, in their order. A request waits in
    its worker twice, for its turn to be rendered and for a row: it may have two intervals
    ``queue``. How long the prompt and the answer took is the worker's own measure, where it is
    known."""
    waits, first_s = live.waits, live.first_output_s
    accepted_s = waits.accepted_s
    began_s = accepted_s if waits.turn is None else waits.turn.begun_s or accepted_s
    if waits.load_s or waits.loading_since_s is not None:
        until_s = waits.sent_s or ended_s
        if waits.loading_since_s is None:
            since_s = until_s - waits.load_s
        else:
            since_s = waits.loading_since_s - waits.load_s
        yield Interval(Phase.LOAD, since_s, until_s)
    if waits.sent_s is None:
        return
    yield Interval(Phase.QUEUE, waits.sent_s, ended_s if began_s is None else began_s)
    if began_s is None:
        return
    if live.is_task:
        yield Interval(Phase.PREFILL, began_s, ended_s)
        return
    yield Interval(Phase.RENDER, began_s, ended_s if accepted_s is None else accepted_s)
    if accepted_s is None:
        return
    until_s = ended_s if first_s is None else first_s
    if measured.prefill_s is not None:
        row_s = max(accepted_s, until_s - measured.prefill_s)
    else:
        row_s = accepted_s if live.has_row else until_s
    if row_s > accepted_s:
        yield Interval(Phase.QUEUE, accepted_s, row_s)
    if until_s > row_s:
        yield Interval(Phase.PREFILL, row_s, until_s)
    if first_s is not None:
        decoded_s = ended_s
        if measured.decode_s is not None:
            decoded_s = min(ended_s, first_s + measured.decode_s)
        yield Interval(Phase.DECODE, first_s, decoded_s)


def span_name(endpoint: Endpoint, live: LiveRequest | None) -> str:
    """Return the name of a request's span: its operation and its model; the route of a request that
    was refused before it was one for a model."""
    if live is None:
        return f"{endpoint.method} {endpoint.path}"
    return f"{_operation(live)} {live.model_id}"


def attributes(
    endpoint: Endpoint,
    context: RequestContext,
    live: LiveRequest | None,
    outcome: Outcome,
    status: int,
) -> dict[str, Attribute]:
    """Return the attributes of a request's span, without those that are not known."""
    known: dict[str, Attribute | None] = {
        "http.request.method": endpoint.method,
        "http.route": endpoint.path,
        "http.response.status_code": status,
        "error.type": outcome.error,
        "gen_ai.provider.name": "lmx",
        "gen_ai.operation.name": None if live is None else _operation(live),
        "gen_ai.request.model": outcome.model,
        "gen_ai.request.stream": outcome.stream,
        "gen_ai.response.model": None if live is None else live.model_id,
        "gen_ai.response.id": None if live is None else live.id,
        "gen_ai.response.finish_reasons": outcome.finish_reason
        and outcome.finish_reason.split(","),
        "gen_ai.response.time_to_first_chunk": outcome.ttft_s,
        "gen_ai.usage.input_tokens": outcome.prompt_tokens,
        "gen_ai.usage.output_tokens": outcome.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": outcome.cached_tokens,
        "lmx.request_id": context.request_id,
        "lmx.key": context.shown_key,
    }
    return {name: value for name, value in known.items() if value is not None}


def _operation(live: LiveRequest) -> str:
    return _OPERATIONS.get(live.kind, live.kind.value)
