"""An operator's ``load``: of a model as it is, with another context, or that is only on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lmx.protocol import control
from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.protocol.inventory import AddModel
from lmx.protocol.states import SlotState, WorkerState
from lmx.supervisor.added_models import AddedModels
from lmx.supervisor.budget import format_bytes
from lmx.supervisor.config import ModelConfig
from lmx.supervisor.core import Core
from lmx.supervisor.slots import Slot
from lmx.supervisor.sources import HubSource, SourceError, parse_source

_LEAST_CONTEXT_TOKENS: Final = 16
_PARAM: Final = "max_context_length"
_LEAVING: Final = (WorkerState.DRAINING, WorkerState.STOPPING)


class Loading:
    """Answers ``LoadModel``. ``in_cache(repo_id)``: whether all of a repository of the hub is in
    the hub's cache on this machine."""

    def __init__(self, core: Core, added: AddedModels, in_cache: Callable[[str], bool]) -> None:
        self._core = core
        self._added = added
        self._in_cache = in_cache

    def load(self, name: str, context_length: int | None, now_s: float) -> control.Done:
        """Begin to load a model. Raises :class:`LmxError`."""
        slot = self._slot(name, now_s)
        if context_length is None or context_length == _next_context(slot):
            if slot.ready_worker is not None:
                return control.Done(f"{slot.model.id} is loaded already", slot.ready_worker.pid)
            self._core.operator.load(slot, now_s)
        else:
            self._refuse_context(slot, context_length)
            model = slot.model.model_copy(update={"context_length": context_length})
            self._refuse_size(slot, model)
            self._core.operator.load_with(slot, model, now_s)
        return self._begun(slot, now_s)

    def _begun(self, slot: Slot, now_s: float) -> control.Done:
        if slot.state is SlotState.COLD and slot.given_up is not None:
            raise slot.given_up
        if slot.state in (SlotState.COLD, SlotState.QUARANTINED):
            raise UnavailableError(
                ErrorCode.MODEL_LOAD_FAILED, slot.problem or f"{slot.model.id} can't be loaded"
            )
        if slot.state is SlotState.QUEUED:
            place = self._core.positions(now_s)[slot.model.id]
            return control.Done(f"{slot.model.id} waits for memory, number {place} in the queue")
        return control.Done(f"loading {slot.model.id}")

    def _slot(self, name: str, now_s: float) -> Slot:
        try:
            return self._core.slot(name)
        except LmxError:
            if not self._is_downloaded(name):
                raise
        self._added.add(AddModel(name, name), now_s)
        return self._core.slot(name)

    def _is_downloaded(self, name: str) -> bool:
        try:
            source = parse_source(name)
        except SourceError:
            return False
        return isinstance(source, HubSource) and source.repo_id == name and self._in_cache(name)

    def _refuse_context(self, slot: Slot, context_length: int) -> None:
        most = slot.facts.context_tokens
        if context_length < _LEAST_CONTEXT_TOKENS or (most is not None and context_length > most):
            upto = "" if most is None else f" and at most {most}, which is what the model has"
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"{slot.model.id} can't have a context of {context_length} tokens: at least "
                f"{_LEAST_CONTEXT_TOKENS}{upto}",
                param=_PARAM,
            )

    def _refuse_size(self, slot: Slot, model: ModelConfig) -> None:
        """What runs is not ended for one that can never fit."""
        need_bytes = self._core.planned_bytes(slot.model.id, model)
        budget_bytes = self._core.ledger.budget_bytes
        if need_bytes > budget_bytes:
            raise UnavailableError(
                ErrorCode.INSUFFICIENT_MEMORY,
                f"{slot.model.id} with a context of {model.context_length} needs "
                f"{format_bytes(need_bytes)}, which is more than the whole budget of "
                f"{format_bytes(budget_bytes)}: ask for a shorter context",
                param=_PARAM,
                final=True,
            )


def _next_context(slot: Slot) -> int | None:
    """Return the context of the worker that takes the next request, None where the model's own is
    not known. One that is on its way out takes none, whatever it has."""
    if slot.worker is None or slot.worker.state not in _LEAVING:
        return slot.context_length
    return (slot.needs.context_tokens if slot.needs else None) or slot.model.context_length
