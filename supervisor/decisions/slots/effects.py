"""What is to be done about what happened to a model's slot, beside the messages and signals that
its worker is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.errors import LmxError
from lmx.protocol.states import ExitCause
from lmx.supervisor.decisions.slots.demand import Waiter
from lmx.supervisor.decisions.worker import SendDrain, SendSignal, SendWelcome, Worker


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Have its files read. Their answer is ``Planned``, ``NotStarted`` or ``FilesMissing``."""


@dataclass(frozen=True, slots=True)
class StartFetch:
    """Begin to make the model available on this machine."""


@dataclass(frozen=True, slots=True)
class StopFetch:
    """End its fetch; no event follows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell those who waited that the worker is ready."""

    waiters: tuple[Waiter, ...]
    instance: str


@dataclass(frozen=True, slots=True)
class Deny:
    """Tell those who waited that they waited in vain."""

    waiters: tuple[Waiter, ...]
    error: LmxError


@dataclass(frozen=True, slots=True)
class TellLate:
    """Tell those whose time to wait is over where the model is."""

    waiters: tuple[Waiter, ...]


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker answers requests; the ledger takes its measured bytes."""

    worker: Worker
    memory_bytes: int
    load_s: float | None
    """How long its load took; None where this supervisor did not see all of it."""


@dataclass(frozen=True, slots=True)
class WorkerMeasured:
    """The worker told what it holds."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerStuck:
    """Not even SIGKILL ends the worker."""

    worker: Worker
    detail: str


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """The worker's process is gone: release its bytes, count its end, tell its clients."""

    worker: Worker
    cause: ExitCause
    detail: str
    was_ready: bool
    swapped: bool
    """Whether it made room for another model."""
    restarts: bool
    """Whether it counts as a restart that the model is started again."""
    decision: str
    """What follows, for people."""


@dataclass(frozen=True, slots=True)
class Note:
    """Keep an event for people. ``data``: plain values."""

    name: str
    detail: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogNoRoom:
    """Log that there is no room for the model. It is no event for people: each request hears it,
    and would push all else out of the events."""

    detail: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The slot of a removed model is to be forgotten."""


SlotEffect = (
    ReadFiles
    | StartFetch
    | StopFetch
    | SendWelcome
    | SendDrain
    | SendSignal
    | Answer
    | Deny
    | TellLate
    | WorkerReady
    | WorkerMeasured
    | WorkerStuck
    | WorkerGone
    | Note
    | LogNoRoom
    | Gone
)
