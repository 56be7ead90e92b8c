"""What may happen to a model's slot. A worker's messages, ``KillAsked`` and ``Tick`` are events of
its slot too."""

from __future__ import annotations

from dataclasses import dataclass

from lmx.protocol.errors import LmxError
from lmx.protocol.states import ExitCause, LoadPhase
from lmx.supervisor.decisions.slots.demand import Waiter
from lmx.supervisor.decisions.worker import Worker


@dataclass(frozen=True, slots=True)
class Asked:
    """A request waits for the model to be ready."""

    waiter: Waiter


@dataclass(frozen=True, slots=True)
class Preloaded:
    """The configuration wants the model to be there from the beginning."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """An operator wants the model: at once also out of backoff, quarantine and hold, its past
    forgiven."""


@dataclass(frozen=True, slots=True)
class OrderedAnew:
    """An operator wants another worker of the model than the one that it has, if it has one."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unloaded:
    """An operator wants the model's worker to end after its streams; its next request loads it
    again."""


@dataclass(frozen=True, slots=True)
class Held:
    """An operator wants the model down, and to take no request."""


@dataclass(frozen=True, slots=True)
class Reset:
    """An operator forgives the model's failures and its hold."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The requests of one router have all left."""

    identity: bytes


@dataclass(frozen=True, slots=True)
class ShutDown:
    """lmx ends: so does the worker, and nobody waits any more."""

    at_once: bool


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The model has another configuration, for which a worker must be started anew."""


@dataclass(frozen=True, slots=True)
class Reread:
    """What the model needs may have changed: its files are to be read again."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The model is no longer configured."""

    detail: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The model is configured again, while its worker of before is on its way out."""

    preload: bool


@dataclass(frozen=True, slots=True)
class FilesMissing:
    """The model is not on this machine as it is: it must be fetched."""


@dataclass(frozen=True, slots=True)
class FetchAdvanced:
    """Its fetch has come so far."""

    phase: LoadPhase
    fraction: float | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """Its fetch has ended well."""


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """Its fetch has ended without the model."""

    error: LmxError


@dataclass(frozen=True, slots=True)
class Planned:
    """Its files were read: it waits for so much memory."""

    need_bytes: int


@dataclass(frozen=True, slots=True)
class QueueTold:
    """People were told that it waits for memory."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """No worker of it can be started as things stand."""

    error: LmxError


@dataclass(frozen=True, slots=True)
class Dropped:
    """There is no room for it and nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Launched:
    """Its bytes are reserved and its worker was started."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Adopted:
    """A worker of it that an earlier supervisor started is taken over."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Evicted:
    """It is to give its memory back, to make room or because it was idle for long enough."""

    cause: ExitCause
    detail: str
    if_idle: bool
    for_model: str | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    """The end of its worker's process was observed. ``status`` and ``out_of_memory`` as in
    :class:`lmx.supervisor.decisions.worker.ProcessExited`."""

    status: int | None
    out_of_memory: bool = False
    jitter: float = 0.0
    """A uniform random number in [0, 1), for the wait before the next start."""
