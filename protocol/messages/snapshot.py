"""What routers know about the models: the supervisor's public state, on the events socket."""

from dataclasses import dataclass
from typing import Final

from lmx.protocol.free_text import FreeText
from lmx.protocol.messages.template import UNKNOWN_TEMPLATE, TemplateFacts
from lmx.protocol.states import (
    LoadPhase,
    MediaKind,
    ModelKind,
    ModelState,
    SlotState,
    WorkerState,
    model_state,
)
from lmx.protocol.wire.codec import message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCommon:
    """What both a snapshot (:class:`ModelView`) and a status
    (:class:`lmx.protocol.messages.status.ModelStatus`) tell of a model."""

    aliases: tuple[str, ...]
    """Its other names."""
    source: str
    """What it is made of, as the configuration has it: a repository, a folder or a file."""
    kind: ModelKind | None = None
    """What it is for; null until its files are known."""
    family: str | None = None
    """The name of its architecture (``qwen3``); null until its files are known."""
    media: tuple[MediaKind, ...] | None = None
    """What it takes besides text; null until its files are known."""
    voices: tuple[str, ...] = ()
    """The voices with which it reads texts aloud; none until its files are known."""
    added: bool = False
    """Whether it was added while lmx ran, and is not of the configuration."""
    pid: int | None = None
    """The process id of its worker, null where it has none."""
    instance: str | None = None
    """The name of its worker, another one for each start; null where it has none."""
    context_length: int | None = None
    """The context, in tokens, that its worker has or the next one will have; null where that is
    the model's own and its files are not known yet."""
    phase: LoadPhase | None = None
    """What its load is busy with, null where none is under way."""
    fraction: float | None = None
    """How much of that phase is done, from 0 to 1; null where that is unknown."""
    loaded_at_s: float | None = None
    """When its last load ended well, in Unix time; null where none did."""
    position: int | None = None
    """Its place, from 1, among the models that wait for memory; null where it does not wait."""
    pinned: bool = False
    """Whether it is never evicted."""
    needed_bytes: int | None = None
    """What its next worker would have reserved; null until its files are known."""
    problem: FreeText | None = None
    """Why it is down, or would be if it were started now, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView(ModelCommon):
    """What a router needs to know about one configured model."""

    model_id: str
    """Its name in the configuration."""
    slot: SlotState
    """Where the model is."""
    worker: WorkerState | None = None
    """Where its worker is, null where it has none."""
    failed: bool = False
    """Whether its problem is one that somebody has to fix."""
    memory_bytes: int = 0
    """What its worker measured when it became ready; each beat's figure is in the status."""
    capabilities: tuple[str, ...] = ()
    """What requests may use: ``tools``, ``native_tools``, ``structured_outputs``,
    ``reasoning``."""
    infills: bool | None = None
    """Whether its tokenizer has the tokens for a gap in a text, by its files; null until they are
    known. What ``capabilities`` say goes before it."""
    template: TemplateFacts = UNKNOWN_TEMPLATE
    """What its chat template takes."""
    created_s: int = 0
    """When its files were made, in Unix time."""
    disk_bytes: int = 0
    """How much its files take; 0 until they are known."""
    retry_after_s: float | None = None
    """In how many seconds it may be ready, its load included, as of the last change of anything
    else."""
    max_waiting: int = 0
    """How many requests may wait for it."""
    max_queue_s: float = 300.0
    """How long a request may wait in its worker for its turn."""
    max_rows: int = 1
    """How many sequences its worker computes at a time."""
    base: str | None = None
    """The id of the model whose worker answers for it: it is an adapter of that model, and what is
    said of the worker is the same for both. None: it is a model with a worker of its own."""

    @property
    def adapter(self) -> str:
        """What :attr:`lmx.protocol.messages.data.Generate.adapter` is in requests for it."""
        return "" if self.base is None else self.model_id

    @property
    def state(self) -> ModelState:
        """Where the model is, in the word that users see."""
        return model_state(self.slot, self.worker, failed=self.failed)


ROUTE_NAMES: Final = ("auto", "code", "reasoning", "chat")
"""The names that always route. They stand for all chat models, the default first, unless the
configuration lists others."""


@dataclass(frozen=True, slots=True)
class Route:
    """A name that stands for several models: the first of them that can answer does."""

    name: str
    model_ids: tuple[str, ...]
    """In the order in which they are asked."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """Names that stand for another one, where no model and no route has them."""

    pattern: str
    """``*`` in it is any text, ``?`` any character."""
    name: str
    """A model's name, or a route's."""


@message
@dataclass(frozen=True, slots=True)
class GetSnapshot:
    """Question: what is the state now? The reply is a :class:`Snapshot`."""


@message
@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of the supervisor's public state. Each change publishes a whole new snapshot, so that a
    router that missed one is up to date with the next."""

    epoch: str
    """The life of the supervisor that published it."""
    revision: int
    """It grows by one with each change within an epoch."""
    default_model: str | None
    """The id of the model that answers requests which name no model."""
    models: tuple[ModelView, ...]
    stopping: bool = False
    """Whether lmx is being stopped."""
    routes: tuple[Route, ...] = ()
    free_bytes: int = 0
    """How much of the memory budget is not reserved."""
    no_loads: FreeText | None = None
    """Why no model at all can be loaded just now, for people; None if models can be loaded."""
    patterns: tuple[NamePattern, ...] = ()
    """In the order in which they are tried: the first that matches counts."""
    drained: bool = False
    """Whether an operator drained the machine: no model of it takes a request."""
    budget_bytes: int = 0
    """The memory that all models may take together."""
