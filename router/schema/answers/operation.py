"""The answers of lmx's own routes for operators, and the events of their streams.

Sizes are bytes. Times in ``_s`` are seconds; those in ``_at_s`` are seconds since 1970.
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
    """The answer of GET /admin/metrics/json. The totals include models that are gone, and requests
    that named no existing model."""

    total_requests: int
    total_errors: int
    total_stream_requests: int
    total_prompt_tokens: int
    total_completion_tokens: int
    per_model: dict[str, ModelFigures]
    uptime_seconds: float


class MemoryReturned(Answer):
    """How much of an ended worker's memory came back."""

    returned_bytes: int
    missing_bytes: int
    took_s: float
    """The time from the signal that ended the worker until this was measured."""
    detail: str


class LastExit(Answer):
    """How a model's last worker ended."""

    cause: str
    detail: str
    at_s: float
    pid: int | None = None
    memory: MemoryReturned | None = None
    """What came back of its memory. Null while it is still being measured."""


class WorkerLine(Answer):
    """A model and its worker."""

    model: str
    state: str
    kind: str | None
    pid: int | None
    """The worker's process. Null if the model has no worker."""
    instance: str | None
    """The worker's own id. Null if the model has no worker."""
    memory_bytes: int
    peak_memory_bytes: int
    decoder_bytes: int
    """What the process takes that decodes images, sounds and videos for the worker. 0 while there
    is none."""
    reserved_bytes: int
    kv_bytes: int
    context_length: int | None
    pinned: bool
    requests_running: int
    requests_queued: int
    requests_total: int
    """The requests of this worker."""
    tokens_total: int
    """The tokens that this worker has made."""
    stalled_s: float
    """For how long this worker's work in flight has made no progress."""
    idle_s: float | None
    expires_in_s: float | None
    loaded_at_s: float | None
    loads_total: int
    """The loads of all workers that the model has had."""
    restarts: int
    """The restarts of all workers that the model has had."""
    exits: dict[str, int]
    """The exits of all workers that the model has had, by cause."""
    last_exit: LastExit | None
    """How the last worker ended. Null if none has ended."""
    problem: str | None


class WorkersAnswer(Answer):
    """The answer of GET /admin/workers: every model, in the configuration's order."""

    workers: list[WorkerLine]


class KillAnswer(Answer):
    """The answer of POST /admin/workers/{id}/kill: the signal was sent."""

    success: bool
    model: str
    pid: int | None
    message: str
    """What follows, in a sentence for people."""
    memory: MemoryReturned | None
    """What came back of the worker's memory. Null if it was not measured within some seconds."""


class LogLine(Answer):
    """An event of GET /admin/logs."""

    line: str
    """One line as it stands in the file. Most lines are JSON objects."""


class EventLine(Answer):
    """An event of GET /admin/events."""

    epoch: str
    """The id of the supervisor that sent it: another supervisor begins another epoch."""
    seq: int
    """The event's number. It counts within an epoch."""
    at_s: float
    name: str
    model: str | None
    """The model that it is about. Null if it is about no model."""
    detail: str
    data: dict[str, Any]
