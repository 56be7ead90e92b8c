"""The states of workers, models and downloads, and the other enums that the processes share. Users
see the values."""

from enum import IntEnum, StrEnum
from typing import Final


class WorkerState(StrEnum):
    """Where one worker process is in its life. Only the supervisor's transition table changes
    it."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    EXITED = "exited"


class SlotState(StrEnum):
    """Where one configured model is."""

    COLD = "cold"
    QUEUED = "queued"
    """It waits for memory."""
    FETCHING = "fetching"
    OCCUPIED = "occupied"
    """It has a worker, whose own state says more."""
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"
    HELD = "held"
    """An operator drained it, and it takes no request."""


DOWN: Final = frozenset({SlotState.COLD, SlotState.QUARANTINED, SlotState.HELD})
"""In these states a model has no worker, and gets none before somebody asks for the model."""


class ModelState(StrEnum):
    """Where a model is, in the one word that users see. See :func:`model_state`."""

    COLD = "cold"
    """It is not loaded; a request loads it."""
    FAILED = "failed"
    """It is not loaded, and what is known about it says that a load would fail."""
    QUEUED = "queued"
    FETCHING = "fetching"
    BACKOFF = "backoff"
    QUARANTINED = "quarantined"
    DRAINED = "drained"
    """An operator drained it, and it takes no request."""
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"

    @property
    def loaded(self) -> bool:
        """Whether the model is in memory and answers requests, or at least finishes those that it
        has begun."""
        return self in (ModelState.READY, ModelState.DRAINING)


def model_state(slot: SlotState, worker: WorkerState | None, *, failed: bool = False) -> ModelState:
    """Return the state of the worker if there is one, else that of the slot. ``failed`` says that
    the model can't be loaded until somebody fixes it."""
    match worker, slot:
        case None, SlotState.OCCUPIED:
            return ModelState.STARTING
        case None, SlotState.COLD if failed:
            return ModelState.FAILED
        case None, SlotState.HELD:
            return ModelState.DRAINED
        case None, _:
            return ModelState(slot.value)
        case WorkerState.EXITED, _:
            return ModelState.STOPPING
        case _:
            return ModelState(worker.value)


class SupervisorState(StrEnum):
    """Whether lmx runs, or is ending its processes and then itself."""

    RUNNING = "running"
    STOPPING = "stopping"


class RouterState(StrEnum):
    """Whether a router serves, or is about to be started."""

    RUNNING = "running"
    RESTARTING = "restarting"


class LoadPhase(StrEnum):
    """What a load is busy with. It is shown with the load's progress."""

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
    HOST = "host"
    """What lmx itself needs of the machine failed: its disk takes nothing, or no process can be
    started. It is no fault of the model's, and passes by itself."""
    KILLED = "killed"
    UNLOADED = "unloaded"
    EVICTED = "evicted"
    EXPIRED = "expired"
    SHUTDOWN = "shutdown"


class WorkerExit(IntEnum):
    """The exit statuses by which a worker says why it ended by itself. Any other status above 0
    says nothing about the reason."""

    LOAD_FAILED = 1
    """The model could not be loaded, and a LoadFailed message says why; or the worker's own code
    failed, as with any Python program."""
    ENGINE_BROKE = 3
    """A step of the engine raised an exception."""
    OUT_OF_MEMORY = 4
    """The engine could not allocate memory, in a load or in a step."""
    HOST = 5
    """The worker could not make its socket."""
    RANK_LOST = 6
    """Another of the model's ranks ended, or stopped answering. All of them end then."""


class RankCall(StrEnum):
    """What rank 0 has the engine of a follower do: the methods of a worker's engine by name."""

    STEP = "step"
    FLUSH = "flush"
    REMOVE = "remove"
    PREEMPT = "preempt"
    REST = "rest"
    SHRINK = "shrink"
    REGROW = "regrow"
    LEAVE = "leave"
    """Close and release, and end the process."""


class DownloadStatus(StrEnum):
    """Where a download is. One that FAILED, was CANCELLED or INTERRUPTED resumes where it stopped
    when it is requested again."""

    STARTING = "starting"
    DOWNLOADING = "downloading"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """Its supervisor or its process ended."""


class QuantizedBits(StrEnum):
    """To how many bits a weight a model is quantized when it is downloaded. ``mixed``: the recipe
    mixed_4_6 of mlx-lm, 4 bits and 6 for the weights that matter most."""

    FOUR = "4"
    EIGHT = "8"
    MIXED = "mixed"


class MemoryPressure(StrEnum):
    """How near the machine is to running out of memory."""

    NONE = "none"
    SOFT = "soft"
    HARD = "hard"


class FinishReason(StrEnum):
    """Why a generation ended well. The values are OpenAI's."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class RereadReason(StrEnum):
    """Why a model has computed tokens of a prompt that it had computed for an earlier one."""

    DIFFERS = "differs"
    """The prompt departs from the earlier one, and then repeats what came behind that place."""
    ANSWER = "answer"
    """It departs from the earlier one inside the answer to that one, or behind it."""
    MEDIA = "media"
    """An image, a sound or a video is another one than in the earlier prompt."""
    EVICTED = "evicted"
    """It continues the earlier one, and the prefix cache had no memory to keep that."""
    NOT_CUTTABLE = "not_cuttable"
    """What is kept of the earlier one can only be used whole: the model has a recurrent state, or
    windows, or images that it reads in one go."""
    DISK = "disk"
    """What is kept of the earlier one was on the disk, and was not read in time."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """The request wants the logprobs of its prompt, so that all of it is computed."""
    NO_CACHE = "no_cache"
    """The model has no prefix cache: it is off, or impossible for this model."""


class ModelKind(StrEnum):
    """What a model is for. It is read from the model's files."""

    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"
    SPEECH = "speech"
    """It reads texts aloud."""


class MemoryWiring(StrEnum):
    """Which workers wire their weights on a Mac."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class DeltaKind(StrEnum):
    """What a piece of an answer belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    PROMPT = "prompt"
    """It is no piece of an answer: it has logprobs of the prompt, and no text."""


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


class MediaKind(StrEnum):
    """What a model takes besides text."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"

    @property
    def noun(self) -> str:
        """What it is called in an error."""
        return "sound" if self is MediaKind.AUDIO else self.value

    @property
    def one(self) -> str:
        """The noun with its article."""
        return f"an {self.noun}" if self is MediaKind.IMAGE else f"a {self.noun}"


class MediaForm(StrEnum):
    """The containers in which images, sounds and videos come. The values are the usual endings of
    files."""

    PNG = "png"
    JPEG = "jpeg"
    WEBP = "webp"
    GIF = "gif"
    BMP = "bmp"
    TIFF = "tiff"
    HEIC = "heic"
    AVIF = "avif"
    WAV = "wav"
    MP3 = "mp3"
    FLAC = "flac"
    OGG = "ogg"
    M4A = "m4a"
    AAC = "aac"
    MP4 = "mp4"
    WEBM = "webm"
    MKV = "mkv"
    AVI = "avi"
    MOV = "mov"


class LoadOutcome(StrEnum):
    """What would become of a load."""

    LOADED = "loaded"
    """Nothing: the model is loaded, or being loaded, just so."""
    STARTS = "starts"
    """It would start at once."""
    EVICTS = "evicts"
    """It would start once idle models have been evicted, which would be now."""
    WAITS = "waits"
    """It would wait: other models work, load, or have only just been loaded."""
    IMPOSSIBLE = "impossible"
    """It would be refused, whatever is evicted."""
