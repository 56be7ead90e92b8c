"""From the supervisor's status to metrics in Prometheus' terms. Pure.

From what was counted of requests to metrics in Prometheus' terms. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from lmx.protocol.states import ExitCause, MemoryPressure, SlotState, WorkerState
from lmx.router.metrics.measures import DURATION, GAPS, MEASURES
from lmx.router.metrics.requests import REASONS, ModelTally, Reading
from lmx.router.supervisor.directory import LOADED_STATES

_STATES: Final = tuple(
    state.value
    for state in (*SlotState, *WorkerState)
    if state not in (SlotState.OCCUPIED, WorkerState.EXITED)
)

_PRESSURES: Final = {level.value: number for number, level in enumerate(MemoryPressure)}

_SUPERVISOR_GAUGES: Final = (
    ("memory_budget_bytes", "budget_bytes", "Memory that all models may take together."),
    ("memory_reserved_bytes", "reserved_bytes", "Of the budget what is reserved for models."),
    ("memory_missing_bytes", "missing_bytes", "What ended workers did not give back."),
)
_MODEL_GAUGES: Final = (
    ("model_memory_bytes", "memory_bytes", "Memory of the model's worker now."),
    ("model_reserved_bytes", "reserved_bytes", "What is reserved for it."),
    ("model_peak_bytes", "peak_memory_bytes", "The most that its worker has held."),
    ("kv_cache_used_bytes", "kv_bytes", "What the KV caches of its requests in flight have."),
    ("kv_cache_capacity_bytes", "kv_capacity_bytes", "What they may have."),
)
_MODEL_COUNTERS: Final = (
    ("model_loads", "loads_total", "Loads that ended well."),
    ("worker_restarts", "restarts", "Workers that were started anew after one had ended."),
    ("prefix_cache_queries", "prompt_tokens_total", "Tokens of prompts, looked up in the cache."),
    ("prefix_cache_hits", "cached_tokens_total", "Those of them that were in the cache."),
    (
        "spec_decode_num_draft_tokens",
        "drafted_tokens_total",
        "Tokens that were guessed ahead.",
    ),
    (
        "spec_decode_num_accepted_tokens",
        "accepted_tokens_total",
        "Those of them that were right.",
    ),
)
"""Those of the caches and of guesses begin anew with each worker."""

_WANTED: Final = (ExitCause.UNLOADED, ExitCause.EVICTED, ExitCause.EXPIRED, ExitCause.SHUTDOWN)


def status_families(
    status: Mapping[str, Any], waiting: Mapping[str, int], *, supervisor_up: bool
) -> Iterable[Metric]:
    """Yield the metrics of a status (:class:`lmx.protocol.messages.control.Status`).

    ``waiting``: requests that wait in this router, by model. The labels are configured models,
    states and causes: as many as there are, and no more. What a status lacks, as one that a
    router makes up by itself while the supervisor is gone does, is left out.
    """
    yield GaugeMetricFamily(
        "lmx_supervisor_up", "Whether the supervisor answers.", value=float(supervisor_up)
    )
    yield from _of_supervisor(status.get("supervisor", {}), status.get("router", {}))
    workers = tuple(status["workers"])
    yield from _of_models(workers)
    yield from _of_states(workers)
    yield from _of_requests(workers, waiting)
    yield from _of_caches(workers)
    yield from _of_lives(workers)


def _of_supervisor(supervisor: Mapping[str, Any], router: Mapping[str, Any]) -> Iterable[Metric]:
    for name, key, help_text in _SUPERVISOR_GAUGES:
        if key in supervisor:
            yield GaugeMetricFamily(f"lmx_{name}", help_text, value=supervisor[key])
    if "memory_pressure" in supervisor:
        yield GaugeMetricFamily(
            "lmx_memory_pressure",
            "How near the machine is to running out of memory: 0 not, 1 soft, 2 hard.",
            value=_PRESSURES[supervisor["memory_pressure"]],
        )
    if "swaps_total" in supervisor:
        yield CounterMetricFamily(
            "lmx_evictions", "Models that gave way to another.", value=supervisor["swaps_total"]
        )
    if "restarts" in router:
        yield CounterMetricFamily(
            "lmx_router_restarts", "Routers started anew.", value=router["restarts"]
        )


def _of_models(workers: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    for name, key, help_text in _MODEL_GAUGES:
        gauge = GaugeMetricFamily(f"lmx_{name}", help_text, labels=["model"])
        for worker in workers:
            if worker.get(key) is not None:
                gauge.add_metric([worker["model"]], worker[key])
        yield gauge
    for name, key, help_text in _MODEL_COUNTERS:
        counter = CounterMetricFamily(f"lmx_{name}", help_text, labels=["model"])
        for worker in workers:
            if key in worker:
                counter.add_metric([worker["model"]], worker[key])
        yield counter


def _of_caches(workers: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    used = GaugeMetricFamily(
        "lmx_kv_cache_usage_perc",
        "Of the memory that KV caches may take what the requests in flight have: 1 is all of it.",
        labels=["model"],
    )
    for worker in workers:
        if worker.get("kv_capacity_bytes"):
            used.add_metric([worker["model"]], worker["kv_bytes"] / worker["kv_capacity_bytes"])
    yield used


def _of_lives(workers: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    loads = SummaryMetricFamily(
        "lmx_model_load_duration_seconds",
        "Loads that ended well, and the seconds that they took.",
        labels=["model"],
    )
    exits = CounterMetricFamily(
        "lmx_worker_exits", "Ends of workers, by cause.", labels=["model", "cause"]
    )
    unloads = CounterMetricFamily(
        "lmx_model_unloads", "Ends of workers that were wanted, by why.", labels=["model", "reason"]
    )
    kills = CounterMetricFamily(
        "lmx_watchdog_kills", "Workers that were ended because they hung.", labels=["model"]
    )
    for worker in workers:
        model_id = worker["model"]
        if "loads_total" in worker:
            loads.add_metric([model_id], worker["loads_total"], worker["load_s_total"])
        if "exits" in worker:
            counts = worker["exits"]
            for cause in ExitCause:
                exits.add_metric([model_id, cause.value], counts.get(cause.value, 0))
            for reason in _WANTED:
                unloads.add_metric([model_id, reason.value], counts.get(reason.value, 0))
            kills.add_metric([model_id], counts.get(ExitCause.HANG.value, 0))
    yield from (loads, exits, unloads, kills)


def _of_states(workers: Sequence[Mapping[str, Any]]) -> Iterable[Metric]:
    loaded = GaugeMetricFamily(
        "lmx_model_loaded", "Whether the model is in memory and answers.", labels=["model"]
    )
    states = GaugeMetricFamily(
        "lmx_model_state", "1 for the state that the model is in.", labels=["model", "state"]
    )
    for worker in workers:
        loaded.add_metric([worker["model"]], worker["state"] in LOADED_STATES)
        for state in _STATES:
            states.add_metric([worker["model"], state], worker["state"] == state)
    yield loaded
    yield states


def _of_requests(
    workers: Sequence[Mapping[str, Any]], waiting: Mapping[str, int]
) -> Iterable[Metric]:
    running = GaugeMetricFamily(
        "lmx_num_requests_running", "Requests that the model works on.", labels=["model"]
    )
    queued = GaugeMetricFamily(
        "lmx_num_requests_waiting",
        "Requests that wait for the model, or in its worker.",
        labels=["model"],
    )
    for worker in workers:
        model_id = worker["model"]
        if "requests_active" in worker:
            running.add_metric([model_id], worker["requests_active"])
        in_worker = worker.get("requests_queued", 0)
        queued.add_metric([model_id], in_worker + waiting.get(model_id, 0))
    yield running
    yield queued


_TOKENS: Final = (
    ("prompt_tokens", "Tokens of prompts, cached ones among them.", "prompt_tokens"),
    ("prompt_tokens_cached", "Tokens of prompts that were in a cache.", "cached_tokens"),
    (
        "generation_tokens",
        "Tokens of answers, also of those that were cut off.",
        "completion_tokens",
    ),
)


def request_families(reading: Reading) -> Iterator[Metric]:
    """Yield the metrics of requests. The labels are the models that there are and one for none
    of them, kinds of ends, codes of errors, routes and classes of status: as many as there are,
    and no more. A histogram begins with a model's first value."""
    totals, models = reading.totals, reading.models
    yield CounterMetricFamily(
        "lmx_requests", "Requests for models that have ended.", value=totals.requests
    )
    yield CounterMetricFamily(
        "lmx_errors", "Requests for models that ended with an error.", value=totals.errors
    )
    yield CounterMetricFamily(
        "lmx_stream_requests", "Requests for models that asked for a stream.", value=totals.streams
    )
    yield from _outcomes(models)
    for name, help_text, field in _TOKENS:
        tokens = CounterMetricFamily(f"lmx_{name}", help_text, labels=["model"])
        for model_id, tally in models.items():
            tokens.add_metric([model_id], getattr(tally, field))
        yield tokens
    for measure in (DURATION, *MEASURES, GAPS):
        family = HistogramMetricFamily(f"lmx_{measure.name}", measure.help_text, labels=["model"])
        for model_id, tally in models.items():
            histogram = tally.histograms[measure.name]
            if histogram.count:
                family.add_metric([model_id], histogram.buckets(), histogram.total)
        yield family
    http = CounterMetricFamily(
        "lmx_http_requests",
        "Requests by route, polls of health and metrics left out.",
        labels=["method", "route", "status"],
    )
    for key, count in sorted(reading.http.items()):
        http.add_metric(key, count)
    yield http
    limited = CounterMetricFamily(
        "lmx_rate_limited_requests",
        "Requests that a limit refused, by whose it is (`key`, `total`) and what it limits.",
        labels=["scope", "limit"],
    )
    for reason, count in sorted(reading.limited.items()):
        limited.add_metric(reason, count)
    yield limited


def _outcomes(models: Mapping[str, ModelTally]) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "lmx_request_success",
        "Requests that ended without an error, by why; `abort`: their client left.",
        labels=["model", "finished_reason"],
    )
    failed = CounterMetricFamily(
        "lmx_request_errors", "Requests that ended with an error.", labels=["model", "code"]
    )
    for model_id, tally in models.items():
        for reason in REASONS:
            ended.add_metric([model_id, reason], tally.reasons[reason])
        for code, count in sorted(tally.errors.items()):
            failed.add_metric([model_id, code], count)
    yield ended
    yield failed
