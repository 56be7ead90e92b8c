"""Messages on the supervisor's control and events sockets. See PROTOCOL.md, "Control". What routers
know of models is in :mod:`lmx.protocol.messages.snapshot`, the status in
:mod:`lmx.protocol.messages.status`.

Requests are imperatives, facts are past participles. A question carries a correlation in
its envelope, and its reply carries the same one; facts and beats carry none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import (
    ExitCause,
    LoadPhase,
    MemoryPressure,
    ModelKind,
    WorkerState,
)
from lmx.protocol.wire.codec import FLAT, message

# Worker to supervisor.


@message
@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker names itself: at its start, and again to any supervisor that asks Identify.

    ``state`` is the worker's own view (STARTING when it has loaded nothing yet, LOADING,
    READY, DRAINING). ``memory_bytes`` and ``context_length`` are 0 before it is loaded, and
    there are no ``capabilities``, which are Loaded's. ``kind`` is what it was told to serve.
    """

    instance: str
    model_id: str
    pid: int
    state: WorkerState
    memory_bytes: int = 0
    context_length: int = 0
    capabilities: tuple[str, ...] = ()
    kind: ModelKind | None = None


@message
@dataclass(frozen=True, slots=True)
class LoadAdvanced:
    """A load made progress; resets the stall timer. ``fraction`` is None where unknown."""

    instance: str
    phase: LoadPhase
    fraction: float | None
    detail: str = ""


