"""What is told of a model before it is loaded: its kind, its family, the memory it would get."""

from __future__ import annotations

from pathlib import Path

from lmx.protocol.errors import LmxError
from lmx.supervisor.actions import Actions
from lmx.supervisor.model_facts import ModelFacts
from lmx.supervisor.slots import Slot


def look_at(slot: Slot, actions: Actions) -> None:
    """Read the model's files where they are whole on this machine. A folder that can't be planned
    for has no ``needs``: loading it says why."""
    folder = actions.whole_path(slot.model)
    slot.kind, slot.facts, slot.needs = slot.model.kind, ModelFacts(), None
    if folder is not None:
        read_files(slot, folder, actions)
        plan_again(slot, folder, actions)


def read_files(slot: Slot, folder: Path, actions: Actions) -> None:
    """Read what the model is."""
    slot.kind = actions.model_kind(slot.model, folder)
    slot.facts = actions.model_facts(folder)


def plan_again(slot: Slot, folder: Path, actions: Actions) -> None:
    """Reckon what a worker of it would get now."""
    assert slot.kind is not None
    try:
        slot.needs = actions.plan_memory(slot.model, slot.kind, folder)
    except LmxError:
        slot.needs = None
