"""What this machine says of itself to its peers."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.messages.snapshot import ModelView, Snapshot
from lmx.protocol.states import MediaKind, ModelKind, SlotState, WorkerState
from lmx.router.peers.machine import MachineState, OfferedModel, digest_of, most_hashes
from lmx.router.peers.prefixes import PrefixBook
from lmx.router.supervisor.directory import (
    Directory,
    can_serve,
    ready_instance,
    refuse_drained,
)

_LOADS = frozenset({WorkerState.STARTING, WorkerState.LOADING})
_EMPTY = PrefixBook()
"""That of a model that has computed nothing."""


class OwnMachine:
    """Knows the models of this machine, and which beginnings of conversations their workers have
    computed. Used from one event loop only.

    ``directory`` returns the models, ``alive`` whether the supervisor answers, so that it could
    load one, ``running`` how many requests are under way by model, and ``speed`` that of a model's
    last answer.
    """

    def __init__(
        self,
        name: str,
        version: str,
        directory: Callable[[], Directory | None],
        alive: Callable[[], bool],
        running: Callable[[], Mapping[str, int]],
        speed: Callable[[str], float | None],
    ) -> None:
        self.name = name
        self._version = version
        self._directory = directory
        self._alive = alive
        self._running = running
        self.speed = speed
        self._books: dict[str, tuple[str, PrefixBook]] = {}
        """The book of each model with the instance that it is about: another one has computed
        nothing."""

    def directory(self, before: Directory, key: ApiKey | None) -> Directory:
        """Return the models now, as a request with this key sees them."""
        return (self._directory() or before).limited_to(key)

    def refuse_drained(self) -> None:
        """Raise :class:`UnavailableError` (model_drained) if an operator drained the machine."""
        refuse_drained(self._directory())

    def note(self, model_id: str, hashes: Sequence[int]) -> None:
        """Note that a request was computed here."""
        directory = self._directory()
        model = None if directory is None else directory.model(model_id)
        instance = None if model is None else ready_instance(model)
        if instance is None:
            return
        if self._books.get(model_id, ("",))[0] != instance:
            self._books[model_id] = instance, PrefixBook()
        self._books[model_id][1].add(hashes, time.monotonic())

    def book(self, model: ModelView) -> PrefixBook:
        """Return what the prefix cache of a model holds."""
        instance, book = self._books.get(model.model_id, ("", _EMPTY))
        return book if instance == ready_instance(model) else _EMPTY

    def loads(self, snapshot: Snapshot) -> bool:
        """Return whether models can be loaded here now."""
        return not snapshot.no_loads and self._alive()

    def running(self, directory: Directory) -> Counter[str]:
        """Return how many requests are under way for each model with a worker of its own."""
        found: Counter[str] = Counter()
        for name, count in self._running().items():
            model = directory.model(name)
            found[name if model is None else directory.base(model).model_id] += count
        return found

    def state(self, key: ApiKey | None) -> MachineState:
        """Return all of it that a peer with this key may use."""
        directory = self._directory()
        views = () if directory is None else directory.models
        ids = {view.model_id for view in views}
        self._books = {name: book for name, book in self._books.items() if name in ids}
        running = Counter[str]() if directory is None else self.running(directory)
        models = tuple(
            self._offered(view, running)
            for view in views
            if key is None or key.allows(view.model_id)
        )
        snapshot = None if directory is None else directory.snapshot
        return MachineState(
            machine=self.name,
            version=self._version,
            free_bytes=0 if snapshot is None else snapshot.free_bytes,
            budget_bytes=0 if snapshot is None else snapshot.budget_bytes,
            loads=snapshot is not None and self.loads(snapshot),
            drained=snapshot is None or snapshot.stopping or snapshot.drained,
            digest=digest_of(models),
            models=models,
        )

    def _offered(self, view: ModelView, running: Mapping[str, int]) -> OfferedModel:
        return replace(
            offered(view),
            running=running.get(view.base or view.model_id, 0),
            tokens_per_s=self.speed(view.model_id),
            prefixes=self.book(view).text(most_hashes(len(self._books))),
        )


def shown(model: OfferedModel, machine: str) -> ModelView:
    """Return a model of a peer as the lists of models show those of this machine, with the name of
    the machine as its owner."""
    worker = WorkerState.READY if model.loaded else WorkerState.LOADING if model.loads else None
    kinds, media = set(ModelKind), set(MediaKind)
    return ModelView(
        model_id=model.model_id,
        aliases=model.aliases,
        source=f"{machine}/{model.model_id.replace('/', '_')}",
        slot=SlotState.COLD if worker is None else SlotState.OCCUPIED,
        worker=worker,
        kind=ModelKind(model.kind) if model.kind in kinds else None,
        context_length=model.context_length,
        capabilities=model.capabilities,
        media=tuple(MediaKind(one) for one in model.media if one in media),
    )


def offered(view: ModelView) -> OfferedModel:
    """Return what is said of a model, without its figures."""
    return OfferedModel(
        model_id=view.model_id,
        aliases=view.aliases,
        kind=None if view.kind is None else view.kind.value,
        state=view.state.value,
        loaded=ready_instance(view) is not None,
        loads=view.worker in _LOADS,
        available=can_serve(view),
        rows=view.max_rows,
        needed_bytes=view.needed_bytes,
        context_length=view.context_length,
        capabilities=view.capabilities,
        media=tuple(one.value for one in view.media or ()),
    )