@message
@dataclass(frozen=True, slots=True)
class Loaded:
    """The model answers. ``memory_bytes`` is measured in the worker, not estimated.
    ``capabilities``: what requests may use (``tools``, ``native_tools``, ``structured_outputs``,
    ``reasoning``), for clients to see."""

    instance: str
    memory_bytes: int
    context_length: int
    load_s: float
    capabilities: tuple[str, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model can't be loaded; the process ends by itself or is ended. ``permanent``: trying
    again changes nothing, its files or its configuration must change first."""

    instance: str
    code: ErrorCode
    message: str
    permanent: bool = False


@message
@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """How a worker is: sent every beat interval."""

    instance: str

    state: WorkerState
    """The worker's own view."""

    rows: int
    """Requests that it works on."""

    queued: int
    """Requests that wait in it."""

    stalled_for_s: float
    """For how many seconds work has been in flight without any progress: no token, and no chunk of
    a prompt. 0 while it is idle or advancing."""

    figures: WorkerFigures = field(default=WorkerFigures(), metadata=FLAT)
    """What it measures and counts, for the status and the metrics."""

    idle_for_s: float = 0.0
    """For how many seconds since the last request ended, or since the load; 0 while one is in
    flight."""

    keep_alive_s: float | None = None
    """For how many seconds the last request asked to have it kept; None if it did not, and a
    negative value is forever."""


@message
@dataclass(frozen=True, slots=True)
class DrainRefused:
    """Asked to drain only if idle, and it is not."""

    instance: str
    rows: int


@message
@dataclass(frozen=True, slots=True)
class Drained:
    """No row is left and none will be taken."""

    instance: str


# Supervisor to worker.


@message
@dataclass(frozen=True, slots=True)
class Welcome:
    """Hello was taken; a worker that is STARTING loads its model now."""

    epoch: str


@message
@dataclass(frozen=True, slots=True)
class Identify:
    """A beat came from somebody unknown to this supervisor: say Hello."""

    epoch: str


@message
@dataclass(frozen=True, slots=True)
class BeatSeen:
    """Reply to every beat: the supervisor lives. ``revision`` is its snapshot's."""

    epoch: str
    revision: int


@message
@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new stream; say Drained when the last one ends, or DrainRefused at once."""

    if_idle: bool


@message
@dataclass(frozen=True, slots=True)
class Pressure:
    """The machine's memory runs out. SOFT: give caches back, begin no row while another runs.
    HARD: also fail one request now, the newest of the largest; said again while it must go on.
    NONE: it is over."""

    level: MemoryPressure


# Router to supervisor, and back.


@message
@dataclass(frozen=True, slots=True)
class RouterHello:
    """A router names itself: at its start, and again to any supervisor that asks Identify."""

    pid: int
    router_id: str
    port: int


@message
@dataclass(frozen=True, slots=True)
class RouterBeat:
    """Sent every beat interval. ``requests_total``: those that have ended; ``waiting``: those
    that wait for a model."""

    pid: int
    streams: int
    requests_total: int
    memory_bytes: int
    waiting: int = 0


@message
@dataclass(frozen=True, slots=True)
class Acquire:
    """Question: have this model ready, loading it if need be. Replies: Acquired, or Denied.

    The supervisor answers within ``wait_s``, unless it hears Withdraw before. ``waited_s``: for
    how long the oldest of the requests behind it has waited already, so that asking again does
    not cost its place.
    """

    model_id: str
    wait_s: float
    request_id: str
    waited_s: float = 0.0


@message
@dataclass(frozen=True, slots=True)
class Withdraw:
    """The requests behind all of this router's Acquires of a model have left: no answer is
    awaited any more. A load that was started goes on, others may want it; one that only waits
    for its turn is given up, unless others wait for it."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class Acquired:
    """The model is READY in this worker."""

    model_id: str
    instance: str


@message
@dataclass(frozen=True, slots=True)
class Denied:
    """Reply to any question that can't be met. ``final``: nor would it be later."""

    code: ErrorCode
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    final: bool = False


# Supervisor to routers, on the events socket.


@message
@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker's end was observed; its streams are lost. Published before the Snapshot
    that no longer has it, so that routers can tell their clients why."""

    instance: str
    model_id: str
    cause: ExitCause
    detail: str


# CLI to supervisor.


@message
@dataclass(frozen=True, slots=True)
class LoadModel:
    """Question: start loading. ``Done`` means begun; progress is in the status.

    ``context_length``: load it with this one, also if it is loaded with another, until the next
    load that says another or the configuration changes. A repository that is whole in the hub's
    cache on this machine, and is not served yet, is added first, under its own name."""

    model_id: str
    context_length: int | None = None


@message
@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Question: drain, end the worker, keep the model down. ``Done`` means begun."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class KillModel:
    """Question: SIGKILL the model's worker now. ``Done`` means the signal was sent; the
    supervisor starts the model again."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class RestartModel:
    """Question: drain, end the worker and load again; also leaves quarantine."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class DrainModel:
    """Question: take no new request for the model, end its worker after its streams, and hold
    it down until it is loaded or reset. ``Done`` means begun."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class ResetModel:
    """Question: forget a model's failures: out of quarantine, backoff and hold, loaded with the
    next request."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class PinModel:
    """Question: never evict the model (``pinned``), or treat it like others again."""

    model_id: str
    pinned: bool


@message
@dataclass(frozen=True, slots=True)
class ReloadConfig:
    """Question: read the configuration again. Replies: Reloaded, or Denied with every problem
    of a configuration that is not valid, of which nothing is taken then."""


@message
@dataclass(frozen=True, slots=True)
class Reloaded:
    """The configuration is in force. ``sections`` are those that differ from before;
    ``changes`` says for people what follows, one sentence each; both empty: it is the same."""

    sections: tuple[str, ...]
    changes: tuple[str, ...]


@message
@dataclass(frozen=True, slots=True)
class RestartRouter:
    """Question: start a new router on the same port and let the old one finish its requests.
    ``Done`` has the new one's pid."""


@message
@dataclass(frozen=True, slots=True)
class RestartSupervisor:
    """Question: replace the supervisor's program by the one that is installed now. Workers,
    router and pid stay. ``Done`` means begun."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for people and programs. ``name`` is dotted, as in logs.
    ``at_s`` is the time of day; ``data`` has plain values only."""

    seq: int
    at_s: float
    name: str
    model_id: str | None
    detail: str
    data: dict[str, Any]


@message
@dataclass(frozen=True, slots=True)
class GetEvents:
    """Question: what happened after ``after_seq``, at most ``limit`` of the latest events. The
    reply is an EventList."""

    after_seq: int
    limit: int


@message
@dataclass(frozen=True, slots=True)
class EventList:
    """Events, oldest first. ``last_seq`` is the latest that there is, to ask from next.
    ``epoch``: another one counts from 1 again."""

    epoch: str
    last_seq: int
    events: tuple[Event, ...]


@message
@dataclass(frozen=True, slots=True)
class StopAll:
    """Question: shut lmx down. ``Done`` means begun."""


@message
@dataclass(frozen=True, slots=True)
class Done:
    """Reply: the command was carried out, or begun where its question says so."""

    message: str
    pid: int | None = None
