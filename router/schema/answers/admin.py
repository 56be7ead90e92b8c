"""The answers of the routes for operators, in Opta-LMX's shapes with lmx's fields beside.

They include the answers of the routes about downloads. Fields in ``_gb`` are GiB. Times in ``_at``
are seconds since 1970 unless said otherwise.
"""

from __future__ import annotations

from typing import Literal

from lmx.router.http.api_family import ErrorObject
from lmx.router.http.responses import Answer
from lmx.router.schema.answers.operation import MemoryReturned


class MachineMemory(Answer):
    """The machine's memory, and lmx's share of it."""

    total_gb: float
    used_gb: float
    available_gb: float
    usage_percent: float
    threshold_percent: int
    """Above this share in use, nothing is loaded and idle models are unloaded."""
    pressure: Literal["none", "soft", "hard"]
    budget_gb: float
    """What all models may take together."""
    reserved_gb: float
    """The part of the budget that is taken."""


class StatusAnswer(Answer):
    """The answer of GET /admin/status."""

    version: str
    uptime_seconds: float
    loaded_models: int
    models: list[str]
    """The models that are loaded."""
    memory: MachineMemory
    state: Literal["running", "stopping"]
    requests_active: int
    """Requests that run, of all models."""
    requests_waiting: int
    """Requests that wait, of all models."""


class ModelLine(Answer):
    """What is known of any model."""

    id: str
    loaded: bool
    state: str
    source: str
    aliases: list[str]
    kind: str | None
    context_length: int | None
    pinned: bool
    problem: str | None
    """Why it can't be loaded, or why its last load failed."""


class LoadedModel(ModelLine):
    """A model in memory."""

    memory_gb: float
    """What its process takes now."""
    loaded_at: float | None
    use_batching: bool
    request_count: int
    """Its requests since lmx was started, or since it was loaded if that number is higher."""
    last_used_at: float | None
    """When it was last used. Null if it has had no request."""
    requests_active: int
    requests_queued: int
    expires_in_s: float | None
    """When it will be unloaded if no request comes. Null if it stays loaded."""


class UnloadedModel(ModelLine):
    """A model that is not in memory."""

    progress: float | None
    """How far its load is, from 0 to 1. Null if it is not being loaded."""


class ModelsAnswer(Answer):
    """The answer of GET /admin/models."""

    loaded: list[LoadedModel]
    count: int
    """How many models are loaded."""
    available: list[UnloadedModel]


class ModelMemory(Answer):
    """One model's memory."""

    memory_gb: float
    loaded: bool
    peak_gb: float
    """The most that it has taken."""
    reserved_gb: float
    """The part of the budget that is reserved for it."""


class MemoryAnswer(Answer):
    """The answer of GET /admin/memory. The fields are those of :class:`MachineMemory`."""

    total_unified_memory_gb: float
    used_gb: float
    available_gb: float
    threshold_percent: int
    budget_gb: float
    reserved_gb: float
    models: dict[str, ModelMemory]


class HealthAnswer(Answer):
    """The answer of GET /admin/health."""

    status: Literal["ok", "degraded"]
    version: str
    reason: str | None = None
    """Why it is degraded. Left out if it is ok."""


class LoadAnswer(Answer):
    """The answer of POST /admin/models/load."""

    success: Literal[True]
    model_id: str
    memory_after_load_gb: float
    """How much of the machine's memory is in use after the load."""
    time_to_load_ms: float
    context_length: int | None
    gpu_layers: int | None
    """The value of the request. Memory is unified, so it has no effect."""


class UnloadAnswer(Answer):
    """The answer of POST /admin/models/unload."""

    success: Literal[True]
    model_id: str
    memory_freed_gb: float
    """How much memory was measured to come back. If that took too long (`memory` is null), or the
    worker ended before it could be measured, it is what the worker held."""
    memory: MemoryReturned | None


class DeleteAnswer(Answer):
    """The answer of DELETE /admin/models/{id}."""

    success: Literal[True]
    model_id: str
    freed_bytes: int


class ReloadAnswer(Answer):
    """The answer of POST /admin/config/reload."""

    success: Literal[True]
    updated: list[str]
    """The sections that differ."""
    changes: list[str]
    """What follows from the changes, in sentences for people."""


DownloadState = Literal["downloading", "completed", "failed", "cancelled", "interrupted"]
"""``interrupted`` means that lmx ended while the download ran. It goes on where it stopped when it
is requested again, like a download that failed or was cancelled."""


class DownloadAnswer(Answer):
    """One download."""

    download_id: str
    repo_id: str
    revision: str
    filename: str | None
    estimated_size_bytes: int | None
    """Null until it is known."""
    status: DownloadState
    progress_percent: float | int
    downloaded_bytes: int
    speed_mbps: float
    """Megabits (10^6 bits) per second."""
    started_at: float
    ended_at: float | None
    model_id: str | None
    """The id under which the model is served, once the download is completed."""
    error: ErrorObject | None


class DownloadsAnswer(Answer):
    """The answer of GET /admin/models/download: the latest download comes first."""

    downloads: list[DownloadAnswer]
    count: int


class DownloadProgress(Answer):
    """One event of a download's progress."""

    download_id: str
    status: DownloadState
    progress_percent: float | int
    downloaded_bytes: int | None = None
    """Present while the download runs."""
    speed_mbps: float | None = None
    """Present while the download runs."""
    model_id: str | None = None
    """Present once the download is completed."""
    error: ErrorObject | None = None
    """Present if the download ended in any other way."""


class AvailableAnswer(Answer):
    """A model on this machine's disk."""

    repo_id: str
    local_path: str
    size_bytes: int
    downloaded_at: str
    """ISO 8601 in UTC, without an offset."""
