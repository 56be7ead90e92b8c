"""One configured model as the supervisor holds it: its configuration, its worker, its past."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lmx.protocol.errors import LmxError
from lmx.protocol.states import ExitCause, LoadPhase, ModelKind, SlotState, WorkerState
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.decisions.reclaim import Returned
from lmx.supervisor.decisions.restart import FailureRecord
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.memory.inspection import Inspection, ModelFacts
from lmx.supervisor.memory.plan import MemoryPlan

MAX_WAITERS: Final = 1000

_ASKS_AGAIN_S: Final = 2.0
"""Who was told that it takes longer asks again at once, if it still wants the model: until then
its place in the queue is kept."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked a question on the control socket, and which one."""

    identity: bytes
    correlation: int


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits for the model to be ready, since ``since_s``."""

    asker: Asker
    deadline_s: float
    since_s: float


@dataclass(frozen=True, slots=True)
class LastExit:
    """How a model's last worker ended; ``at_s`` is the time of day. ``returned``: what came back
    of its memory, None until that was measured."""

    cause: ExitCause
    detail: str
    at_s: float
    instance: str
    pid: int
    returned: Returned | None = None


@dataclass(slots=True)
class Slot:
    """A model's place. Owned and changed by the supervisor's core alone.

    ``wanted``: it is to be running; decides what follows an exit. ``path``: its folder on
    this machine, None until a fetch has told. ``kind``: what the model is for, None until the
    folder is known, as are ``facts``; ``inspection`` is all that its files say. ``plan``: the
    memory of its worker, or of the one that it waits for, None while its files are being read;
    ``needs``: what its next worker would get, as of its files and of what was measured since,
    None until they are known. ``capabilities``: what its last worker said that requests may use.
    ``problem``: why it is down, for people; ``given_up``: the error that its last start ended with
    before there was a worker. ``held``: an operator drained it, it takes no request. ``removed``:
    it is no longer configured and goes with its worker. ``ordered_at_s``: since when an operator
    waits for it. ``evicted_for``: the model that its
    worker makes room for. ``queue_told``: that it waits was noted.
    """

    model: ModelConfig
    state: SlotState = SlotState.COLD
    wanted: bool = False
    pinned: bool = False
    held: bool = False
    removed: bool = False
    path: Path | None = None
    kind: ModelKind | None = None
    inspection: Inspection | None = None
    facts: ModelFacts = field(default_factory=ModelFacts)
    plan: MemoryPlan | None = None
    needs: MemoryPlan | None = None
    worker: Worker | None = None
    failures: FailureRecord = field(default_factory=FailureRecord)
    restarts: int = 0
    retry_at_s: float | None = None
    spawned_at_s: float | None = None
    ready_at_s: float | None = None
    loaded_at_s: float | None = None
    capabilities: tuple[str, ...] = ()
    problem: str | None = None
    given_up: LmxError | None = None
    fetch_phase: LoadPhase | None = None
    fetch_fraction: float | None = None
    waiters: list[Waiter] = field(default_factory=list)
    ordered_at_s: float | None = None
    lapsed_since_s: float = 0.0
    lapsed_at_s: float | None = None
    evicted_for: str | None = None
    queue_told: bool = False
    loads_total: int = 0
    load_s_total: float = 0.0
    exits: Counter[ExitCause] = field(default_factory=Counter)
    last_exit: LastExit | None = None

    @property
    def trouble(self) -> str | None:
        """Why it is down, or would be if it were started now, for people."""
        if self.problem is None and self.worker is None and self.inspection is not None:
            return self.inspection.problem
        return self.problem

    @property
    def added(self) -> bool:
        """Whether the model was added while lmx ran."""
        return isinstance(self.model, AddedModelConfig)

    @property
    def context_length(self) -> int | None:
        """The context that its worker has, or the next one will have; else the one that is set.
        None: the model's own, which is not known."""
        if self.worker is not None and self.worker.context_length:
            return self.worker.context_length
        planned = self.plan or self.needs
        return (planned.context_tokens if planned else None) or self.model.context_length

    @property
    def ready_worker(self) -> Worker | None:
        """The worker, if it takes requests."""
        if self.worker is not None and self.worker.state is WorkerState.READY:
            return self.worker
        return None

    def asked_at_s(self, now_s: float) -> float | None:
        """Return since when somebody waits for the model; None if nobody does."""
        asked = [waiter.since_s for waiter in self.waiters]
        if self.ordered_at_s is not None:
            asked.append(self.ordered_at_s)
        if self.lapsed_at_s is not None and now_s < self.lapsed_at_s + _ASKS_AGAIN_S:
            asked.append(self.lapsed_since_s)
        return min(asked, default=None)

    def take_overdue(self, now_s: float) -> list[Waiter]:
        """Take out the requests whose time to wait is over; the last one's place is kept for a
        moment."""
        overdue = [waiter for waiter in self.waiters if now_s >= waiter.deadline_s]
        if overdue:
            self.lapsed_since_s = min(waiter.since_s for waiter in overdue)
            self.lapsed_at_s = now_s
            self.waiters = [waiter for waiter in self.waiters if now_s < waiter.deadline_s]
        return overdue

    def take_waiters_of(self, identity: bytes) -> list[Waiter]:
        """Take out those whom one asker asked for; they need no answer."""
        taken = [waiter for waiter in self.waiters if waiter.asker.identity == identity]
        self.waiters = [waiter for waiter in self.waiters if waiter not in taken]
        return taken

    def take_waiters(self) -> list[Waiter]:
        """Take out all who wait: each is about to get its answer."""
        waiters, self.waiters = self.waiters, []
        self.ordered_at_s = self.lapsed_at_s = None
        return waiters
