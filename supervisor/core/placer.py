"""Carries out what placement decides: starts, evictions, refusals, until nothing is left.

The picture of all slots that placement decides on. Pure; and where in the queue each is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, assert_never

import structlog

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.states import ExitCause, MemoryPressure, SlotState, WorkerState
from lmx.supervisor.config.schema import Config, MemoryConfig
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.core.slot_life import SlotLife
from lmx.supervisor.decisions.ledger import Ledger, format_bytes
from lmx.supervisor.decisions.placement import decide, queue_order
from lmx.supervisor.decisions.placement_view import (
    Decision,
    Deny,
    Drop,
    Evict,
    Expire,
    Groups,
    PlacementView,
    Resident,
    Stage,
    Start,
    Waiting,
)
from lmx.supervisor.decisions.worker import DrainAsked, Worker

_HANDOVER_S: Final = 2.0
"""For so long after a load the requests that waited for it are on their way to the worker, and
no beat tells of them yet: an idle model that goes at once would be loaded for nothing, again and
again."""

_STAGES: Final = {
    WorkerState.STARTING: Stage.LOADING,
    WorkerState.LOADING: Stage.LOADING,
    WorkerState.READY: Stage.SERVING,
    WorkerState.DRAINING: Stage.LEAVING,
    WorkerState.STOPPING: Stage.LEAVING,
}


def scene_of(
    slots: Iterable[Slot],
    ledger: Ledger,
    config: Config,
    pressure: MemoryPressure,
    now_s: float,
) -> PlacementView:
    """Return what placement sees of the slots."""
    slots, memory = list(slots), config.memory
    return PlacementView(
        waiting=tuple(_queued(slots, now_s)),
        residents=tuple(
            _resident(slot, slot.worker, ledger, memory)
            for slot in slots
            if slot.worker is not None
        ),
        budget_bytes=ledger.budget_bytes,
        free_bytes=-ledger.excess_bytes,
        returning_bytes=ledger.returning_bytes,
        missing_bytes=ledger.missing_bytes,
        short_of_memory=pressure is not MemoryPressure.NONE,
        groups=Groups(config.groups),
        min_residency_s=memory.min_residency_s,
        fair_wait_s=memory.fair_wait_s,
    )


def positions(slots: Iterable[Slot], now_s: float) -> dict[str, int]:
    """Return the place of each waiting model in the queue, from 1."""
    waiting = queue_order(_queued(slots, now_s))
    return {one.model_id: place for place, one in enumerate(waiting, 1)}


def expires_at_s(slot: Slot, memory: MemoryConfig) -> float | None:
    """Return when an idle model's time is over; None: never, or it is not idle.

    What its last request asked for goes before the model's own setting, that before all models'.
    """
    worker = slot.ready_worker
    if worker is None or worker.idle_since_s is None or slot.pinned:
        return None
    keep_alive_s = worker.keep_alive_s
    if keep_alive_s is None:
        keep_alive_s = slot.model.keep_alive
    if keep_alive_s is None:
        keep_alive_s = memory.keep_alive
    if keep_alive_s < 0:
        return None
    return max(worker.idle_since_s + keep_alive_s, _settled_at_s(slot, worker))


def _queued(slots: Iterable[Slot], now_s: float) -> list[Waiting]:
    """Without a plan a model's files are still being read: it waits for no memory yet."""
    return [
        Waiting(slot.model.id, slot.plan.reserve_bytes, slot.asked_at_s(now_s), slot.pinned)
        for slot in slots
        if slot.state is SlotState.QUEUED and slot.plan is not None
    ]


def _resident(slot: Slot, worker: Worker, ledger: Ledger, memory: MemoryConfig) -> Resident:
    return Resident(
        slot.model.id,
        ledger.reserved_by(worker.instance),
        Stage.STUCK if worker.stuck else _STAGES[worker.state],
        pinned=slot.pinned,
        since_s=slot.ready_at_s or 0.0,
        settled_at_s=_settled_at_s(slot, worker),
        idle_since_s=worker.idle_since_s if worker.state is WorkerState.READY else None,
        expires_at_s=expires_at_s(slot, memory),
    )


def _settled_at_s(slot: Slot, worker: Worker) -> float:
    if slot.ready_at_s is None or worker.adopted or worker.figures.requests_total > 0:
        return 0.0
    return slot.ready_at_s + _HANDOVER_S


log = structlog.get_logger()


