"""What is told of a model before it is loaded: its kind, its family, the memory it would get."""

from __future__ import annotations

from lmx.protocol.errors import LmxError
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.sources import folder_path
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.memory.inspection import Inspection, ModelFacts, Question


def question_of(model: ModelConfig, path: str | None = None) -> Question:
    """Return what is asked of a model's files. ``path`` None: they are where its source says, or
    where an earlier fetch left them."""
    speculation = model.speculation
    draft = speculation.draft if speculation is not None else None
    return Question(
        model.source,
        path,
        None if draft is None else str(folder_path(draft)),
        model.kind,
        model.engine,
    )


def inspect_files(slot: Slot, actions: Actions) -> None:
    """Have the model's files read, as they are on this machine now. Until that is done, what was
    read of the same model before holds."""
    path = actions.local_path(slot.model)
    question = question_of(slot.model, None if path is None else str(path))
    if slot.inspection is None or not slot.inspection.question.same_model(question):
        slot.inspection, slot.kind, slot.facts = None, slot.model.kind, ModelFacts()
    plan_again(slot, actions)
    found = actions.inspect(slot.model.id, question)
    if found is not None:
        take(slot, found, actions)


def take(slot: Slot, found: Inspection, actions: Actions) -> None:
    """Take what the model's files say."""
    slot.inspection = found
    slot.kind, slot.facts = slot.model.kind or found.kind, found.facts
    plan_again(slot, actions)


def plan_again(slot: Slot, actions: Actions) -> None:
    """Reckon what a worker of it would get now. A folder that can't be planned for has no
    ``needs``: loading it says why."""
    slot.needs = None
    if slot.inspection is None or slot.inspection.files is None:
        return
    try:
        slot.needs = actions.plan_memory(slot.model, slot.inspection)
    except LmxError:
        slot.needs = None
