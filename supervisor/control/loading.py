"""Answers an operator's ``load``: of a model as it is configured, of one with another context
length, or of a model that is only on disk."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.protocol.messages import control
from lmx.protocol.messages.inventory import AddModel
from lmx.protocol.states import SlotState, WorkerState
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.sources import HubSource, SourceError, parse_source
from lmx.supervisor.control.handlers import replacing
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.memory.inspection import Inspection, Question, refuse_unread

_LEAST_CONTEXT_TOKENS: Final = 16
_POLL_S: Final = 0.02
_READ_POLLS: Final = 300
"""These polls take six seconds, for the model's files to be read. A client waits no longer than
ten."""

_PARAM: Final = "max_context_length"
_LEAVING: Final = (WorkerState.DRAINING, WorkerState.STOPPING)


@dataclass(eq=False, repr=False)
class Loading:
    """Answers ``LoadModel``. ``inspect`` reads a model's files, also those of a repository in the
    hub's cache on this machine; ``now_s`` is the core's clock."""

    _core: Core
    _added: AddedModels
    _inspect: Callable[[Question], Awaitable[Inspection]]
    _now_s: Callable[[], float]
    _replacing: Callable[[], bool]
    """Whether the supervisor is being replaced."""

    async def load(self, name: str, context_length: int | None) -> control.Done:
        """Begin to load a model. Returns when its files were read, or after some seconds. Raises
        :class:`LmxError`."""
        slot = await self._slot(name)
        now_s = self._now_s()
        if context_length is None or context_length == _next_context(slot):
            if slot.ready_worker is not None:
                pid = slot.ready_worker.pid
                return control.Done(f"{slot.model.id} is loaded already", pid, slot.model.id)
            if slot.worker is not None and slot.worker.state in _LEAVING:
                self.refuse_while_replacing(slot)
            self._core.operator.load(slot.model.id, now_s)
        else:
            self.refuse_while_replacing(slot)
            self._refuse_context(slot, context_length)
            model = slot.model.model_copy(update={"context_length": context_length})
            self._refuse_size(slot, model)
            self._core.operator.load_with(model, now_s)
        self._core.flush(now_s)
        for _ in range(_READ_POLLS):
            if not self._is_being_read(slot.model.id):
                break
            await asyncio.sleep(_POLL_S)
        return self._begun(slot.model.id, self._now_s())

    def refuse_while_replacing(self, slot: Slot) -> None:
        """Refuse to start a model again while the supervisor is being replaced. The next one adopts
        the model's worker as it is, and knows only of orders for models without a worker."""
        if slot.worker is not None and self._replacing():
            raise replacing()

    def _is_being_read(self, model_id: str) -> bool:
        slot = self._core.slots.get(model_id)
        return slot is not None and slot.state is SlotState.QUEUED and slot.plan is None

    def _begun(self, model_id: str, now_s: float) -> control.Done:
        slot = self._core.slots.get(model_id)
        if slot is None:
            raise UnavailableError(ErrorCode.MODEL_UNLOADED, f"{model_id} was removed meanwhile")
        if slot.state in (SlotState.COLD, SlotState.BACKOFF) and slot.life.problem is not None:
            raise slot.life.problem
        if slot.state in (SlotState.COLD, SlotState.QUARANTINED):
            raise UnavailableError(
                ErrorCode.MODEL_LOAD_FAILED, slot.problem or f"{slot.model.id} can't be loaded"
            )
        if slot.state is SlotState.QUEUED and slot.plan is not None:
            place = self._core.positions(now_s)[slot.model.id]
            waits = f"{model_id} waits for memory, number {place} in the queue"
            return control.Done(waits, model_id=model_id)
        return control.Done(f"loading {model_id}", model_id=model_id)

    async def _slot(self, name: str) -> Slot:
        try:
            return self._core.slot(name)
        except LmxError:
            repository = repository_of(name)
            if not await self._is_downloaded(repository):
                raise
        await self._added.add(AddModel(repository, repository))
        return self._core.slot(repository)

    async def _is_downloaded(self, name: str) -> bool:
        try:
            source = parse_source(name)
        except SourceError:
            return False
        if not isinstance(source, HubSource) or source.repo_id != name:
            return False
        found = await self._inspect(Question(name))
        refuse_unread(found)
        return found.whole

    def _refuse_context(self, slot: Slot, context_length: int) -> None:
        refusal = context_refusal(slot.model.id, context_length, slot.files.facts.context_tokens)
        if refusal is not None:
            raise RequestError(ErrorCode.INVALID_VALUE, refusal, param=_PARAM)

    def _refuse_size(self, slot: Slot, model: ModelConfig) -> None:
        """Refuse settings with which the model can never fit, before its running worker is ended
        for them."""
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


def context_refusal(model_id: str, context_length: int, most: int | None) -> str | None:
    """Return why a model can't have a context, None if it can. ``most`` is the longest that it was
    made for, None if that is not known."""
    if context_length >= _LEAST_CONTEXT_TOKENS and (most is None or context_length <= most):
        return None
    upto = "" if most is None else f" and at most {most}, which is what the model has"
    return (
        f"{model_id} can't have a context of {context_length} tokens: at least "
        f"{_LEAST_CONTEXT_TOKENS}{upto}"
    )


def _next_context(slot: Slot) -> int | None:
    """Return the context of the worker that takes the next request, None if the model's own is not
    known. A worker that is about to end takes no request, so that its context does not count."""
    if slot.worker is None or slot.worker.state not in _LEAVING:
        return slot.context_length
    needs = slot.files.needs
    return (needs.context_tokens if needs else None) or slot.model.context_length