class Placer:
    """Decides and acts for all slots at once. Holds nothing of its own but the pressure."""

    def __init__(
        self,
        slots: Mapping[str, Slot],
        ledger: Ledger,
        life: SlotLife,
        actions: Actions,
        settings: Settings,
    ) -> None:
        self.pressure = MemoryPressure.NONE
        self._slots = slots
        self._ledger = ledger
        self._life = life
        self._actions = actions
        self._settings = settings

    @property
    def hindrance(self) -> str | None:
        """Why nothing at all can be started, None if something can. No figures: they change each
        second."""
        if self.pressure is MemoryPressure.NONE:
            return None
        return (
            f"the machine is short of memory ({self.pressure.value} pressure): nothing is loaded, "
            "and idle models go"
        )

    def place(self, now_s: float) -> None:
        """Have start what can, give way what must, and tell of what waits."""
        if self._life.stopping:
            return
        # Each round takes models out of the queue or workers out of service, so it ends; the
        # bound is for a bug in that.
        for _ in range(3 * len(self._slots) + 3):
            scene = scene_of(
                self._slots.values(), self._ledger, self._settings.current, self.pressure, now_s
            )
            decisions = decide(scene, now_s)
            if not decisions:
                break
            for decision in decisions:
                self._carry_out(decision, now_s)
        else:
            log.error("placement.endless", decisions=[repr(one) for one in decisions])
        self._tell_waiting(now_s)

    def _carry_out(self, decision: Decision, now_s: float) -> None:
        slot = self._slots[decision.model_id]
        match decision:
            case Start():
                self._life.launch(slot, now_s)
            case Evict(_, for_model, if_idle):
                self._evict(slot, for_model, now_s, if_idle=if_idle)
            case Expire():
                detail = "it was idle for as long as keep_alive says"
                self._actions.note("model.expired", slot.model.id, detail)
                slot.wanted = False
                self._life.step(slot, DrainAsked(True, ExitCause.EXPIRED, detail), now_s)
            case Deny(_, reason):
                error = UnavailableError(ErrorCode.INSUFFICIENT_MEMORY, reason, final=True)
                self._life.failures.give_up(slot, error, now_s)
            case Drop(model_id):
                slot.state, slot.wanted, slot.plan = SlotState.COLD, False, None
                detail = (
                    "there is no room for it, and nobody waits for it: its first request loads it"
                )
                self._actions.note("model.stays_cold", model_id, detail)
            case _:
                assert_never(decision)

    def _evict(self, slot: Slot, for_model: str | None, now_s: float, *, if_idle: bool) -> None:
        if for_model is not None:
            # What causes it is told before it.
            places = positions(self._slots.values(), now_s)
            self._tell_queued(self._slots[for_model], places[for_model])
        if for_model is None:
            detail = "evicted: memory is short"
        elif if_idle:
            detail = f"evicted to make room for {for_model}"
        else:
            fair_wait_s = self._settings.current.memory.fair_wait_s
            detail = (
                f"evicted after its requests to make room for {for_model}, which has waited for "
                f"{fair_wait_s:g} s or longer"
            )
        self._actions.note(
            "model.evicting", slot.model.id, detail, for_model=for_model, if_idle=if_idle
        )
        slot.wanted, slot.evicted_for = False, for_model
        self._life.step(slot, DrainAsked(if_idle, ExitCause.EVICTED, detail), now_s)

    def _tell_waiting(self, now_s: float) -> None:
        places = positions(self._slots.values(), now_s)
        for model_id, place in places.items():
            self._tell_queued(self._slots[model_id], place)

    def _tell_queued(self, slot: Slot, place: int) -> None:
        if slot.queue_told or slot.plan is None:
            return
        slot.queue_told = True
        need_bytes, free_bytes = slot.plan.reserve_bytes, self._ledger.free_bytes
        reasons = []
        groups = Groups(self._settings.current.groups)
        beside = [
            other.model.id
            for other in self._slots.values()
            if other.worker is not None and groups.conflict(slot.model.id, other.model.id)
        ]
        if beside:
            reasons.append(f"by its group's rules it can't be loaded beside {', '.join(beside)}")
        if need_bytes > free_bytes or not beside:
            reasons.append(f"needs {format_bytes(need_bytes)}, {format_bytes(free_bytes)} are free")
        detail = f"{' and '.join(reasons)}; number {place} in the queue"
        self._actions.note(
            "model.queued", slot.model.id, detail,
            position=place, need_bytes=need_bytes, free_bytes=free_bytes,
        )  # fmt: skip
