"""One worker as the supervisor sees it, the events of its life and their effects. Values only."""

import signal
from dataclasses import dataclass, field
from typing import Final

from lmx.protocol.messages.control import RefusedAdapter
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.messages.template import UNKNOWN_TEMPLATE, TemplateFacts
from lmx.protocol.states import ExitCause, LoadPhase, MediaKind, ModelKind, WorkerState


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
"""SIGKILL is sent once a second. A process that survives this many is held by the kernel, because a
driver hangs. Nobody must wait for its memory."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process. Times are monotonic seconds."""

    instance: str
    model_id: str
    pid: int
    limits: Limits
    state: WorkerState
    """Its state in the table of :mod:`lmx.supervisor.decisions.lifecycle`."""
    deadline_s: float | None
    """When the present state times out; None if it does not."""
    beat_at_s: float
    """When its last heartbeat came."""
    adopted: bool = False
    """Whether an earlier supervisor started it."""
    phase: LoadPhase | None = None
    """What its load is busy with."""
    fraction: float | None = None
    """How much of the phase is done, from 0 to 1; None where that is unknown."""
    ready_memory_bytes: int = 0
    """The memory that it measured when it became ready."""
    figures: WorkerFigures = field(default_factory=WorkerFigures)
    """The figures of its last heartbeat."""
    context_length: int | None = None
    capabilities: tuple[str, ...] = ()
    template: TemplateFacts = UNKNOWN_TEMPLATE
    remarks: tuple[str, ...] = ()
    """Why its model's answers may differ from what the model was made for."""
    media: tuple[MediaKind, ...] | None = None
    """What its model takes besides text; None before the model is loaded."""
    refused_adapters: tuple[RefusedAdapter, ...] = ()
    """The adapters that it can't use."""
    kind: ModelKind | None = None
    rows: int = 0
    """The number of requests that it worked on at its last heartbeat."""
    queued: int = 0
    """The number of requests that waited in it at its last heartbeat."""
    stalled_s: float = 0.0
    """For how long it had made no progress with its requests, at its last heartbeat."""
    stall_waited_s: float = 0.0
    """How much of that time it waited for a processor."""
    reported_state: WorkerState | None = None
    """The state that its last heartbeat named."""
    idle_since_s: float | None = None
    """When its last request ended; None while it has one, or is not READY."""
    keep_alive_s: float | None = None
    """For how long its last request wants the model to stay loaded."""
    polite: bool = False
    """Whether it was asked to drain only if it is idle."""
    stopping_at_s: float | None = None
    """When it was asked to end."""
    kill_at_s: float | None = None
    """When it is killed if it does not end by itself: of a hung one that was signalled to write its
    stacks, and not yet to end. None for all others."""
    kills: int = 0
    """How often the second after a SIGKILL, or its time to end, was over without its end."""
    permanent: bool = False
    """Whether its load failed in such a way that another try would fail too."""
    cause: ExitCause | None = None
    """Why it ends."""
    detail: str = ""
    """More about why it ends, for people."""
    history: tuple[str, ...] = ()
    """Its latest changes of state, for the message of a bug."""

    @property
    def stuck(self) -> bool:
        """Whether not even SIGKILL ends it."""
        return self.kills >= STUCK_KILLS

    @property
    def busy(self) -> bool:
        """Whether requests were in flight at its last heartbeat."""
        return self.rows + self.queued > 0


# Events other than the messages that a worker sends.


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    paused_s: float = 0.0
    """How long the supervisor's process itself was not running."""
    waited_s: float = 0.0
    """How much of the time the worker waited for a processor, if it is late
    (:func:`lmx.supervisor.decisions.lifecycle.is_late`)."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Somebody wants the worker to end after its streams. With the cause EVICTED or EXPIRED the
    streams may take as long as they need, with any other cause ``Limits.drain_s``."""

    if_idle: bool
    cause: ExitCause
    detail: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the worker to end now, by itself."""

    cause: ExitCause
    detail: str


@dataclass(frozen=True, slots=True)
class KillRequested:
    """Somebody wants the worker to be killed at once."""

    cause: ExitCause
    detail: str
    may_end: bool = False
    """Whether it gets SIGTERM and its grace before."""


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The process is gone."""

    status: int | None
    """As in ``Popen.returncode``; None if it can't be known, because the process was not a child of
    this one."""
    out_of_memory: bool = False
    """Whether the system says that memory ran out."""


# Effects.


@dataclass(frozen=True, slots=True)
class SendWelcome:
    """Answer the worker's hello, so that it starts to load."""


@dataclass(frozen=True, slots=True)
class SendDrain:
    """Ask the worker to drain."""

    if_idle: bool


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Send a signal to the worker's process group."""

    number: signal.Signals


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The worker answers requests now, and the ledger takes the bytes that it measured."""

    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """Not even SIGKILL ends the worker, and its memory stays taken."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker is gone: release its bytes, notify its clients, and decide whether to start it
    again."""

    cause: ExitCause
    detail: str


Effect = SendWelcome | SendDrain | SendSignal | BecameReady | Stuck | Ended
