"""What the event loop puts into the engine thread's inbox, besides jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmx.worker.jobs import Job


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a job; ``step``: the one that ran when it was cancelled."""

    job_id: int
    step: int


@dataclass(frozen=True, slots=True)
class RunTask:
    """Compute a piece of a task, when it is its ``owner``'s turn."""

    task_id: int
    request: Any
    owner: str


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Drop a task that still waits."""

    task_id: int


@dataclass(frozen=True, slots=True)
class Press:
    """Look how short the machine is of memory: that is kept beside the inbox."""


Order = Job | Cancel | RunTask | CancelTask | Press | None
"""None: end."""
