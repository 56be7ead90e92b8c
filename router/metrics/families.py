"""Turns the status and the counts of requests into metrics in Prometheus' terms. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.status import ModelStatus, RouterStatus, SupervisorStatus, SystemStatus
from lmx.protocol.states import ExitCause, MemoryPressure, ModelState
from lmx.router.metrics.measures import HISTOGRAMS
from lmx.router.metrics.requests import REASONS, ModelTally, Reading

_PRESSURES: Final = {level: number for number, level in enumerate(MemoryPressure)}

_SUPERVISOR_GAUGES: Final[tuple[tuple[str, Callable[[SupervisorStatus], float], str], ...]] = (
    (
        "memory_budget_bytes",
        lambda supervisor: supervisor.budget_bytes,
        "Memory that all models may take together.",
    ),
    (
        "memory_reserved_bytes",
        lambda supervisor: supervisor.reserved_bytes,
        "Of the budget what is reserved for models.",
    ),
    (
        "memory_missing_bytes",
        lambda supervisor: supervisor.missing_bytes,
        "What ended workers did not give back.",
    ),
    (
        "memory_pressure",
        lambda supervisor: _PRESSURES[supervisor.memory_pressure],
        "How near the machine is to running out of memory: 0 not, 1 soft, 2 hard.",
    ),
)

_MODEL_GAUGES: Final[tuple[tuple[str, Callable[[ModelStatus], float | None], str], ...]] = (
    ("model_reserved_bytes", lambda model: model.reserved_bytes, "What is reserved for it."),
    (
        "model_peak_bytes",
        lambda model: model.figures.peak_memory_bytes,
        "The most that its worker has held.",
    ),
    (
        "model_ranks",
        lambda model: None if model.pid is None else 1 + len(model.figures.ranks),
        "The processes that the model is divided among.",
    ),
    (
        "model_decoder_bytes",
        lambda model: model.figures.decoder_bytes,
        "What the process holds that decodes images, sounds and videos for its worker.",
    ),
    (
        "kv_cache_used_bytes",
        lambda model: model.figures.kv_bytes,
        "What the KV caches of its requests in flight have.",
    ),
    ("kv_cache_capacity_bytes", lambda model: model.kv_capacity_bytes, "What they may have."),
    (
        "kv_cache_usage_perc",
        lambda model: (
            model.figures.kv_bytes / model.kv_capacity_bytes if model.kv_capacity_bytes else None
        ),
        "Of the memory that KV caches may take what the requests in flight have: 1 is all of it.",
    ),
    (
        "num_requests_running",
        lambda model: model.requests_active,
        "Requests that the model works on.",
    ),
)
"""The gauges of each model. None means that the model has no such value now. A new gauge is a row
here."""

_MODEL_COUNTERS: Final[tuple[tuple[str, Callable[[ModelStatus], float | None], str], ...]] = (
    ("model_loads", lambda model: model.loads_total, "Loads that ended well."),
    (
        "worker_restarts",
        lambda model: model.restarts,
        "Workers that were started again after one had ended.",
    ),
    (
        "watchdog_kills",
        lambda model: model.exits.get(ExitCause.HANG, 0),
        "Workers that were ended because they hung.",
    ),
    (
        "prefix_cache_queries",
        lambda model: model.figures.prompt_tokens_total,
        "Tokens of prompts, looked up in the cache.",
    ),
    (
        "prefix_cache_hits",
        lambda model: model.figures.cached_tokens_total,
        "Those of them that were in the cache.",
    ),
    (
        "spec_decode_num_draft_tokens",
        lambda model: model.figures.drafted_tokens_total,
        "Tokens that were guessed ahead.",
    ),
    (
        "spec_decode_num_accepted_tokens",
        lambda model: model.figures.accepted_tokens_total,
        "Those of them that were right.",
    ),
    (
        "num_preemptions",
        lambda model: model.figures.preempted_total,
        "How many times a request gave its memory back to others, to resume later.",
    ),
    (
        "compute_seconds",
        lambda model: model.figures.compute_s_total,
        "Seconds in which its engine computed.",
    ),
    (
        "energy_joules",
        lambda model: model.energy_joules,
        "The machine's energy while it computed, where the machine measures it.",
    ),
)
"""The counters of each model, as its gauges. Those of the caches, of speculation, of preemption and
of computing begin at 0 with each worker."""

_WANTED: Final = (ExitCause.UNLOADED, ExitCause.EVICTED, ExitCause.EXPIRED, ExitCause.SHUTDOWN)


@dataclass(frozen=True, slots=True)
class _Model:
    """What is known of a model even while the supervisor does not answer."""

    model_id: str
    state: ModelState
    memory_bytes: int
    queued: int


def status_families(
    status: SystemStatus | None, views: Sequence[ModelView], waiting: Mapping[str, int]
) -> Iterable[Metric]:
    """Yield the metrics of a status. It is None if the supervisor does not answer.

    ``views`` are the models as this router knows them, which are shown while there is no status.
    ``waiting`` are the requests that wait in this router, by model. The labels are configured
    models, states and causes, so their number is bounded.
    """
    yield GaugeMetricFamily(
        "lmx_supervisor_up", "Whether the supervisor answers.", value=float(status is not None)
    )
    if status is not None:
        yield from _of_processes(status.supervisor, status.router)
        workers = status.workers
        models = [
            _Model(one.model, one.state, one.figures.memory_bytes, one.requests_queued)
            for one in workers
        ]
    else:
        workers = ()
        models = [_Model(view.model_id, view.state, view.memory_bytes, 0) for view in views]
    yield from _of_states(models, waiting)
    yield from _of_models(workers)
    yield from _of_worker_history(workers)


def _of_processes(supervisor: SupervisorStatus, router: RouterStatus) -> Iterable[Metric]:
    for name, value_of, help_text in _SUPERVISOR_GAUGES:
        yield GaugeMetricFamily(f"lmx_{name}", help_text, value=value_of(supervisor))
    if supervisor.machine_watts is not None:
        yield GaugeMetricFamily(
            "lmx_machine_power_watts",
            "The power of the machine's processors.",
            value=supervisor.machine_watts,
        )
    if supervisor.machine_energy_joules is not None:
        yield CounterMetricFamily(
            "lmx_machine_energy_joules",
            "The energy of the machine's processors.",
            value=supervisor.machine_energy_joules,
        )
    yield CounterMetricFamily(
        "lmx_evictions", "Models that were evicted for another.", value=supervisor.swaps_total
    )
    yield CounterMetricFamily(
        "lmx_router_restarts", "Routers that were started again.", value=router.restarts
    )


def _of_models(models: Sequence[ModelStatus]) -> Iterable[Metric]:
    for name, gauge_of, help_text in _MODEL_GAUGES:
        gauge = GaugeMetricFamily(f"lmx_{name}", help_text, labels=["model"])
        for model in models:
            if (value := gauge_of(model)) is not None:
                gauge.add_metric([model.model], value)
        yield gauge
    for name, count_of, help_text in _MODEL_COUNTERS:
        counter = CounterMetricFamily(f"lmx_{name}", help_text, labels=["model"])
        for model in models:
            if (count := count_of(model)) is not None:
                counter.add_metric([model.model], count)
        yield counter


def _of_worker_history(models: Sequence[ModelStatus]) -> Iterable[Metric]:
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
    for model in models:
        loads.add_metric([model.model], model.loads_total, model.load_s_total)
        for cause in ExitCause:
            exits.add_metric([model.model, cause.value], model.exits.get(cause, 0))
        for reason in _WANTED:
            unloads.add_metric([model.model, reason.value], model.exits.get(reason, 0))
    yield from (loads, exits, unloads)


def _of_states(models: Sequence[_Model], waiting: Mapping[str, int]) -> Iterable[Metric]:
    memory = GaugeMetricFamily(
        "lmx_model_memory_bytes", "Memory of the model's worker now.", labels=["model"]
    )
    loaded = GaugeMetricFamily(
        "lmx_model_loaded", "Whether the model is in memory and answers.", labels=["model"]
    )
    states = GaugeMetricFamily(
        "lmx_model_state", "1 for the state that the model is in.", labels=["model", "state"]
    )
    queued = GaugeMetricFamily(
        "lmx_num_requests_waiting",
        "Requests that wait for the model, or in its worker.",
        labels=["model"],
    )
    for model in models:
        memory.add_metric([model.model_id], model.memory_bytes)
        loaded.add_metric([model.model_id], model.state.loaded)
        for state in ModelState:
            states.add_metric([model.model_id, state.value], model.state is state)
        queued.add_metric([model.model_id], model.queued + waiting.get(model.model_id, 0))
    yield from (memory, loaded, states, queued)


_TOKENS: Final = (
    ("prompt_tokens", "Tokens of prompts, cached ones among them.", "prompt_tokens"),
    ("prompt_tokens_cached", "Tokens of prompts that were in a cache.", "cached_tokens"),
    (
        "generation_tokens",
        "Tokens of answers, also of those that were cut off.",
        "completion_tokens",
    ),
)


_OF_KEYS: Final = (
    ("requests", "Requests for models that have ended, by the key's name.", "requests"),
    ("prompt_tokens", "Tokens of their prompts.", "prompt_tokens"),
    ("generation_tokens", "Tokens of their answers.", "completion_tokens"),
)


def request_families(reading: Reading) -> Iterator[Metric]:
    """Yield the metrics of requests. The labels are the existing models and one for none of them,
    kinds of ends, codes of errors, routes, classes of status, and the first keys with one for all
    others, so their number is bounded. A histogram begins with a model's first value."""
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
    lines = CounterMetricFamily(
        "lmx_batch_lines", "Lines of batches that have a result.", labels=["outcome"]
    )
    lines.add_metric(["completed"], totals.batch_lines_completed)
    lines.add_metric(["failed"], totals.batch_lines_failed)
    yield lines
    for name, help_text, field in _TOKENS:
        tokens = CounterMetricFamily(f"lmx_{name}", help_text, labels=["model"])
        for model_id, tally in models.items():
            tokens.add_metric([model_id], getattr(tally, field))
        yield tokens
    for name, help_text, field in _OF_KEYS:
        of_keys = CounterMetricFamily(f"lmx_key_{name}", help_text, labels=["key"])
        for label, counted in sorted(reading.keys.items()):
            of_keys.add_metric([label], getattr(counted, field))
        yield of_keys
    for measure in HISTOGRAMS:
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


def batch_families(statuses: Mapping[str, int], lines_left: int) -> Iterator[Metric]:
    """Yield the metrics of the batches that have not ended: how many there are of each status, and
    how many of their lines have no result."""
    batches = GaugeMetricFamily(
        "lmx_batches", "Batches that have not ended, by their status.", labels=["status"]
    )
    for status, count in statuses.items():
        batches.add_metric([status], count)
    yield batches
    yield GaugeMetricFamily(
        "lmx_batch_lines_waiting", "Lines of batches that have no result yet.", value=lines_left
    )


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
