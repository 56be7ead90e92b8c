"""The status: what `lmx-supervisor status --json` prints and operators' routes are made of.

Each field's meaning and unit stands below it, and goes into docs/status.schema.json from there. A
status travels whole (:func:`untrimmed`), so that its map is always of the same keys. Peers of
another version read it: fields are added with a default, and never renamed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.messages.snapshot import ModelCommon
from lmx.protocol.states import (
    ExitCause,
    MemoryPressure,
    ModelState,
    RouterState,
    SupervisorState,
)
from lmx.protocol.wire.codec import FLAT, message, untrimmed


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What a worker measures and counts. One value from its heartbeat to the status and to the
    metrics, so that a new figure is a field here, a line in the worker's heartbeat, and a row in
    the router's table of metrics. Counters begin anew with each worker."""

    memory_bytes: int = 0
    """Memory of its process now."""

    peak_memory_bytes: int = 0
    """The most memory that its process ever had, between heartbeats too."""

    kv_bytes: int = 0
    """What the KV caches of its requests in flight are counted at."""

    requests_total: int = 0
    """Requests that it has accepted."""

    tokens_total: int = 0
    """Tokens that it has generated."""

    prompt_tokens_total: int = 0
    """Tokens of the prompts of requests that have ended."""

    cached_tokens_total: int = 0
    """Those of them that were in the prefix cache."""

    drafted_tokens_total: int = 0
    """Tokens that were guessed ahead (speculative decoding)."""

    accepted_tokens_total: int = 0
    """Those of them that were right."""

    preempted_total: int = 0
    """How many times a request in flight gave its memory back to others, to go on later."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedMemory:
    """What came back of an ended worker's memory, as measured."""

    returned_bytes: int
    """What came back."""

    missing_bytes: int
    """What did not."""

    took_s: float
    """How many seconds after the worker was sent to its end this was so."""

    detail: str
    """The same, for people."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class LastExit:
    """How a model's last worker ended."""

    cause: ExitCause
    """Why, in one word."""

    detail: str
    """Why, for people; may be empty."""

    at_s: float
    """When, in Unix time."""

    pid: int | None = None
    """The process id that it had."""

    memory: ReturnedMemory | None = None
    """What came back of its memory; null until that was measured."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus(ModelCommon):
    """One model, and its worker where it has one."""

    model: str
    """The model's name in the configuration."""

    state: ModelState
    """Where the model is: the state of its worker where it has one."""

    parameters: dict[str, Any]
    """What the one who added it gave along (Kolosal's loading parameters); empty for a model of
    the configuration."""

    figures: WorkerFigures = field(metadata=FLAT)
    """What its worker last told; all 0 where it has none."""

    reserved_bytes: int
    """What of the memory budget is reserved for its worker."""

    weights_bytes: int | None
    """Memory of its weights, as planned; null until its files are known."""

    kv_capacity_bytes: int | None
    """The most that the KV caches of its requests may take; null until its files are known."""

    context_bytes: int | None
    """What of that as many requests of full length take as memory is kept for; null until its
    files are known."""

    idle_s: float | None
    """For how many seconds its worker has had no request; null where it has one, or is not
    ready."""

    expires_in_s: float | None
    """In how many seconds it is unloaded if no request comes; null: never, or it is not idle."""

    waiting: int
    """Requests that wait in the supervisor until it is ready."""

    max_rows: int
    """How many requests its worker computes at the same time."""

    requests_active: int
    """Requests that its worker works on."""

    requests_queued: int
    """Requests that wait in its worker."""

    stalled_s: float
    """For how many seconds its worker has had requests and made no progress."""

    loads_total: int
    """Loads that ended well since lmx was started."""

    load_s_total: float
    """How many seconds those took together."""

    exits: dict[str, int]
    """Ends of its workers since lmx was started, by cause."""

    last_exit: LastExit | None
    """How its last worker ended; null where none did."""

    restarts: int
    """Workers that were started anew after one had ended by itself."""

    retry_in_s: float | None
    """In how many seconds it is started again by itself; null where it is not."""

    allow_checkpoint_code: bool = False
    """Whether Python code in its folder may run, in its worker."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus:
    """The supervisor, and the machine's memory as it sees it."""

    state: SupervisorState
    """Whether it goes on, or is stopping."""

    pid: int
    """Its process id."""

    version: str
    """The version of lmx that it is of."""

    epoch: str
    """Its life: another value after each start."""

    home: str
    """The folder of its state and logs."""

    uptime_s: float
    """For how many seconds it has run."""

    memory_bytes: int
    """Memory of its own process."""

    budget_bytes: int
    """What all models may take together."""

    reserved_bytes: int
    """What of that is reserved for workers."""

    missing_bytes: int
    """What processes that ended did not give back."""

    memory_pressure: MemoryPressure
    """How near the machine is to running out of memory."""

    memory_soft_line: float
    """Above which part of the machine's memory, from 0 to 1, nothing is loaded and idle models
    go."""

    machine_memory_bytes: int
    """Memory of the machine, or of the cgroup around lmx where that is less."""

    machine_used_bytes: int
    """What of that is in use, by whomever."""

    machine_available_bytes: int
    """What of that can be had."""

    swaps_total: int
    """Models that gave way to another one since it was started."""

    notices: tuple[str, ...]
    """What is not as it should be, and keeps nobody from serving, for people."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatus:
    """The router that serves. ``streams``, ``waiting`` and ``requests_total`` are of all routers:
    those that were replaced end their requests beside it."""

    state: RouterState
    """Whether it serves, or is about to be started again."""

    pid: int | None
    """Its process id, null while there is none."""

    host: str
    """The address that it listens on."""

    port: int | None
    """The port that it listens on; null while there is no router, 0 until it has said so."""

    adopted: bool
    """Whether an earlier supervisor started it."""

    memory_bytes: int
    """Memory of its process."""

    streams: int
    """Requests that are answered now."""

    waiting: int
    """Requests that wait for a model to be ready."""

    requests_total: int
    """Requests that have ended."""

    restarts: int
    """Routers that were started anew after one had ended by itself."""

    retiring: int
    """Routers that were replaced and still end their requests."""

    url: str | None = None
    """Where its API is: the base URL to tell people; null while that is not known."""

    urls: tuple[str, ...] = ()
    """Every base URL of its API, ``url`` first."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStatus:
    """All of lmx at one moment."""

    supervisor: SupervisorStatus

    router: RouterStatus

    workers: tuple[ModelStatus, ...]
    """Every model, also one that has no worker."""

    def model(self, model_id: str) -> ModelStatus | None:
        """Return what is said of a model, None if it is not there."""
        return next((one for one in self.workers if one.model == model_id), None)


@message
@dataclass(frozen=True, slots=True)
class GetStatus:
    """Question; the reply is a :class:`Status`."""


@message
@dataclass(frozen=True, slots=True)
class Status:
    """Reply to :class:`GetStatus`."""

    status: SystemStatus
