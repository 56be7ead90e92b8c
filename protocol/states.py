"""The states of a worker and of a model, as DESIGN names them. Values are what users see."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final


class WorkerState(StrEnum):
    """Where one worker process is in its life. Only the supervisor's table changes it."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    EXITED = "exited"


class SlotState(StrEnum):
    """Where one configured model is. OCCUPIED has a worker whose own state says more. QUEUED
    waits for memory; HELD was drained by an operator and takes no request."""

    COLD = "cold"
    QUEUED = "queued"
    FETCHING = "fetching"
    OCCUPIED = "occupied"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"
    HELD = "held"


DOWN: Final = frozenset({SlotState.COLD, SlotState.QUARANTINED, SlotState.HELD})
"""A model has no worker in these states and gets none before somebody asks for it."""


class ModelState(StrEnum):
    """Where a model is, in the one word that users see: see :func:`model_state`."""

    COLD = "cold"
    QUEUED = "queued"
    FETCHING = "fetching"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"
    HELD = "held"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"

    @property
    def loaded(self) -> bool:
        """Whether the model is in memory and answers, be it only what it has begun."""
        return self in (ModelState.READY, ModelState.DRAINING)


def model_state(slot: SlotState, worker: WorkerState | None) -> ModelState:
    """Return the state of the worker where there is one, else the slot's."""
    match worker, slot:
        case None, SlotState.OCCUPIED:
            return ModelState.STARTING
        case None, _:
            return ModelState(slot.value)
        case WorkerState.EXITED, _:
            return ModelState.STOPPING
        case _:
            return ModelState(worker.value)


class SupervisorState(StrEnum):
    """Whether lmx goes on, or ends its processes and then itself."""

    RUNNING = "running"
    STOPPING = "stopping"


class RouterState(StrEnum):
    """Whether a router serves, or one is about to be started."""

    RUNNING = "running"
    RESTARTING = "restarting"


class LoadPhase(StrEnum):
    """What a load is busy with; shown with its progress."""

    DOWNLOAD = "download"
    CONVERT = "convert"
    CHECK = "check"
    START = "start"
    WEIGHTS = "weights"
    WARMUP = "warmup"


class ExitCause(StrEnum):
    """Why a worker process ended, as the supervisor judges it."""

    CRASH = "crash"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    LOAD_FAILED = "load_failed"
    KILLED = "killed"
    UNLOADED = "unloaded"
    EVICTED = "evicted"
    EXPIRED = "expired"
    SHUTDOWN = "shutdown"


class WorkerExit(IntEnum):
    """The exit statuses by which a worker tells why it ended by itself; another one above 0 tells
    nothing."""

    LOAD_FAILED = 1
    """The model could not be loaded, and a LoadFailed message says why; or the worker's own code
    failed, as with any Python program."""
    ENGINE_BROKE = 3
    """A step raised."""
    OUT_OF_MEMORY = 4
    """The engine could not allocate, in a load or in a step."""


class DownloadStatus(StrEnum):
    """Where a download is. INTERRUPTED: its supervisor or its process ended; asked for again, it
    goes on where it stopped, like one that FAILED or was CANCELLED."""

    STARTING = "starting"
    DOWNLOADING = "downloading"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class MemoryPressure(StrEnum):
    """How near the machine is to running out of memory."""

    NONE = "none"
    SOFT = "soft"
    HARD = "hard"


class FinishReason(StrEnum):
    """Why a generation ended well; the values are OpenAI's."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class ModelKind(StrEnum):
    """What a model is for; read from its files."""

    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANK = "rerank"


class DeltaKind(StrEnum):
    """What a piece of an answer belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"


class StructureKind(StrEnum):
    """The forms that an answer can be held to."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


class ToolChoice(StrEnum):
    """Whether a model may or must call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
