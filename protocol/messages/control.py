"""The messages on the supervisor's control and events sockets. See PROTOCOL.md, "Control".

What routers know about the models is in :mod:`lmx.protocol.messages.snapshot`, and the status is
in :mod:`lmx.protocol.messages.status`.

Names of requests are imperatives, names of facts are past participles. A question carries a
correlation in its envelope, and its reply carries the same one. Facts and heartbeats carry none.
"""

from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.errors import ErrorCode
from lmx.protocol.free_text import FreeText
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.messages.template import UNKNOWN_TEMPLATE, TemplateFacts
from lmx.protocol.states import (
    ExitCause,
    LoadOutcome,
    LoadPhase,
    MediaKind,
    MemoryPressure,
    ModelKind,
    WorkerState,
)
from lmx.protocol.wire.codec import FLAT, message

# Worker to supervisor.


@dataclass(frozen=True, slots=True)
class RefusedAdapter:
    """An adapter that does not fit the model. The worker serves the model without it."""

    adapter_id: str
    problem: FreeText
    """Why, for people."""


@message
@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker introduces itself, at its start and to any supervisor that sends Identify."""

    instance: str
    model_id: str
    pid: int
    state: WorkerState
    """The worker's own view: STARTING if it has not begun to load, else LOADING, READY or
    DRAINING."""
    memory_bytes: int = 0
    """As in Loaded; 0 before the model is loaded."""
    context_length: int = 0
    """As in Loaded; 0 before the model is loaded."""
    capabilities: tuple[str, ...] = ()
    """As in Loaded; empty before the model is loaded."""
    kind: ModelKind | None = None
    """The kind of model that the worker's spec asked it to serve."""
    refused_adapters: tuple[RefusedAdapter, ...] = ()
    """As in Loaded; empty before the model is loaded."""
    media: tuple[MediaKind, ...] = ()
    """As in Loaded; empty before the model is loaded."""
    template: TemplateFacts = UNKNOWN_TEMPLATE
    """As in Loaded; empty before the model is loaded."""
    remarks: tuple[FreeText, ...] = ()
    """As in Loaded; empty before the model is loaded."""


@message
@dataclass(frozen=True, slots=True)
class LoadAdvanced:
    """A load made progress. The supervisor restarts its stall timer."""

    instance: str
    phase: LoadPhase
    fraction: float | None
    """How much of the phase is done, from 0 to 1; None where that is unknown."""
    detail: FreeText = ""


@message
@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is loaded and answers requests."""

    instance: str
    memory_bytes: int
    """The worker's memory, measured in the worker and not estimated."""
    context_length: int
    load_s: float
    capabilities: tuple[str, ...] = ()
    """What requests may use, for clients to see: ``tools``, ``native_tools``,
    ``structured_outputs``, ``reasoning``."""
    refused_adapters: tuple[RefusedAdapter, ...] = ()
    """Those of the adapters in the worker's spec that can't be used."""
    media: tuple[MediaKind, ...] = ()
    """What the model takes besides text."""
    template: TemplateFacts = UNKNOWN_TEMPLATE
    """What its chat template takes."""
    remarks: tuple[FreeText, ...] = ()
    """Why its answers may differ from what the model was made for, in full sentences."""


@message
@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model can't be loaded. The worker ends by itself, or the supervisor ends it."""

    instance: str
    code: ErrorCode
    message: FreeText
    permanent: bool = False
    """Whether another try would fail too, until the model's files or its configuration change."""


@message
@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """The heartbeat of a worker: how it is. A worker sends one every beat interval."""

    instance: str
    state: WorkerState
    """The worker's own view."""
    rows: int
    """The number of requests that the worker works on."""
    queued: int
    """The number of requests that wait in the worker."""
    stalled_for_s: float
    """For how many seconds work has been in flight without any progress: no token, and no chunk of
    a prompt. 0 while the worker is idle or advances."""
    figures: WorkerFigures = field(default=WorkerFigures(), metadata=FLAT)
    """What the worker measures and counts, for the status and the metrics."""
    idle_for_s: float = 0.0
    """The seconds since the last request ended, or since the load; 0 while a request is in
    flight."""
    keep_alive_s: float | None = None
    """For how many seconds the last request wants the model to stay loaded. None: it did not say;
    a negative value means forever."""


@message
@dataclass(frozen=True, slots=True)
class DrainRefused:
    """The worker was asked to drain only if it is idle, and it is not idle."""

    instance: str
    rows: int


@message
@dataclass(frozen=True, slots=True)
class Drained:
    """The worker has no request left and accepts no new one."""

    instance: str


# Supervisor to worker.


@message
@dataclass(frozen=True, slots=True)
class Welcome:
    """The supervisor accepted the WorkerHello. A worker that is STARTING loads its model now."""

    epoch: str


@message
@dataclass(frozen=True, slots=True)
class Identify:
    """This supervisor got a heartbeat from a process that it does not know: send a hello again."""

    epoch: str


