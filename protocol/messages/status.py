"""The status: what `lmx status --json` prints and operators' routes are made of.

Each field's meaning and unit stands below it, and goes into docs/status.schema.json from there. A
status travels whole (:func:`untrimmed`), so that its map is always of the same keys. Peers of
another version read it: fields are added with a default, and never renamed.
"""

from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.free_text import FreeText
from lmx.protocol.messages.snapshot import ModelCommon
from lmx.protocol.states import ExitCause, MemoryPressure, ModelState, RouterState, SupervisorState
from lmx.protocol.wire.codec import FLAT, message, untrimmed


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """A further process of a model that is divided among several: a follower of its worker, which
    is rank 0."""

    rank: int
    """Its number, from 1."""
    pid: int
    """Its process id."""
    memory_bytes: int = 0
    """The memory of its process now."""
    peak_memory_bytes: int = 0
    """The most memory that its process ever had."""
    machine: str = ""
    """The peer on which it runs; empty for this machine."""
    calls: int = 0
    """How many calls of rank 0's engine it has carried out."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class LentRank:
    """A rank of another machine's model, which this machine runs for it."""

    model: str
    """The model's id."""
    owner: str
    """The key of the machine that has rank 0."""
    rank: int
    """Its number, from 1."""
    count: int
    """How many ranks the model has."""
    pid: int
    """Its process id."""
    reserved_bytes: int
    """The memory that is reserved for it."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What a worker measures and counts. One value from its heartbeat to the status and to the
    metrics, so that a new figure is a field here, a line in the worker's heartbeat, and a row in
    the router's table of metrics. Counters begin again with each worker."""

    memory_bytes: int = 0
    """The memory of its process now."""
    peak_memory_bytes: int = 0
    """The most memory that its process ever had, between heartbeats too."""
    decoder_bytes: int = 0
    """The memory of the process that decodes images, sounds and videos for it, now; 0 while there
    is none. It is no part of ``memory_bytes``."""
    kv_bytes: int = 0
    """The memory that is counted for the KV caches of its requests in flight."""
    requests_total: int = 0
    """How many requests it has accepted."""
    tokens_total: int = 0
    """How many tokens it has generated."""
    prompt_tokens_total: int = 0
    """How many tokens the prompts of the requests had that have ended."""
    cached_tokens_total: int = 0
    """How many of those were in the prefix cache."""
    drafted_tokens_total: int = 0
    """How many tokens were guessed ahead (speculative decoding)."""
    accepted_tokens_total: int = 0
    """How many of those were right."""
    preempted_total: int = 0
    """How many times a request in flight gave its memory to others and continued later."""
    compute_s_total: float = 0.0
    """For how many seconds its engine has computed."""
    ranks: tuple[RankFigures, ...] = ()
    """The further processes of a divided model (`ranks`), empty for a model that is whole. The
    memory of those on this machine is a part of ``memory_bytes``."""
    speculation: FreeText = ""
    """What guesses tokens ahead, and whether it does now; empty if nothing does."""

    @property
    def held_bytes(self) -> int:
        """The memory of all its processes now."""
        return self.memory_bytes + self.decoder_bytes


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedMemory:
    """How much of an ended worker's memory the machine got back, as measured."""

    returned_bytes: int
    """The memory that the machine got back."""
    missing_bytes: int
    """The memory that it did not get back."""
    took_s: float
    """How many seconds passed from the order to end the worker until this measurement."""
    detail: FreeText
    """The same as a sentence for people."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class LastExit:
    """How a model's last worker ended."""

    cause: ExitCause
    """The cause, in one word."""
    detail: FreeText
    """The cause as a sentence for people; may be empty."""
    at_s: float
    """When it ended, in Unix time."""
    pid: int | None = None
    """The process id that it had."""
    memory: ReturnedMemory | None = None
    """How much of its memory the machine got back; null until that is measured."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterStatus:
    """An adapter of a model, which the model's worker serves under an id of its own."""

    id: str
    """The model id that requests name."""
    source: str
    """Its folder, as the configuration has it."""
    problem: FreeText | None = None
    """Why it can't be used, for people; null where nothing is wrong, or not known yet."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus(ModelCommon):
    """One model, and its worker if it has one."""

    model: str
    """The model's name in the configuration."""
    state: ModelState
    """The state of the model's worker; the model's own state if it has none."""
    parameters: dict[str, Any]
    """The parameters that were given when it was added (Kolosal's loading parameters); empty for a
    model of the configuration."""
    figures: WorkerFigures = field(metadata=FLAT)
    """The last figures of its worker; all are 0 if it has none."""
    reserved_bytes: int
    """How much of the memory budget is reserved for its worker."""
    weights_bytes: int | None
    """The planned memory of its weights; null until its files are known."""
    kv_capacity_bytes: int | None
    """The most memory that the KV caches of its requests may take; null until its files are
    known."""
    context_bytes: int | None
    """How much of that is for the requests of full length that memory is kept for
    (`concurrency`); null until its files are known."""
    idle_s: float | None
    """For how many seconds its worker has had no request; null if it has one, or is not
    ready."""
    expires_in_s: float | None
    """In how many seconds it is unloaded if no request comes; null if never, or if it is not
    idle."""
    waiting: int
    """How many requests wait in the supervisor until the model is ready."""
    max_rows: int
    """How many requests its worker computes at the same time at most."""
    requests_active: int
    """How many requests its worker works on."""
    requests_queued: int
    """How many requests wait in its worker."""
    stalled_s: float
    """For how many seconds its worker has had requests and made no progress."""
    loads_total: int
    """How many loads have succeeded since lmx was started."""
    load_s_total: float
    """How many seconds those loads took together."""
    exits: dict[str, int]
    """How many of its workers have ended since lmx was started, by cause."""
    last_exit: LastExit | None
    """How its last worker ended; null if none has ended."""
    restarts: int
    """How many times a worker was started again after one had ended by itself."""
    retry_in_s: float | None
    """In how many seconds it is started again by itself; null if it is not."""
    allow_checkpoint_code: bool = False
    """Whether Python code from its folder, or its draft model's, may run in its worker."""
    adapters: tuple[AdapterStatus, ...] = ()
    """Its adapters: models of their own for clients, and answered by its worker."""
    quantized: FreeText | None = None
    """How lmx has quantized it, and how well it predicts a text before and after, for people; null
    if lmx hasn't (`lmx pull --bits`)."""
    remarks: tuple[FreeText, ...] = ()
    """What its worker found at the load: why its answers may differ from what the model was made
    for."""
    energy_joules: float | None = None
    """The energy that the machine has taken while it computed, since lmx was started; null where
    the machine does not measure it."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus:
    """The supervisor, and the machine's memory as it sees it."""

    state: SupervisorState
    """Whether it is running or stopping."""
    pid: int
    """Its process id."""
    version: str
    """The version of lmx that it runs."""
    epoch: str
    """The name of its life: another value after each start."""
    home: str
    """The folder of its state and logs."""
    uptime_s: float
    """For how many seconds it has run."""
    memory_bytes: int
    """The memory of its own process."""
    budget_bytes: int
    """The memory that all models may take together."""
    reserved_bytes: int
    """How much of that is reserved for workers."""
    missing_bytes: int
    """The memory that the machine did not get back from processes that ended."""
    memory_pressure: MemoryPressure
    """How near the machine is to running out of memory."""
    memory_soft_line: float
    """The part of the machine's memory, from 0 to 1, above which nothing is loaded and idle models
    are unloaded."""
    machine_memory_bytes: int
    """The memory of the machine, or of the cgroup around lmx if that is less."""
    machine_used_bytes: int
    """How much of that is in use, by any process."""
    machine_available_bytes: int
    """How much of that is available."""
    swaps_total: int
    """How many models were evicted for another one since lmx was started."""
    notices: tuple[FreeText, ...]
    """Sentences for people about what is not as it should be, although lmx serves."""
    drained: bool = False
    """Whether an operator drained the machine: its models take no requests, its peers may."""
    machine_watts: float | None = None
    """The power that the machine's processors take now; null where that is not measured."""
    machine_energy_joules: float | None = None
    """The energy that they have taken since lmx was started, as far as it was measured; null where
    none was."""
    lent: tuple[LentRank, ...] = ()
    """The ranks of other machines' models that run here. Their memory is a part of
    ``reserved_bytes``."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatus:
    """The router that serves. ``streams``, ``waiting`` and ``requests_total`` count those of all
    routers: replaced ones still answer their last requests meanwhile."""

    state: RouterState
    """Whether it serves or is about to be started again."""
    pid: int | None
    """Its process id; null while it has no process."""
    host: str
    """The address that it listens on."""
    port: int | None
    """The port that it listens on; null while there is no router, 0 until the router has reported
    it."""
    adopted: bool
    """Whether an earlier supervisor started it."""
    memory_bytes: int
    """The memory of its process."""
    streams: int
    """How many requests are being answered."""
    waiting: int
    """How many requests wait for a model to be ready."""
    requests_total: int
    """How many requests have ended."""
    batches: int = 0
    """How many batches have not ended."""
    batch_lines: int = 0
    """How many of their lines were not answered yet."""
    restarts: int
    """How many times a router was started again after one had ended by itself."""
    retiring: int
    """How many replaced routers still answer their last requests."""
    url: str | None = None
    """The base URL of its API, to show to people; null while it is not known."""
    urls: tuple[str, ...] = ()
    """Every base URL of its API, ``url`` first."""
    announced_url: str | None = None
    """That under the name by which the local network knows it (mDNS); null while it is not
    announced."""


@untrimmed
@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStatus:
    """All of lmx at one moment."""

    supervisor: SupervisorStatus
    router: RouterStatus
    workers: tuple[ModelStatus, ...]
    """Every model, also one that has no worker."""

    def model(self, model_id: str) -> ModelStatus | None:
        """Return the status of a model; None if there is no such model."""
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
