"""What the routes about downloads answer with, in Opta-LMX's shapes."""

from __future__ import annotations

from typing import Literal

from lmx.router.answer_error import ErrorObject
from lmx.router.answer_types import Answer

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
