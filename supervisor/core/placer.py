"""Carries out what placement decides: starts, evictions and refusals, until nothing is left to
do."""

from dataclasses import dataclass, field
from typing import assert_never

import structlog

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.states import ExitCause, MemoryPressure
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.placement_input import positions, scene_of
from lmx.supervisor.core.slot_store import SlotStore
from lmx.supervisor.decisions.ledger import Ledger, format_bytes
from lmx.supervisor.decisions.placement import decide
from lmx.supervisor.decisions.placement_view import (
    Decision,
    Deny,
    Drop,
    Evict,
    Expire,
    Groups,
    PlacementView,
    Start,
)
from lmx.supervisor.decisions.slots import events

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class Placer:
    """Decides and acts for all slots at once. The pressure is the only state of its own."""

    _store: SlotStore
    _ledger: Ledger
    _actions: Actions
    _settings: Settings
    pressure: MemoryPressure = field(default=MemoryPressure.NONE, init=False)

    @property
    def hindrance(self) -> str | None:
        """Why no model at all can be started, None if models can be. The text has no figures,
        because they would change each second."""
        if self.pressure is MemoryPressure.NONE:
            return None
        return (
            f"the machine is short of memory ({self.pressure.value} pressure): nothing is loaded, "
            "and idle models go"
        )

    def scene(self, now_s: float) -> PlacementView:
        """Return what is decided from."""
        slots = self._store.slots.values()
        return scene_of(slots, self._ledger, self._settings.current, self.pressure, now_s)

    def place(self, now_s: float) -> None:
        """Start the models that can start, evict those that must go, and report those that wait."""
        if self._store.stopping:
            return
        # Each round takes models out of the queue or workers out of service, so it ends; the
        # bound is for a bug in that.
        for _ in range(3 * len(self._store.slots) + 3):
            decisions = decide(self.scene(now_s), now_s)
            if not decisions:
                break
            for decision in decisions:
                self._carry_out(decision, now_s)
        else:
            log.error("placement.endless", decisions=[repr(one) for one in decisions])
        self._report_waiting(now_s)

    def _carry_out(self, decision: Decision, now_s: float) -> None:
        store = self._store
        match decision:
            case Start(model_id):
                store.launch(model_id, now_s)
            case Evict(model_id, for_model, if_idle):
                self._evict(model_id, for_model, now_s, if_idle=if_idle)
            case Expire(model_id):
                detail = "it was idle for as long as keep_alive says"
                self._actions.note("model.expired", model_id, detail)
                store.step(model_id, events.Evicted(ExitCause.EXPIRED, detail, True), now_s)
            case Deny(model_id, reason):
                error = UnavailableError(ErrorCode.INSUFFICIENT_MEMORY, reason, final=True)
                store.step(model_id, events.NotStarted(error), now_s)
            case Drop(model_id):
                store.step(model_id, events.Dropped(), now_s)
            case _:
                assert_never(decision)

    def _evict(self, model_id: str, for_model: str | None, now_s: float, *, if_idle: bool) -> None:
        if for_model is not None:
            # The cause is reported before the eviction.
            places = positions(self._store.slots.values(), now_s)
            self._report_queued(for_model, places[for_model], now_s)
        if for_model is None:
            detail = "evicted: memory is short"
        elif if_idle:
            detail = f"evicted for {for_model}"
        else:
            fair_wait_s = self._settings.current.memory.fair_wait_s
            detail = (
                f"evicted after its requests for {for_model}, which has waited for "
                f"{fair_wait_s:g} s or longer"
            )
        self._actions.note("model.evicting", model_id, detail, for_model=for_model, if_idle=if_idle)
        eviction = events.Evicted(ExitCause.EVICTED, detail, if_idle, for_model)
        self._store.step(model_id, eviction, now_s)

    def _report_waiting(self, now_s: float) -> None:
        for model_id, place in positions(self._store.slots.values(), now_s).items():
            self._report_queued(model_id, place, now_s)

    def _report_queued(self, model_id: str, place: int, now_s: float) -> None:
        life = self._store.slots[model_id].life
        if life.queue_reported or life.need_bytes is None:
            return
        self._store.step(model_id, events.QueueReported(), now_s)
        need_bytes, free_bytes = life.need_bytes, self._ledger.free_bytes
        reasons = []
        groups = Groups(self._settings.current.groups)
        conflicting = [
            other.model.id
            for other in self._store.slots.values()
            if other.worker is not None and groups.conflict(model_id, other.model.id)
        ]
        if conflicting:
            names = ", ".join(conflicting)
            reasons.append(f"by its group's rules it can't be loaded together with {names}")
        if need_bytes > free_bytes or not conflicting:
            reasons.append(f"needs {format_bytes(need_bytes)}, {format_bytes(free_bytes)} are free")
        detail = f"{' and '.join(reasons)}; number {place} in the queue"
        self._actions.note(
            "model.queued", model_id, detail,
            position=place, need_bytes=need_bytes, free_bytes=free_bytes,
        )  # fmt: skip
