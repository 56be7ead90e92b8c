"""What a changed configuration does to the slots: new ones, some that go, some that load anew."""

from __future__ import annotations

from collections.abc import Mapping

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.states import ExitCause, SlotState
from lmx.supervisor.config.diff import ModelChanges
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.core.slot_life import SlotLife
from lmx.supervisor.decisions.restart import FailureRecord
from lmx.supervisor.decisions.worker import DrainAsked


class ApplyConfig:
    """Changes the slots in place: one pass, after which they are in the configuration's order,
    and removed ones that still have a worker come last."""

    def __init__(
        self,
        slots: dict[str, Slot],
        life: SlotLife,
        pins: Mapping[str, bool],
    ) -> None:
        self._slots = slots
        self._life = life
        self._pins = pins

    def carry_out(self, config: Config, changes: ModelChanges, now_s: float) -> None:
        """Have the slots be those of ``config``."""
        models = {model.id: model for model in config.models}
        for name in changes.removed:
            self._remove(self._slots[name], now_s)
        for name in changes.respawned:
            self._respawn(self._slots[name], models[name], now_s)
        for name in changes.touched:
            slot = self._slots[name]
            slot.model = models[name]
            slot.pinned = self._pins.get(name, slot.model.pinned)
        for name in changes.added:
            self._add(models[name], now_s)
        self._sort(models)

    def _add(self, model: ModelConfig, now_s: float) -> None:
        slot = self._slots.get(model.id)
        if slot is None:
            slot = self._slots[model.id] = Slot(model)
        else:
            slot.removed = False  # its worker of before is on its way out
            slot.model, slot.path = model, None
        slot.pinned = self._pins.get(model.id, model.pinned)
        slot.wanted = model.preload
        if slot.wanted and slot.worker is None:
            self._life.begin(slot, now_s)

    def _remove(self, slot: Slot, now_s: float) -> None:
        detail = f"{slot.model.id} {'was removed' if slot.added else 'is no longer configured'}"
        slot.removed, slot.wanted, slot.held = True, False, False
        self._life.failures.deny_waiters(slot, UnavailableError(ErrorCode.MODEL_UNLOADED, detail))
        if slot.worker is not None:
            self._life.step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
            return
        self._life.park(slot, SlotState.COLD)
        del self._slots[slot.model.id]

    def _respawn(self, slot: Slot, model: ModelConfig, now_s: float) -> None:
        slot.model, slot.path = model, None
        slot.pinned = self._pins.get(model.id, model.pinned)
        # What failed, and what its worker could do, was another configuration's.
        slot.capabilities = ()
        slot.failures, slot.retry_at_s = FailureRecord(), None
        if slot.worker is not None:
            detail = "its configuration has changed"
            self._life.step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
            return
        if slot.state is SlotState.HELD:
            return
        self._life.park(slot, SlotState.COLD)
        if slot.wanted:
            self._life.begin(slot, now_s)

    def _sort(self, models: Mapping[str, ModelConfig]) -> None:
        order = {name: place for place, name in enumerate(models)}
        slots = sorted(self._slots.values(), key=lambda one: order.get(one.model.id, len(order)))
        self._slots.clear()
        self._slots.update({slot.model.id: slot for slot in slots})