@message
@dataclass(frozen=True, slots=True)
class BeatSeen:
    """Reply to every heartbeat: the supervisor is alive."""

    epoch: str
    revision: int
    """The revision of the supervisor's latest snapshot."""
    keyring: str = ""
    """To a router: the digest of the keyring that it should have."""
    peers: str = ""
    """To a router: the digest of the list of peers that it should have."""
    computing_watts: float | None = None
    """To a worker: how many joules the machine takes for each second in which its engine computes.
    None: that is not measured."""


@message
@dataclass(frozen=True, slots=True)
class Drain:
    """Accept no new request, and send Drained when the last one has ended."""

    if_idle: bool
    """Drain only if the worker is idle. Otherwise it sends DrainRefused at once and continues."""


@message
@dataclass(frozen=True, slots=True)
class Pressure:
    """The machine's memory runs out, or no longer does.

    SOFT: give the caches back, and begin no request while another one runs. HARD: also fail one
    request now, the newest of the largest; the message is sent again for each further request that
    must go. NONE: the pressure is over."""

    level: MemoryPressure


# Router to supervisor, and back.


@message
@dataclass(frozen=True, slots=True)
class RouterHello:
    """A router introduces itself, at its start and to any supervisor that sends Identify."""

    pid: int
    router_id: str
    port: int


@message
@dataclass(frozen=True, slots=True)
class RouterBeat:
    """The heartbeat of a router. A router sends one every beat interval."""

    pid: int
    streams: int
    requests_total: int
    """The number of requests that have ended."""
    memory_bytes: int
    waiting: int = 0
    """The number of requests that wait for a model."""
    retired: bool = False
    """Whether it takes no more requests, because another router has taken over."""
    keyring: str = ""
    """The digest of the keyring by which it checks keys."""
    epoch: str = ""
    """The epoch of the snapshot in which it looks up models. Empty before the first one."""
    revision: int = 0
    """The revision of that snapshot."""
    peers: str = ""
    """The digest of the list of peers that it asks."""
    batches: int = 0
    """The number of batches that have not ended, where this router works on them."""
    batch_lines: int = 0
    """The number of their lines that were not answered yet."""


@message
@dataclass(frozen=True, slots=True)
class BatchChanged:
    """Fact of a router: a batch has begun, or has ended. It is for people, as an event."""

    batch_id: str
    status: str
    """``in_progress``, or how it has ended, in OpenAI's words."""
    model_id: str | None
    """The model of its lines; None if they name several."""
    lines: int
    completed: int
    failed: int


@message
@dataclass(frozen=True, slots=True)
class Acquire:
    """Question: make this model ready, and load it if it is not loaded. Replies: Acquired, or
    Denied."""

    model_id: str
    wait_s: float
    """The supervisor replies within this time, unless a Withdraw comes first."""
    request_id: str
    waited_s: float = 0.0
    """For how long the oldest of the requests that need the model has waited already. With it a
    router that asks again keeps its place in the queue."""


@message
@dataclass(frozen=True, slots=True)
class Withdraw:
    """No request of this router waits for the model any more, so that no reply to its Acquires is
    needed. A load that has started continues, because others may want the model. A load that only
    waits for its turn is given up, unless others wait for it."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class Acquired:
    """Reply to Acquire: the model is READY in this worker."""

    model_id: str
    instance: str


@message
@dataclass(frozen=True, slots=True)
class Denied:
    """Reply to any question whose wish can't be met. The fields are those of
    :class:`lmx.protocol.errors.LmxError`."""

    code: ErrorCode
    message: FreeText
    param: FreeText | None = None
    retry_after_s: float | None = None
    final: bool = False


# Supervisor to routers, on the events socket.


@message
@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The supervisor observed the end of a worker, and the worker's streams are lost. It publishes
    this before the Snapshot that no longer has the worker, so that routers can notify their clients
    why."""

    instance: str
    model_id: str
    cause: ExitCause
    detail: FreeText


# CLI to supervisor.


@message
@dataclass(frozen=True, slots=True)
class LoadModel:
    """Question: start to load a model. ``Done`` means that the load has begun; the status shows its
    progress.

    A repository that is complete in the hub's cache on this machine, and is not served yet, is
    added first, under its own name."""

    model_id: str
    context_length: int | None = None
    """Load the model with this context length, even if it is loaded with another one. It holds
    until a load names another one or the configuration changes."""


