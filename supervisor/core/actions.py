"""The actions that the core asks for: everything that touches the world outside it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lmx.protocol.messages.specs import AdapterSpec
from lmx.protocol.states import ModelKind
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.events import Events
from lmx.supervisor.memory.inspection import Inspection, Question
from lmx.supervisor.memory.plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What a worker is started with."""

    instance: str
    model: ModelConfig
    path: Path
    kind: ModelKind
    plan: MemoryPlan
    adapters: tuple[AdapterSpec, ...] = ()


class Actions(Events, Protocol):
    """Processes, sockets, files and the log. None of the methods may block or call back into the
    core, and none but ``spawn`` raises ``OSError``: what happens to a model must not depend on a
    disk."""

    def wall_s(self) -> float:
        """Return the time of day, in seconds since 1970."""

    def local_path(self, model: ModelConfig) -> Path | None:
        """Return the model's folder if it is on this machine, and neither it nor an adapter of it
        needs a fetch, else None."""

    def inspect(self, model_id: str, question: Question) -> Inspection | None:
        """Ask for a model's files to be read. Returns what they say if that is known at once. If
        this returns None, ``Core.inspected`` is always called later, but only for the latest
        question about this model."""

    def start_fetch(self, model: ModelConfig) -> None:
        """Begin to make the model and its adapters available. Progress and the end come as
        events."""

    def stop_fetch(self, model_id: str) -> None:
        """End a fetch, if one runs. No event follows."""

    def plan_memory(self, model: ModelConfig, found: Inspection) -> MemoryPlan:
        """Return what a worker will need. Reads nothing. Raises :class:`LmxError`."""

    def remember(self, plan: MemoryPlan, static_bytes: int, peak_bytes: int) -> None:
        """Keep what a worker with this plan was measured at. This is called after its load, with a
        ``peak_bytes`` of 0, and at its end."""

    def instance_for(self, model: ModelConfig) -> str:
        """Return the instance id of the model's next worker."""

    def spawn(self, start: WorkerStart) -> int:
        """Start a worker and return its pid. Raises ``OSError``, and ``TypeError``, ``ValueError``
        or ``OverflowError`` for a configuration that can't be encoded."""

    def keep_reservation(self, worker: Worker, reserved_bytes: int) -> None:
        """Record what a worker holds since its load was measured, for the supervisor that may take
        over from this one."""

    def signal(self, worker: Worker, number: int) -> None:
        """Send a signal to the worker's process group. Does nothing if the group is gone."""

    def waited_s(self, worker: Worker, now_s: float) -> float:
        """Return how much of the time since the last call the process of a worker that is late, or
        one that it has started, waited for a processor."""

    def send(self, worker: Worker, message: Any) -> None:
        """Send a control message to a worker. The message is lost if the worker does not listen."""

    def forget(self, worker: Worker) -> None:
        """Remove what an exited worker left: its record, its socket file, its descendants."""

    def measure_back(self, worker: Worker, reserved_bytes: int) -> None:
        """Watch whether an exited worker's memory comes back. ``Core.memory_settled`` is always
        called within some time. Until then no other worker can have the bytes."""

    def save_pins(self, pins: Mapping[str, bool]) -> str | None:
        """Save what operators pinned and unpinned. Returns None, or the file and the reason why it
        could not be written."""

    def save_holds(self, held: Collection[str]) -> None:
        """Save which models operators drained."""

    def reply(self, requester: Requester, message: Any) -> None:
        """Reply to a question. The reply is lost if the asker has gone."""

    def publish(self, message: Any) -> None:
        """Send a message to all routers."""
