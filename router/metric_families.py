"""From the supervisor's status to metrics in Prometheus' terms. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from lmx.protocol.states import ExitCause, MemoryPressure, SlotState, WorkerState
from lmx.router.directory import LOADED_STATES

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
    """Yield the metrics of a status (:class:`lmx.protocol.control.Status`).

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
