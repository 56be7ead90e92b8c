"""The events that may happen to a model's slot. The messages of its worker, ``KillRequested`` and
``Tick`` are events of the slot too."""

from dataclasses import dataclass

from lmx.protocol.errors import LmxError
from lmx.protocol.states import ExitCause, LoadPhase
from lmx.supervisor.decisions.slots.demand import Waiter
from lmx.supervisor.decisions.worker import Worker


@dataclass(frozen=True, slots=True)
class Requested:
    """A request waits for the model to be ready."""

    waiter: Waiter


@dataclass(frozen=True, slots=True)
class Preloaded:
    """The configuration wants the model to be there from the beginning."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """An operator wants the model loaded. It leaves backoff, quarantine and hold at once, and its
    failures are forgotten."""


@dataclass(frozen=True, slots=True)
class ReloadOrdered:
    """An operator wants another worker of the model in place of the one that it may have."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unloaded:
    """An operator wants the model's worker to end after its streams. The next request loads the
    model again."""


@dataclass(frozen=True, slots=True)
class Held:
    """An operator wants the model to be unloaded and to take no request."""


@dataclass(frozen=True, slots=True)
class Reset:
    """An operator wants the model's failures and its hold to be forgotten."""


@dataclass(frozen=True, slots=True)
class FilesLeaving:
    """The model's files are about to be deleted, so that nothing may begin to read them; or the
    deletion is over."""

    leaving: bool


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The requests of one router for the model have all left."""

    identity: bytes


@dataclass(frozen=True, slots=True)
class ShutDown:
    """lmx is being stopped. The worker ends too, and nobody waits any more."""

    at_once: bool


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The model has another configuration, for which a worker must be restarted."""


@dataclass(frozen=True, slots=True)
class Reread:
    """The memory that the model needs may have changed, and its files must be read again."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The model is no longer configured."""

    detail: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The model is configured again, while its earlier worker is about to end."""

    preload: bool
    reconfigured: bool = False
    """Whether it has another configuration than before."""


@dataclass(frozen=True, slots=True)
class FilesMissing:
    """The model is not on this machine in a form that can be loaded, and must be fetched."""


@dataclass(frozen=True, slots=True)
class FetchAdvanced:
    """The model's fetch has made progress."""

    phase: LoadPhase
    fraction: float | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """The model's fetch has ended well."""


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The model's fetch has failed."""

    error: LmxError
    by_host: bool = False
    """As in :class:`NotStarted`."""
    jitter: float = 1.0
    """As in :class:`Exited`."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The model's files were read, and it waits for ``need_bytes`` of memory."""

    need_bytes: int


@dataclass(frozen=True, slots=True)
class QueueReported:
    """People were notified that the model waits for memory."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """No worker of the model can be started as things stand."""

    error: LmxError
    by_host: bool = False
    """Whether the machine has no process or no file for it, or lost the process that reads the
    model's files, which passes by itself."""
    jitter: float = 1.0
    """As in :class:`Exited`."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """There is no room for the model, and nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The model's bytes are reserved, and its worker was started."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Adopted:
    """A worker of the model that an earlier supervisor started is taken over."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Evicted:
    """The model must give its memory back, to make room or because it was idle for long enough."""

    cause: ExitCause
    detail: str
    if_idle: bool
    for_model: str | None = None


@dataclass(frozen=True, slots=True)
class MemorySettled:
    """It was measured how much of the memory of the model's last worker came back: all but
    ``missing_bytes``."""

    missing_bytes: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The end of the worker's process was observed. ``status`` and ``out_of_memory`` are those of
    :class:`lmx.supervisor.decisions.worker.ProcessExited`."""

    status: int | None
    out_of_memory: bool = False
    jitter: float = 0.0
    """A uniform random number in [0, 1), for the wait before the next start."""
