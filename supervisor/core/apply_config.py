"""Applies a changed configuration to the slots: it adds slots, removes some, and makes others
reload."""

from collections.abc import Mapping
from dataclasses import replace

from lmx.protocol.messages.template import UNKNOWN_TEMPLATE
from lmx.supervisor.config.diff import ModelChanges
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.core.slot_store import SlotStore
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.decisions.slots.life import SlotLife


class ApplyConfig:
    """Takes all slots to another configuration in one pass. After it the slots are in the order of
    the configuration, and removed ones that still have a worker come last. ``pins`` is what
    operators pinned and unpinned."""

    def __init__(self, store: SlotStore, pins: Mapping[str, bool]) -> None:
        self._store = store
        self._pins = pins

    def carry_out(self, config: Config, changes: ModelChanges, now_s: float) -> None:
        """Make the slots those of ``config``."""
        models = {model.id: model for model in config.models}
        for name in changes.removed:
            self._remove(self._store.slots[name], now_s)
        for name in changes.respawned:
            self._store.put(self._set(_anew(self._store.slots[name]), models[name]))
            self._store.step(name, events.Reconfigured(), now_s)
        for name in changes.touched:
            self._store.put(self._set(self._store.slots[name], models[name]))
        for name in changes.added:
            self._add(models[name], now_s)
        self._sort(models)

    def _set(self, slot: Slot, model: ModelConfig) -> Slot:
        return replace(slot, model=model, pinned=self._pins.get(model.id, model.pinned))

    def _add(self, model: ModelConfig, now_s: float) -> None:
        slot = self._store.slots.get(model.id)
        if slot is None:
            self._store.put(self._set(Slot(model, SlotLife(model.id)), model))
            if model.preload:
                self._store.step(model.id, events.Preloaded(), now_s)
            return
        # Its earlier worker is about to end.
        reconfigured = slot.model != model
        if reconfigured:
            slot = _anew(slot)
        slot = self._set(slot, model)
        self._store.put(slot.with_files(replace(slot.files, path=None)))
        self._store.step(model.id, events.Restored(model.preload, reconfigured), now_s)

    def _remove(self, slot: Slot, now_s: float) -> None:
        why = "was removed" if slot.added else "is no longer configured"
        self._store.step(slot.model.id, events.Removed(f"{slot.model.id} {why}"), now_s)

    def _sort(self, models: Mapping[str, ModelConfig]) -> None:
        order = {name: place for place, name in enumerate(models)}
        slots = sorted(
            self._store.slots.values(), key=lambda one: order.get(one.model.id, len(order))
        )
        self._store.slots.clear()
        for slot in slots:
            self._store.put(slot)


def _anew(slot: Slot) -> Slot:
    """Return the slot of a model with another configuration, without what its worker said of the
    old one, and without its folder."""
    past = replace(slot.past, capabilities=(), template=UNKNOWN_TEMPLATE, media=None)
    return replace(slot, past=past, files=replace(slot.files, path=None))
