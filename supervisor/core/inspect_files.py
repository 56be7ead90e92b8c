"""Reads what is known about a model before it is loaded: its kind, its family, and the memory that
it would get."""

from dataclasses import replace

from lmx.protocol.errors import LmxError
from lmx.protocol.models.ranks import Parallel
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.sources import HubSource, folder_path, parse_source
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.memory.inspection import Inspection, ModelFacts, Question
from lmx.supervisor.memory.plan import MemoryPlan


def question_of(model: ModelConfig, path: str | None = None) -> Question:
    """Return the question about a model's files. If ``path`` is None, the files are where the
    source says, or where an earlier fetch left them."""
    draft = model.speculation.draft
    return Question(
        model.source,
        path,
        None if draft is None else str(folder_path(draft)),
        model.kind,
        model.engine,
        tuple(adapter_source(source) for source in model.adapters.values()),
        model.ranks,
        Parallel(model.parallel),
        tuple(name for name in (model.rdma_devices or ((),))[0] if name is not None),
        model.speculation.method == "auto" and model.ranks == 1,
    )


def adapter_source(source: str) -> str:
    """Return the source of an adapter in one form: the absolute path of a folder, or a repository
    as it is written."""
    return source if isinstance(parse_source(source), HubSource) else str(folder_path(source))


def inspect_files(slot: Slot, actions: Actions) -> Slot:
    """Ask for the model's files to be read as they are on this machine now. Returns the slot with
    what is known at once. Until the files were read, what was read of the same model before still
    holds."""
    path = actions.local_path(slot.model)
    question = question_of(slot.model, None if path is None else str(path))
    files = slot.files
    if files.inspection is None or not files.inspection.question.same_model(question):
        files = replace(files, inspection=None, kind=slot.model.kind, facts=ModelFacts())
    slot = plan_again(slot.with_files(files), actions)
    found = actions.inspect(slot.model.id, question)
    return slot if found is None else take(slot, found, actions)


def take(slot: Slot, found: Inspection, actions: Actions) -> Slot:
    """Return the slot with what the model's files say. Where they can't be read now, the kind of
    the model is what it was."""
    kind = slot.model.kind or found.kind or (slot.files.kind if found.by_host else None)
    files = replace(slot.files, inspection=found, kind=kind, facts=found.facts)
    return plan_again(slot.with_files(files), actions)


def plan_again(slot: Slot, actions: Actions) -> Slot:
    """Return the slot with the memory that a worker of it would get now. If its folder can't be
    planned for, ``needs`` is None, and loading the model will say why."""
    return slot.with_files(replace(slot.files, needs=_needs(slot, actions)))


def _needs(slot: Slot, actions: Actions) -> MemoryPlan | None:
    inspection = slot.files.inspection
    if inspection is None or inspection.files is None:
        return None
    try:
        return actions.plan_memory(slot.model, inspection)
    except LmxError:
        return None
