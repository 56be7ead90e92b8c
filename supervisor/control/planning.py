"""Answers ``PlanLoad``: what a load would need, and what would follow. Nothing changes."""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, RequestError, UnavailableError
from lmx.protocol.messages.control import LoadPlan, PlanLine, PlanLoad
from lmx.protocol.states import LoadOutcome, ModelKind
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.sources import HubSource, SourceError, parse_source
from lmx.supervisor.control.loading import context_refusal
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.decisions.forecast import Forecast, forecast, without
from lmx.supervisor.decisions.placement import infeasible_reason
from lmx.supervisor.decisions.placement_view import PlacementView, Waiting
from lmx.supervisor.memory.estimate_lines import lines_of
from lmx.supervisor.memory.inspection import Inspection, Question, refuse_unread
from lmx.supervisor.memory.plan import Estimate, MemoryPlan

_CONTEXT_STEP_TOKENS: Final = 256


Estimating = Callable[[ModelConfig, Inspection], tuple[Estimate, MemoryPlan]]
"""Plans for a model whose files were read."""


_PREVIEWS: Final = 2
_MOST_WAITING: Final = 4
_PATIENCE_S: Final = 10.0
"""How long a preview waits for its turn. Whoever asks waits for the hub's minute besides."""


class Previews:
    """Previews models, a few at a time: each is a process that asks the hub, and whoever may look
    may ask for any repository. ``preview`` is :data:`Planning._preview` without a limit."""

    def __init__(self, preview: Callable[[Question], Awaitable[tuple[int, Inspection]]]) -> None:
        self._preview = preview
        self._turns = asyncio.Semaphore(_PREVIEWS)
        self._waiting = 0

    async def __call__(self, question: Question) -> tuple[int, Inspection]:
        """Return what ``preview`` does. Raises QUEUE_FULL where too many wait, or for too long."""
        if self._waiting >= _MOST_WAITING:
            raise _too_many_previews()
        self._waiting += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise _too_many_previews() from error
        finally:
            self._waiting -= 1
        try:
            return await self._preview(question)
        finally:
            self._turns.release()


def _too_many_previews() -> UnavailableError:
    return UnavailableError(
        ErrorCode.QUEUE_FULL,
        f"{_PREVIEWS} models that are not on this machine are looked up on the hub, and others "
        "wait: try again in a few seconds.",
        retry_after_s=5.0,
    )


@dataclass(eq=False, repr=False)
class Planning:
    """Answers ``PlanLoad``. ``inspect`` reads a model's files; ``preview`` those of one that is not
    on this machine, and says how much of it is missing; ``now_s`` is the core's clock."""

    _core: Core
    _inspect: Callable[[Question], Awaitable[Inspection]]
    _preview: Callable[[Question], Awaitable[tuple[int, Inspection]]]
    _estimate: Estimating
    _now_s: Callable[[], float]

    async def plan(self, question: PlanLoad) -> LoadPlan:
        """Return the plan. Raises :class:`LmxError`: MODEL_NOT_FOUND, MODEL_SOURCE_INVALID,
        QUEUE_FULL where too many models are looked up on the hub or the files can't be read now,
        and INVALID_VALUE for a context that the model can't have."""
        model = self._model(question)
        asked, download_bytes = question_of(model), question.download_bytes
        if question.folder is not None:
            asked = replace(asked, path=question.folder)
        found = await self._inspect(asked)
        refuse_unread(found)
        if not found.whole:
            try:
                download_bytes, found = await self._preview(asked)
            except OperationError as error:
                raise RequestError(
                    ErrorCode.MODEL_NOT_FOUND,
                    f"the files of {model.id} are not on this machine: {error.message}",
                    param="model",
                ) from error
        return load_plan(
            model,
            found,
            self._estimate,
            self._core.scene(self._now_s()),
            self._now_s(),
            context_length=question.context_length,
            download_bytes=download_bytes,
            known=self._loaded(model.id, question.context_length),
        )

    def _model(self, question: PlanLoad) -> ModelConfig:
        name = question.model_id
        try:
            return self._core.slot(name).model
        except LmxError as unknown:
            repository = repository_of(name)
            if question.folder is not None:
                return ModelConfig(id=repository, source=question.folder)
            try:
                is_of_hub = isinstance(parse_source(repository), HubSource)
                model = ModelConfig(id=repository, source=repository)
            except (SourceError, ValidationError):
                raise unknown from None
            if not is_of_hub:
                # No name in a request reaches the disk.
                raise
            return model

    def _loaded(self, model_id: str, context_length: int | None) -> Forecast | None:
        slot = self._core.slots.get(model_id)
        worker = None if slot is None else slot.ready_worker
        if slot is None or worker is None or context_length not in (None, slot.context_length):
            return None
        return Forecast(LoadOutcome.LOADED, f"{model_id} is loaded already")


