"""What lmx's own routes for operators answer with, and the events of their streams.

Sizes are bytes; times in ``_s`` are seconds, those in ``_at_s`` since 1970.
"""

from __future__ import annotations

from typing import Any

from lmx.router.http.responses import Answer


class ModelFigures(Answer):
    """Requests of one model since lmx was started."""

    requests: int
    errors: int
    completion_tokens: int


class MetricsAnswer(Answer):
    """GET /admin/metrics/json. The totals are also of models that are gone, and of requests
    that named none that there is."""

    total_requests: int
    total_errors: int
    total_stream_requests: int
    total_prompt_tokens: int
    total_completion_tokens: int
    per_model: dict[str, ModelFigures]
    uptime_seconds: float


class MemoryReturned(Answer):
    """What came back of an ended worker's memory, ``took_s`` after it was sent to its end."""

    returned_bytes: int
    missing_bytes: int
    took_s: float
    detail: str


class LastExit(Answer):
    """How a model's last worker ended. ``memory`` null: it is still being measured."""

    cause: str
    detail: str
    at_s: float
    pid: int | None = None
    memory: MemoryReturned | None = None


class WorkerLine(Answer):
    """A model and its worker; ``pid`` and ``instance`` are null where it has none. Requests,
    tokens and ``stalled_s`` (how long work in flight has made no progress) are this worker's;
    loads, restarts and exits those of all the model had. ``last_exit`` null: none has ended."""

    model: str
    state: str
    kind: str | None
    pid: int | None
    instance: str | None
    memory_bytes: int
    peak_memory_bytes: int
    reserved_bytes: int
    kv_bytes: int
    context_length: int | None
    pinned: bool
    requests_running: int
    requests_queued: int
    requests_total: int
    tokens_total: int
    stalled_s: float
    idle_s: float | None
    expires_in_s: float | None
    loaded_at_s: float | None
    loads_total: int
    restarts: int
    exits: dict[str, int]
    last_exit: LastExit | None
    problem: str | None


class WorkersAnswer(Answer):
    """GET /admin/workers: every model, in the configuration's order."""

    workers: list[WorkerLine]


class KillAnswer(Answer):
    """The signal was sent. ``message`` says what follows; ``memory`` null: what came back was not
    measured within some seconds."""

    success: bool
    model: str
    pid: int | None
    message: str
    memory: MemoryReturned | None


class LogLine(Answer):
    """An event of GET /admin/logs: one line as it stands in the file, mostly a JSON object."""

    line: str


class EventLine(Answer):
    """An event of GET /admin/events. ``seq`` counts within an ``epoch``: another supervisor
    begins another one. ``model`` null: it is about no model."""

    epoch: str
    seq: int
    at_s: float
    name: str
    model: str | None
    detail: str
    data: dict[str, Any]