@message
@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Question: drain the worker, end it, and keep the model unloaded. ``Done`` means that this
    has begun."""

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
    """Question: drain the worker, end it, and load the model again. A model in quarantine leaves
    it."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class DrainModel:
    """Question: accept no new request for the model, end its worker after its streams, and hold the
    model unloaded until somebody loads or resets it. ``Done`` means that this has begun."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class ResetModel:
    """Question: forget a model's failures. It leaves quarantine, backoff and hold, and the next
    request loads it."""

    model_id: str


@message
@dataclass(frozen=True, slots=True)
class DrainMachine:
    """Question: let the routers take no more requests for models of this machine, or take them
    again. What is under way continues. It lasts over restarts. Reply: Done."""

    drained: bool


@message
@dataclass(frozen=True, slots=True)
class PinModel:
    """Question: pin a model, or unpin it."""

    model_id: str
    pinned: bool
    """Whether the model is never evicted from now on."""


@message
@dataclass(frozen=True, slots=True)
class PlanLoad:
    """Question: what would a load of this model need, and what would follow? Nothing changes. The
    reply is a LoadPlan."""

    model_id: str
    """A model by any of its names, a repository of the hub, or a short name of one."""
    context_length: int | None = None
    """The context that the load would name."""
    folder: str | None = None
    """Where its files are to be read, by whoever is on this machine; also those of a model of
    another name. None: where the model is."""
    download_bytes: int = 0
    """How much of its files is not on this machine, where ``folder`` has only their heads."""


@dataclass(frozen=True, slots=True)
class PlanLine:
    """A part of the memory of a load."""

    name: str
    """What the bytes are for."""
    size_bytes: int
    reason: FreeText = ""
    """How the figure comes about, for people."""


@message
@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Reply to PlanLoad."""

    model_id: str
    """The model's id, or the repository of one that is not served."""
    lines: tuple[PlanLine, ...]
    """The parts of the estimate."""
    need_bytes: int
    """What would be reserved: the estimate, or what was measured in place of it."""
    outcome: LoadOutcome
    detail: FreeText
    """The outcome as a sentence for people."""
    budget_bytes: int
    free_bytes: int
    """How much of the budget is free now."""
    evicts: tuple[str, ...] = ()
    """The models that would be evicted for it."""
    download_bytes: int = 0
    """How much of its files is not on this machine."""
    context_length: int | None = None
    """The context that it would have."""
    longest_context: int | None = None
    """The longest context with which it could be loaded, if everything is evicted that may be."""
    longest_context_now: int | None = None
    """The longest context with which it could be loaded and nothing be evicted."""


@message
@dataclass(frozen=True, slots=True)
class ReloadConfig:
    """Question: read the configuration again. Replies: Reloaded; or Denied with every problem of a
    configuration that is not valid, and then nothing changes."""


@message
@dataclass(frozen=True, slots=True)
class Reloaded:
    """Reply to ReloadConfig: the new configuration is in effect. If nothing has changed, both
    fields are empty."""

    sections: tuple[str, ...]
    """The sections that differ from before."""
    changes: tuple[FreeText, ...]
    """What follows from the changes, one sentence each, for people."""


@message
@dataclass(frozen=True, slots=True)
class RestartRouter:
    """Question: start a new router on the same port and let the old one finish its requests.
    ``Done`` has the pid of the new router."""


@message
@dataclass(frozen=True, slots=True)
class RestartSupervisor:
    """Question: replace the supervisor's program by the one that is installed now. The workers, the
    router and the supervisor's pid stay. ``Done`` means that this has begun."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for people and programs."""

    seq: int
    """The number of the event within its epoch, from 1."""
    at_s: float
    """When it happened, in Unix time."""
    name: str
    """A dotted name, as in the logs."""
    model_id: str | None
    detail: FreeText
    """A sentence for people."""
    data: dict[str, Any]
    """More about it, as plain values."""


@message
@dataclass(frozen=True, slots=True)
class GetEvents:
    """Question: what happened after the event ``after_seq``? The reply is an EventList with the
    latest ``limit`` events at most."""

    after_seq: int
    limit: int
    earlier: bool = False
    """Whether the reply has the events of earlier supervisors as well, as far as ``limit``
    allows."""


@dataclass(frozen=True, slots=True)
class EarlierEvents:
    """What happened in the life of an earlier supervisor."""

    epoch: str
    events: tuple[Event, ...]
    """The events, the oldest first."""


@message
@dataclass(frozen=True, slots=True)
class EventList:
    """Reply to GetEvents."""

    epoch: str
    """The supervisor's life in which the events are numbered. Another epoch counts from 1 again."""
    last_seq: int
    """The number of the latest event that there is. The next question asks from it."""
    events: tuple[Event, ...]
    """The events, the oldest first."""
    earlier: tuple[EarlierEvents, ...] = ()
    """Those of earlier supervisors, if the question asks for them: the oldest life first."""


@message
@dataclass(frozen=True, slots=True)
class StopAll:
    """Question: shut lmx down. ``Done`` means that this has begun."""


@message
@dataclass(frozen=True, slots=True)
class Done:
    """Reply to a command: it was carried out, or has begun where the question says so."""

    message: FreeText
    pid: int | None = None
    """The process that the command is about, if there is one."""
    model_id: str | None = None
    """The model that is being loaded: the question may have another name of it, or one of its
    repository."""


def event_object(epoch: str, event: Event) -> dict[str, Any]:
    """Return an event as plain values. ``seq`` is unique within an ``epoch``."""
    return {
        "epoch": epoch,
        "seq": event.seq,
        "at_s": event.at_s,
        "name": event.name,
        "model": event.model_id,
        "detail": event.detail,
        "data": event.data,
    }
