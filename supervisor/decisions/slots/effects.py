"""The effects of what happened to a model's slot: what must be done, besides the messages and
signals for its worker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.errors import LmxError
from lmx.protocol.states import ExitCause
from lmx.supervisor.decisions.slots.demand import Waiter
from lmx.supervisor.decisions.worker import SendDrain, SendSignal, SendWelcome, Worker


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Ask for the model's files to be read. The event ``Planned``, ``NotStarted`` or
    ``FilesMissing`` follows."""


@dataclass(frozen=True, slots=True)
class StartFetch:
    """Begin to make the model available on this machine."""


@dataclass(frozen=True, slots=True)
class StopFetch:
    """End the model's fetch. No event follows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the requests that waited: the worker is ready."""

    waiters: tuple[Waiter, ...]
    instance: str


@dataclass(frozen=True, slots=True)
class Deny:
    """Answer the requests that waited with why they can't have the model."""

    waiters: tuple[Waiter, ...]
    error: LmxError


@dataclass(frozen=True, slots=True)
class NotifyLate:
    """Answer the requests whose time to wait is over with where the model is."""

    waiters: tuple[Waiter, ...]


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker answers requests, and the ledger takes the bytes that it measured."""

    worker: Worker
    memory_bytes: int
    load_s: float | None
    """How long its load took; None if this supervisor did not see all of it."""


@dataclass(frozen=True, slots=True)
class WorkerMeasured:
    """The worker reported how much memory it holds."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerStuck:
    """Not even SIGKILL ends the worker."""

    worker: Worker
    detail: str


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The worker's process is gone: release its bytes, count its end, notify its clients."""

    worker: Worker
    cause: ExitCause
    detail: str
    was_ready: bool
    swapped: bool
    """Whether it made room for another model."""
    restarts: bool
    """Whether the model is started again, and that counts as a restart."""
    decision: str
    """What follows, for people."""


@dataclass(frozen=True, slots=True)
class Note:
    """Keep an event for people. ``data`` has plain values."""

    name: str
    detail: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogNoCapacity:
    """Log that there is no room for the model. This is not kept as an event, because each request
    causes it, and it would push everything else out of the events."""

    detail: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Forget the slot of a removed model."""


SlotEffect = (
    ReadFiles
    | StartFetch
    | StopFetch
    | SendWelcome
    | SendDrain
    | SendSignal
    | Answer
    | Deny
    | NotifyLate
    | WorkerReady
    | WorkerMeasured
    | WorkerStuck
    | WorkerGone
    | Note
    | LogNoCapacity
    | Gone
)