def load_plan(
    model: ModelConfig,
    found: Inspection,
    estimating: Estimating,
    scene: PlacementView,
    now_s: float,
    *,
    context_length: int | None = None,
    download_bytes: int = 0,
    known: Forecast | None = None,
) -> LoadPlan:
    """Return what the load of a model whose files were read would need, and what would follow for
    the models of a scene. ``known`` is what is known to follow.

    Raises :class:`LmxError`: MODEL_SOURCE_INVALID for files that can't be loaded, and INVALID_VALUE
    for a context that the model can't have.
    """
    if found.problem is not None or found.files is None:
        problem = found.problem or f"{found.path} is not whole: {found.missing} is missing"
        raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, problem)
    if context_length is not None:
        refusal = context_refusal(model.id, context_length, found.facts.context_tokens)
        if refusal is not None:
            raise RequestError(ErrorCode.INVALID_VALUE, refusal, param="context_length")
        model = model.model_copy(update={"context_length": context_length})
    estimate, plan = estimating(model, found)
    lines = list(lines_of(model, estimate))
    if plan.static_bytes != estimate.static_bytes:
        reason = "when it was loaded, in place of weights, draft model, adapters and process"
        lines.append(PlanLine("measured", plan.static_bytes, reason))
    if plan.set_bytes is not None:
        lines.append(PlanLine("memory_bytes", plan.set_bytes, "set by hand: takes precedence"))
    others = without(model.id, scene)
    outcome = known or forecast(Waiting(model.id, plan.reserve_bytes, None), others, now_s)
    longest, longest_now = _longest(model, found, estimating, others)
    return LoadPlan(
        model.id,
        tuple(lines),
        plan.reserve_bytes,
        outcome.outcome,
        outcome.detail,
        scene.budget_bytes,
        max(0, scene.free_bytes),
        outcome.evicts,
        download_bytes,
        plan.context_tokens or found.facts.context_tokens,
        longest,
        longest_now,
    )


def _longest(
    model: ModelConfig, found: Inspection, estimating: Estimating, scene: PlacementView
) -> tuple[int | None, int | None]:
    """Return the longest context with which a model can be loaded at all, and now. None: that is
    not known, or there is none."""
    native = found.facts.context_tokens
    if native is None or (model.kind or found.kind) is not ModelKind.CHAT:
        return None, None
    lengths = range(_CONTEXT_STEP_TOKENS, native, _CONTEXT_STEP_TOKENS)

    def lacks(tokens: int, *, now: bool) -> bool:
        with_context = model.model_copy(update={"context_length": tokens})
        try:
            need_bytes = estimating(with_context, found)[1].reserve_bytes
        except OperationError:
            return True  # So many bytes make no sense: a file may claim any length.
        if now:
            return need_bytes > scene.free_bytes
        return infeasible_reason(Waiting(model.id, need_bytes, None), scene) is not None

    def longest(*, now: bool) -> int | None:
        if not lacks(native, now=now):
            return native
        fitting = bisect_right(lengths, False, key=lambda each: lacks(each, now=now))
        return lengths[fitting - 1] if fitting else None

    return longest(now=False), longest(now=True)
