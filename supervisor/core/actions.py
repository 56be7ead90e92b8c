"""What the core has done for it: everything that touches the world."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from lmx.protocol.states import ModelKind
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.decisions.slots.demand import Asker
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.events import Events
from lmx.supervisor.memory.inspection import Inspection, Question
from lmx.supervisor.memory.plan import MemoryPlan


class Actions(Events, Protocol):
    """Processes, sockets, files, the log. None of these may block or call back into the core, and
    none but ``spawn`` raises ``OSError``: what becomes of a model must not hang on a disk."""

    def wall_s(self) -> float:
        """Return the time of day, in seconds since 1970."""

    def local_path(self, model: ModelConfig) -> Path | None:
        """Return the model's folder if it is on this machine as it is, else None."""

    def inspect(self, model_id: str, question: Question) -> Inspection | None:
        """Have a model's files read. Returns what they say where that is known at once; None: it
        comes with ``Core.inspected``, always, of the latest question for this model alone."""

    def start_fetch(self, model: ModelConfig) -> None:
        """Begin to make the model available; progress and the end come as events."""

    def stop_fetch(self, model_id: str) -> None:
        """End a fetch, if one runs; no event follows."""

    def plan_memory(self, model: ModelConfig, found: Inspection) -> MemoryPlan:
        """Return what a worker will need. Reads nothing. Raises :class:`LmxError`."""

    def remember(self, plan: MemoryPlan, static_bytes: int, peak_bytes: int) -> None:
        """Keep what a worker with this plan was measured at: after its load (``peak_bytes`` 0),
        and at its end."""

    def spawn(
        self, model: ModelConfig, instance: str, path: Path, kind: ModelKind, plan: MemoryPlan
    ) -> int:
        """Start a worker and return its pid. Raises ``OSError``, or ``TypeError``, ``ValueError``
        and ``OverflowError`` for a configuration that can't travel."""

    def keep_reservation(self, worker: Worker, reserved_bytes: int) -> None:
        """Keep what a worker holds since its load was measured, for the supervisor that may take
        over from this one."""

    def signal(self, worker: Worker, number: int) -> None:
        """Signal the worker's process group; nothing if it is gone."""

    def send(self, worker: Worker, message: Any) -> None:
        """Send a control message to a worker; lost if it does not listen."""

    def forget(self, worker: Worker) -> None:
        """Remove what an exited worker left: its record, its socket file, processes of its."""

    def measure_back(self, worker: Worker, reserved_bytes: int) -> None:
        """See whether an exited worker's memory comes back. Within a time of its own that is
        told with ``Core.memory_settled``, always: until then the bytes are nobody's."""

    def save_pins(self, pins: Mapping[str, bool]) -> str | None:
        """Keep what operators pinned and unpinned. Returns the file and why it could not be
        written, None if it was."""

    def save_holds(self, held: Collection[str]) -> None:
        """Keep which models operators drained."""

    def reply(self, asker: Asker, message: Any) -> None:
        """Answer a question; lost if the asker has gone."""

    def publish(self, message: Any) -> None:
        """Tell all routers."""
