"""Carries out what placement decides: starts, evictions, refusals, until nothing is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import structlog

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.states import ExitCause, MemoryPressure, SlotState
from lmx.supervisor.actions import Actions
from lmx.supervisor.budget import Ledger, format_bytes
from lmx.supervisor.config import MemoryConfig
from lmx.supervisor.groups import Groups
from lmx.supervisor.picture import positions, scene_of
from lmx.supervisor.placement import decide
from lmx.supervisor.scene import Decision, Deny, Drop, Evict, Expire, Start
from lmx.supervisor.slot_life import SlotLife
from lmx.supervisor.slots import Slot
from lmx.supervisor.worker_state import DrainAsked

log = structlog.get_logger()


class Placer:
    """Decides and acts for all slots at once. Holds nothing of its own but the settings."""

    def __init__(
        self,
        slots: Mapping[str, Slot],
        ledger: Ledger,
        life: SlotLife,
        actions: Actions,
        memory: MemoryConfig,
        groups: Groups,
    ) -> None:
        self.memory = memory
        self.groups = groups
        self.pressure = MemoryPressure.NONE
        self._slots = slots
        self._ledger = ledger
        self._life = life
        self._actions = actions

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
                self._slots.values(), self._ledger, self.memory, self.groups, self.pressure, now_s
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
            detail = (
                f"evicted after its requests to make room for {for_model}, which has waited for "
                f"{self.memory.fair_wait_s:g} s or longer"
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
        beside = [
            other.model.id
            for other in self._slots.values()
            if other.worker is not None and self.groups.conflict(slot.model.id, other.model.id)
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
