"""What others see of the models: the snapshots for routers, a whole numbered one for each change,
and the models' part of the status."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from lmx.protocol.messages.snapshot import ModelView, NamePattern, Route, Snapshot
from lmx.protocol.messages.status import AdapterStatus, ModelStatus, WorkerFigures
from lmx.protocol.models.memory import kv_bytes
from lmx.protocol.states import MediaKind, ModelKind, ModelState, model_state
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import Config, MemoryConfig
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.keep_alive import expires_at_s
from lmx.supervisor.core.placement_input import positions
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.core.unavailable import ready_in_s
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.memory.plan import MemoryPlan


def model_view(slot: Slot, position: int | None, started_s: int, now_s: float | None) -> ModelView:
    """Return a slot as routers see it, without how long to wait if ``now_s`` is None.

    A model whose files are not known yet counts as old as the supervisor, ``started_s``.
    ``memory_bytes`` is what the worker measured when it became ready, and not the figure of each
    heartbeat, so that the snapshot changes with facts and not every second.
    """
    worker = slot.worker
    return ModelView(
        **_common(slot, position),
        model_id=slot.model.id,
        slot=slot.state,
        worker=worker.state if worker else None,
        failed=slot.failed,
        memory_bytes=worker.ready_memory_bytes if worker else 0,
        capabilities=(worker.capabilities if worker else ()) or slot.past.capabilities,
        infills=slot.files.facts.infills,
        template=worker.template if worker and worker.capabilities else slot.past.template,
        created_s=slot.files.facts.created_s or started_s,
        disk_bytes=slot.files.facts.disk_bytes or 0,
        retry_after_s=None if now_s is None else ready_in_s(slot, position, now_s),
        max_waiting=slot.model.max_rows + slot.model.max_queue,
        max_queue_s=slot.model.max_queue_s,
        max_rows=slot.model.max_rows,
    )


def adapter_views(slot: Slot, base: ModelView) -> tuple[ModelView, ...]:
    """Return a model's adapters as routers see them: models that the worker of ``base`` answers
    for. The memory is that of ``base``, and is reported for that one alone."""
    return tuple(
        replace(
            base,
            model_id=adapter_id,
            base=base.model_id,
            aliases=(),
            source=folder,
            kind=ModelKind.CHAT,
            memory_bytes=0,
            problem=base.problem or slot.adapter_problem(adapter_id),
            failed=base.failed or slot.adapter_problem(adapter_id) is not None,
        )
        for adapter_id, folder in slot.model.adapters.items()
    )


def model_kind(slot: Slot) -> ModelKind | None:
    """Return what a model is for: what its worker serves, or else what its files say."""
    return (slot.worker.kind if slot.worker else None) or slot.files.kind


def public_state(slot: Slot) -> ModelState:
    """Return one word for where a model is."""
    return model_state(slot.state, slot.worker.state if slot.worker else None, failed=slot.failed)


def model_status(
    slot: Slot, ledger: Ledger, memory: MemoryConfig, position: int | None, now_s: float
) -> ModelStatus:
    """Return a slot as ``lmx status`` shows it."""
    worker, plan = slot.worker, slot.plan or slot.files.needs
    expires_s = expires_at_s(slot, memory)
    idle_since_s = worker.idle_since_s if worker else None
    return ModelStatus(
        **_common(slot, position),
        model=slot.model.id,
        state=public_state(slot),
        parameters=dict(slot.model.parameters) if isinstance(slot.model, AddedModelConfig) else {},
        figures=worker.figures if worker else WorkerFigures(),
        reserved_bytes=ledger.reserved_by(worker.instance) if worker else 0,
        weights_bytes=plan.weights_bytes if plan else None,
        kv_capacity_bytes=_kv_capacity_bytes(slot, plan),
        context_bytes=_context_bytes(slot, plan),
        idle_s=None if idle_since_s is None else round(max(0.0, now_s - idle_since_s), 3),
        expires_in_s=_left_s(expires_s, now_s),
        waiting=len(slot.life.demand.waiters),
        max_rows=slot.model.max_rows,
        requests_active=worker.rows if worker else 0,
        requests_queued=worker.queued if worker else 0,
        stalled_s=round(worker.stalled_s, 3) if worker else 0.0,
        loads_total=slot.past.loads_total,
        load_s_total=round(slot.past.load_s_total, 3),
        exits={cause.value: count for cause, count in sorted(slot.past.exits.items())},
        last_exit=slot.past.last_exit,
        restarts=slot.past.restarts,
        retry_in_s=_left_s(slot.life.retry_at_s, now_s),
        allow_checkpoint_code=slot.model.allow_checkpoint_code,
        quantized=slot.files.facts.quantized,
        remarks=worker.remarks if worker else (),
        adapters=tuple(
            AdapterStatus(id=name, source=folder, problem=slot.adapter_problem(name))
            for name, folder in slot.model.adapters.items()
        ),
    )


def _common(slot: Slot, position: int | None) -> dict[str, Any]:
    """Return the fields of :class:`ModelCommon`."""
    worker = slot.worker
    return {
        "aliases": slot.model.aliases,
        "source": slot.model.source,
        "kind": model_kind(slot),
        "family": slot.files.facts.family,
        "media": _media(slot),
        "voices": slot.files.facts.voices,
        "added": slot.added,
        "pid": worker.pid if worker else None,
        "instance": worker.instance if worker else None,
        "context_length": slot.context_length,
        "phase": worker.phase if worker else slot.life.fetch_phase,
        "fraction": worker.fraction if worker else slot.life.fetch_fraction,
        "loaded_at_s": slot.past.loaded_at_s,
        "position": position,
        "pinned": slot.pinned,
        "needed_bytes": slot.files.needs.reserve_bytes if slot.files.needs else None,
        "problem": slot.problem,
    }


def _media(slot: Slot) -> tuple[MediaKind, ...] | None:
    """Return what a model takes besides text: what its worker says, or the last one said, or else
    what its files say."""
    reported = slot.worker.media if slot.worker else None
    if reported is None:
        reported = slot.past.media
    return slot.files.facts.media if reported is None else reported


def _left_s(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else round(max(0.0, at_s - now_s), 3)


def _kv_capacity_bytes(slot: Slot, plan: MemoryPlan | None) -> int | None:
    """Return what its KV caches may take, those of ranks on other machines too: a worker counts
    what all of its ranks have."""
    if plan is None or plan.kv_cache_bytes is None:
        return None
    return plan.kv_cache_bytes * (slot.model.ranks // slot.model.ranks_here)


def _context_bytes(slot: Slot, needs: MemoryPlan | None) -> int | None:
    """Return what requests of full length take in the KV cache, as many as memory is kept for. The
    cache has room for more requests if the context is short."""
    if needs is None or needs.kv_cache_bytes is None or needs.context_tokens is None:
        return None
    row_bytes = kv_bytes(needs.kv_layers, needs.context_tokens)
    return min(slot.model.kept_rows * row_bytes, needs.kv_cache_bytes)


def known_names(slots: Iterable[Slot]) -> str:
    """Return the ids of all models, for an error message."""
    return ", ".join(slot.model.id for slot in slots) or "none is configured"


_FREE_STEP_BYTES: Final = 64 * 1024**2
"""A smaller change of the free memory is not published, because a growing cache makes one each
second."""


class PublicState:
    """Knows what was published last, so that only facts that changed are published again. How long
    to wait is no fact: it changes with time."""

    def __init__(self, actions: Actions, epoch: str) -> None:
        self.revision = 0
        self._actions = actions
        self._epoch = epoch
        self._started_s = int(actions.wall_s())
        self._published: tuple[Snapshot, int] | None = None

    def snapshot(
        self,
        slots: Sequence[Slot],
        config: Config,
        free_bytes: int,
        now_s: float,
        *,
        budget_bytes: int,
        stopping: bool,
        drained: bool,
        no_loads: str | None,
        waits: bool = True,
    ) -> Snapshot:
        """Return the slots as routers see them, without how long to wait unless ``waits``."""
        places = positions(slots, now_s)
        views: list[ModelView] = []
        for slot in slots:
            view = model_view(
                slot, places.get(slot.model.id), self._started_s, now_s if waits else None
            )
            views += (view, *adapter_views(slot, view))
        return Snapshot(
            self._epoch, self.revision, config.default_model_id, tuple(views), stopping,
            routes=_routes(config), free_bytes=free_bytes, patterns=_patterns(config),
            no_loads=no_loads, drained=drained, budget_bytes=budget_bytes,
        )  # fmt: skip

    def flush(self, facts: Snapshot, snapshot: Callable[[], Snapshot]) -> None:
        """Publish what ``snapshot`` returns if its facts are others than those published last.
        ``facts`` is the same without how long to wait."""
        found = (
            replace(facts, revision=0, free_bytes=0),
            facts.free_bytes // _FREE_STEP_BYTES,
        )
        if found != self._published:
            self._published = found
            self.revision += 1
            self._actions.publish(replace(snapshot(), revision=self.revision))


def _routes(config: Config) -> tuple[Route, ...]:
    id_of = {name: model.id for model in config.models for name in (model.id, *model.aliases)}
    return tuple(
        # Two names may belong to one model. Routers ignore names of models that are not there.
        Route(name, tuple(dict.fromkeys(id_of.get(each, each) for each in names)))
        for name, names in config.routing.routes.items()
    )


def _patterns(config: Config) -> tuple[NamePattern, ...]:
    return tuple(NamePattern(pattern, name) for pattern, name in config.routing.patterns.items())
