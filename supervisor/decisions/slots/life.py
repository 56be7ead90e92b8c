"""Where one model is in its life, as a value."""

from dataclasses import dataclass, field
from enum import Enum

from lmx.protocol.errors import LmxError
from lmx.protocol.states import LoadPhase, SlotState, WorkerState
from lmx.supervisor.decisions.restart import FailureRecord, RestartPolicy
from lmx.supervisor.decisions.slots.demand import Demand
from lmx.supervisor.decisions.worker import Worker


class Intent(Enum):
    """What shall become of a model. It decides what follows when its worker ends."""

    UP = "up"
    """The model shall run: somebody requested it, and nobody has taken that back since."""
    DOWN = "down"
    """Nobody wants the model. It stays down until somebody asks for it."""
    HELD = "held"
    """An operator drained the model. It takes no request until an operator wants it again."""
    REMOVED = "removed"
    """The model is no longer configured. Its slot is removed when its worker has ended."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that hold for all slots."""

    restart: RestartPolicy
    stopping: bool = False
    """Whether lmx is being stopped, so that nothing is started any more."""


@dataclass(frozen=True, slots=True)
class SlotLife:
    """Where one model is in its life. Times are monotonic seconds."""

    model_id: str
    state: SlotState = SlotState.COLD
    intent: Intent = Intent.DOWN
    worker: Worker | None = None
    """The model's worker. There is one exactly while the slot is OCCUPIED."""
    demand: Demand = field(default_factory=Demand)
    """The requests and operators that wait for the model."""
    failures: FailureRecord = field(default_factory=FailureRecord)
    problem: LmxError | None = None
    """Why the model is down, or what is wrong with its worker."""
    fetch_phase: LoadPhase | None = None
    """What its fetch is busy with, while it is FETCHING."""
    fetch_fraction: float | None = None
    need_bytes: int | None = None
    """The memory that the model waits for, while it is QUEUED. None: its files are still being
    read."""
    queue_reported: bool = False
    """Whether people were notified that it waits for memory."""
    retry_at_s: float | None = None
    """When its BACKOFF is over."""
    spawned_at_s: float | None = None
    """When this supervisor started its worker; None for one that it adopted."""
    ready_at_s: float | None = None
    """When its worker became ready."""
    files_leaving: bool = False
    """Whether its files are being deleted. Nothing is begun meanwhile."""
    evicted_for: str | None = None
    """The model that its worker makes room for."""
    history: tuple[str, ...] = ("cold",)
    """The latest events that changed its state, for the message of a bug."""

    @property
    def wanted(self) -> bool:
        """Whether the model shall run."""
        return self.intent is Intent.UP

    @property
    def held(self) -> bool:
        """Whether an operator keeps the model down."""
        return self.intent is Intent.HELD

    @property
    def removed(self) -> bool:
        """Whether the model is no longer configured."""
        return self.intent is Intent.REMOVED

    @property
    def ready_worker(self) -> Worker | None:
        """The worker, if it takes requests."""
        if self.worker is not None and self.worker.state is WorkerState.READY:
            return self.worker
        return None


def held_life(model_id: str) -> SlotLife:
    """Return the slot of a model that an operator drained before this supervisor started."""
    return SlotLife(model_id, SlotState.HELD, Intent.HELD, history=("held",))
