"""From the supervisor's status to metrics in Prometheus' text format. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lmx.protocol.states import ExitCause, MemoryPressure, SlotState, WorkerState

_STATES: Final = tuple(
    state.value
    for state in (*SlotState, *WorkerState)
    if state not in (SlotState.OCCUPIED, WorkerState.EXITED)
)
_LOADED: Final = frozenset({WorkerState.READY.value, WorkerState.DRAINING.value})

_PRESSURES: Final = {level.value: number for number, level in enumerate(MemoryPressure)}

_SUPERVISOR_GAUGES: Final = (
    ("memory_budget_bytes", "budget_bytes", "Memory that all models may take together."),
    ("memory_reserved_bytes", "reserved_bytes", "Of the budget what is reserved for models."),
    ("memory_missing_bytes", "missing_bytes", "What ended workers did not give back."),
)
_MODEL_GAUGES: Final = (
    ("memory_bytes", "memory_bytes", "Memory of the model's worker now."),
    ("reserved_bytes", "reserved_bytes", "What is reserved for it."),
    ("peak_bytes", "peak_memory_bytes", "The most that its worker has held."),
)
_MODEL_COUNTERS: Final = (
    ("model_loads", "loads_total", "Loads that ended well."),
    ("model_load_seconds", "load_s_total", "Seconds that they took."),
)


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    families: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.families


def exposition(
    status: Mapping[str, Any], waiting: Mapping[str, int], *, supervisor_up: bool
) -> bytes:
    """Return the metrics of a status (:class:`lmx.protocol.control.Status`).

    ``waiting``: requests that wait in this router, by model. The labels are configured models,
    states and causes: as many as there are, and no more. What a status lacks, as one that a
    router makes up by itself while the supervisor is gone does, is left out.
    """
    families: list[Metric] = [
        GaugeMetricFamily(
            "lmx_supervisor_up", "Whether the supervisor answers.", value=float(supervisor_up)
        )
    ]
    families += _of_supervisor(status.get("supervisor", {}), status.get("router", {}))
    families += _of_models(status["workers"], waiting)
    return generate_latest(_Families(tuple(families)))


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


def _of_models(
    workers: Iterable[Mapping[str, Any]], waiting: Mapping[str, int]
) -> Iterable[Metric]:
    workers = tuple(workers)
    for name, key, help_text in _MODEL_GAUGES:
        gauge = GaugeMetricFamily(f"lmx_model_{name}", help_text, labels=["model"])
        for worker in workers:
            if key in worker:
                gauge.add_metric([worker["model"]], worker[key])
        yield gauge
    for name, key, help_text in _MODEL_COUNTERS:
        counter = CounterMetricFamily(f"lmx_{name}", help_text, labels=["model"])
        for worker in workers:
            if key in worker:
                counter.add_metric([worker["model"]], worker[key])
        yield counter
    yield from _of_states(workers)
    yield from _of_requests(workers, waiting)
    exits = CounterMetricFamily(
        "lmx_worker_exits", "Ends of workers, by cause.", labels=["model", "cause"]
    )
    for worker in workers:
        if "exits" in worker:
            counts = worker["exits"]
            for cause in ExitCause:
                exits.add_metric([worker["model"], cause.value], counts.get(cause.value, 0))
    yield exits


def _of_states(workers: Iterable[Mapping[str, Any]]) -> Iterable[Metric]:
    loaded = GaugeMetricFamily(
        "lmx_model_loaded", "Whether the model is in memory and answers.", labels=["model"]
    )
    states = GaugeMetricFamily(
        "lmx_model_state", "1 for the state that the model is in.", labels=["model", "state"]
    )
    for worker in workers:
        loaded.add_metric([worker["model"]], worker["state"] in _LOADED)
        for state in _STATES:
            states.add_metric([worker["model"], state], worker["state"] == state)
    yield loaded
    yield states


def _of_requests(
    workers: Iterable[Mapping[str, Any]], waiting: Mapping[str, int]
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
