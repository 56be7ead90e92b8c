"""One configured model as the supervisor holds it: its configuration, its worker, its past."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lmx.protocol.states import LoadPhase, ModelKind, SlotState, WorkerState
from lmx.supervisor.config import ModelConfig
from lmx.supervisor.restart import FailureRecord
from lmx.supervisor.worker_state import Worker

MAX_WAITERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked a question on the control socket, and which one."""

    identity: bytes
    correlation: int


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits for the model to be ready."""

    asker: Asker
    deadline_s: float


@dataclass(slots=True)
class Slot:
    """A model's place. Owned and changed by the supervisor's core alone.

    ``wanted``: it is to be running; decides what follows an exit. ``path``: its folder on
    this machine, None until a fetch has told. ``kind``: what the model is for, None until the
    folder is known. ``problem``: why it is down, for people.
    """

    model: ModelConfig
    state: SlotState = SlotState.COLD
    wanted: bool = False
    path: Path | None = None
    kind: ModelKind | None = None
    worker: Worker | None = None
    failures: FailureRecord = field(default_factory=FailureRecord)
    restarts: int = 0
    retry_at_s: float | None = None
    ready_at_s: float | None = None
    loaded_at_s: float | None = None
    problem: str | None = None
    fetch_phase: LoadPhase | None = None
    fetch_fraction: float | None = None
    waiters: list[Waiter] = field(default_factory=list)

    @property
    def ready_worker(self) -> Worker | None:
        """The worker, if it takes requests."""
        if self.worker is not None and self.worker.state is WorkerState.READY:
            return self.worker
        return None
