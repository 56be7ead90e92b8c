"""What the routes for operators answer with, in Opta-LMX's shapes with lmx's fields beside.

Fields in ``_gb`` are GiB. Times in ``_at`` are seconds since 1970 unless said otherwise.

What the routes about downloads answer with, in Opta-LMX's shapes.
"""

from __future__ import annotations

from typing import Literal

from lmx.router.http.responses import Answer
from lmx.router.schema.answers.errors import ErrorObject
from lmx.router.schema.answers.operation import MemoryReturned


class MachineMemory(Answer):
    """The machine's memory, and lmx's share. ``threshold_percent``: in use beyond it, nothing is
    loaded and idle models go. ``budget_gb``: what all models may take together, of which
    ``reserved_gb`` is taken."""

    total_gb: float
    used_gb: float
    available_gb: float
    usage_percent: float
    threshold_percent: int
    pressure: Literal["none", "soft", "hard"]
    budget_gb: float
    reserved_gb: float


class StatusAnswer(Answer):
    """GET /admin/status. ``models`` are the loaded ones; requests are those of all models."""

    version: str
    uptime_seconds: float
    loaded_models: int
    models: list[str]
    memory: MachineMemory
    state: Literal["running", "stopping"]
    requests_active: int
    requests_waiting: int


class ModelLine(Answer):
    """What is known of any model. ``problem``: why it can't be loaded, or was not."""

    id: str
    loaded: bool
    state: str
    source: str
    aliases: list[str]
    kind: str | None
    context_length: int | None
    pinned: bool
    problem: str | None


class LoadedModel(ModelLine):
    """A model in memory. ``memory_gb``: what its process takes now. ``request_count``: since
    lmx was started, or since it was loaded where that is more; ``last_used_at``: null if that
    is none. ``expires_in_s``: null if it stays."""

    memory_gb: float
    loaded_at: float | None
    use_batching: bool
    request_count: int
    last_used_at: float | None
    requests_active: int
    requests_queued: int
    expires_in_s: float | None


class UnloadedModel(ModelLine):
    """A model that is not in memory. ``progress``: of its load, from 0 to 1, where one runs."""

    progress: float | None


class ModelsAnswer(Answer):
    """GET /admin/models. ``count`` is of the loaded ones."""

    loaded: list[LoadedModel]
    count: int
    available: list[UnloadedModel]


class ModelMemory(Answer):
    """One model's memory. ``peak_gb``: the most that it took; ``reserved_gb``: of the budget."""

    memory_gb: float
    loaded: bool
    peak_gb: float
    reserved_gb: float


class MemoryAnswer(Answer):
    """GET /admin/memory; the fields are those of :class:`MachineMemory`."""

    total_unified_memory_gb: float
    used_gb: float
    available_gb: float
    threshold_percent: int
    budget_gb: float
    reserved_gb: float
    models: dict[str, ModelMemory]


class HealthAnswer(Answer):
    """GET /admin/health. ``reason`` is there unless it is ``ok``."""

    status: Literal["ok", "degraded"]
    version: str
    reason: str | None = None


class LoadAnswer(Answer):
    """POST /admin/models/load. ``memory_after_load_gb``: of the machine's memory in use.
    ``gpu_layers`` is what was asked for: memory is unified, so it means nothing."""

    success: Literal[True]
    model_id: str
    memory_after_load_gb: float
    time_to_load_ms: float
    context_length: int | None
    gpu_layers: int | None


class UnloadAnswer(Answer):
    """POST /admin/models/unload. ``memory_freed_gb`` is what was measured to come back; where that
    took too long (``memory`` is null), or the worker went before it was looked at, it is what the
    worker held."""

    success: Literal[True]
    model_id: str
    memory_freed_gb: float
    memory: MemoryReturned | None


class DeleteAnswer(Answer):
    """DELETE /admin/models/{id}."""

    success: Literal[True]
    model_id: str
    freed_bytes: int


class ReloadAnswer(Answer):
    """POST /admin/config/reload. ``updated``: the sections that differ; ``changes``: what follows,
    for people."""

    success: Literal[True]
    updated: list[str]
    changes: list[str]


DownloadState = Literal["downloading", "completed", "failed", "cancelled", "interrupted"]
"""``interrupted``: lmx ended while it ran. Asked for again, it goes on where it stopped, like
one that failed or was cancelled."""


class DownloadAnswer(Answer):
    """One download. ``estimated_size_bytes``: null until it is known. ``speed_mbps``: megabits
    (10^6 bits) a second. ``model_id``: under what the model is served, once it is completed."""

    download_id: str
    repo_id: str
    revision: str
    filename: str | None
    estimated_size_bytes: int | None
    status: DownloadState
    progress_percent: float | int
    downloaded_bytes: int
    speed_mbps: float
    started_at: float
    ended_at: float | None
    model_id: str | None
    error: ErrorObject | None


class DownloadsAnswer(Answer):
    """GET /admin/models/download: the latest first."""

    downloads: list[DownloadAnswer]
    count: int


class DownloadProgress(Answer):
    """One event of a download's progress. While it runs it has bytes and speed; a completed one
    has its ``model_id``, one that ended otherwise its ``error``."""

    download_id: str
    status: DownloadState
    progress_percent: float | int
    downloaded_bytes: int | None = None
    speed_mbps: float | None = None
    model_id: str | None = None
    error: ErrorObject | None = None


class AvailableAnswer(Answer):
    """A model on this machine's disk. ``downloaded_at``: ISO 8601 in UTC, without an offset."""

    repo_id: str
    local_path: str
    size_bytes: int
    downloaded_at: str
