"""One worker as the supervisor sees it, the events of its life and their effects. Values only."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Final

from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import ExitCause, LoadPhase, ModelKind, WorkerState


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a worker may take, in seconds, before it counts as hung."""

    start_s: float
    load_stall_s: float
    beat_s: float
    stall_s: float
    drain_s: float
    term_grace_s: float
    abort_grace_s: float


STUCK_KILLS: Final = 10
"""One a second. A process that outlives so many is in the kernel's hands (a driver that hangs):
nobody is made to wait for its memory."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process. ``deadline_s`` is when the present state times out, if it can.

    ``ready_memory_bytes`` was measured when it became ready, ``figures`` are those of its last
    beat. ``said`` is the state that its last beat named. ``idle_since_s``: when its last request
    ended, None while it has one or is not READY.
    ``keep_alive_s``: what its last request asked for. ``polite``: it is to drain only if idle.
    ``stalled_s``: for how long it had made no progress with its requests, at its last beat.
    ``stopping_at_s``: when it was sent to its end.
    ``kills``: how often it was sent SIGKILL and did not end.
    ``permanent``: its load failed in a way that trying again does not mend.
    """

    instance: str
    model_id: str
    pid: int
    limits: Limits
    state: WorkerState
    deadline_s: float | None
    beat_at_s: float
    adopted: bool = False
    phase: LoadPhase | None = None
    fraction: float | None = None
    ready_memory_bytes: int = 0
    figures: WorkerFigures = field(default_factory=WorkerFigures)
    context_length: int | None = None
    capabilities: tuple[str, ...] = ()
    kind: ModelKind | None = None
    rows: int = 0
    queued: int = 0
    stalled_s: float = 0.0
    said: WorkerState | None = None
    idle_since_s: float | None = None
    keep_alive_s: float | None = None
    polite: bool = False
    stopping_at_s: float | None = None
    kills: int = 0
    permanent: bool = False
    cause: ExitCause | None = None
    detail: str = ""
    history: tuple[str, ...] = ()

    @property
    def stuck(self) -> bool:
        """Whether not even SIGKILL ends it."""
        return self.kills >= STUCK_KILLS

    @property
    def busy(self) -> bool:
        """Whether requests were in flight as it last told."""
        return self.rows + self.queued > 0


# Events beside the messages a worker sends.


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed. ``paused_s`` is how long this process itself was not running."""

    paused_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Somebody wants the worker gone once its streams have ended. ``cause`` EVICTED or EXPIRED
    gives the streams as long as they take, any other one ``Limits.drain_s``."""

    if_idle: bool
    cause: ExitCause
    detail: str


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the worker gone now, politely."""

    cause: ExitCause
    detail: str


@dataclass(frozen=True, slots=True)
class KillAsked:
    """Somebody wants the worker gone this instant."""

    cause: ExitCause
    detail: str


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The process is gone. ``status`` as in ``Popen.returncode``; None when it was not our
    child and nobody can know. ``out_of_memory``: the system says that memory ran out."""

    status: int | None
    out_of_memory: bool = False


# Effects.


@dataclass(frozen=True, slots=True)
class SendWelcome:
    """Answer its Hello, so that it starts to load."""


@dataclass(frozen=True, slots=True)
class SendDrain:
    """Ask it to drain."""

    if_idle: bool


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Signal its process group."""

    number: signal.Signals


@dataclass(frozen=True, slots=True)
class BecameReady:
    """It answers requests now; the ledger takes its measured bytes."""

    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """Not even SIGKILL ends it: its memory stays taken."""


@dataclass(frozen=True, slots=True)
class Ended:
    """It is gone: release its bytes, tell its clients, decide on a restart."""

    cause: ExitCause
    detail: str


Effect = SendWelcome | SendDrain | SendSignal | BecameReady | Stuck | Ended
