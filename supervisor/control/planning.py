"""Answers ``PlanLoad``: what a load would need, and what would follow. Nothing changes."""

from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.control import LoadPlan, PlanLine, PlanLoad
from lmx.protocol.states import LoadOutcome, ModelKind
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.sources import HubSource, SourceError, parse_source
from lmx.supervisor.control.loading import context_refusal
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.decisions.forecast import Forecast, forecast, without
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.decisions.placement import infeasible_reason
from lmx.supervisor.decisions.placement_view import PlacementView, Waiting
from lmx.supervisor.memory.estimate_lines import lines_of
from lmx.supervisor.memory.inspection import Inspection, Question
from lmx.supervisor.memory.plan import Estimate, MemoryPlan
from lmx.supervisor.processes.fetching import Look

_CONTEXT_STEP_TOKENS: Final = 256


@dataclass(eq=False, repr=False)
class Planning:
    """Answers ``PlanLoad``. ``inspect`` reads a model's files; ``look`` asks the hub how large a
    repository is, None if it doesn't say it; ``estimate`` plans for a model whose files were read;
    ``now_s`` is the core's clock."""

    _core: Core
    _inspect: Callable[[Question], Awaitable[Inspection]]
    _look: Callable[[str], Awaitable[Look | None]]
    _estimate: Callable[[ModelConfig, Inspection], tuple[Estimate, MemoryPlan]]
    _now_s: Callable[[], float]

    async def plan(self, question: PlanLoad) -> LoadPlan:
        """Return the plan. Raises :class:`LmxError`: MODEL_NOT_FOUND, MODEL_SOURCE_INVALID, and
        INVALID_VALUE for a context that the model can't have."""
        model = self._model(question.model_id)
        found = await self._inspect(question_of(model))
        if not found.whole:
            return await self._of_the_hub(model)
        if question.context_length is not None:
            most = found.facts.context_tokens
            refusal = context_refusal(model.id, question.context_length, most)
            if refusal is not None:
                raise RequestError(ErrorCode.INVALID_VALUE, refusal, param="context_length")
            model = model.model_copy(update={"context_length": question.context_length})
        estimate, plan = self._estimate(model, found)
        lines = list(lines_of(model, estimate))
        if plan.static_bytes != estimate.static_bytes:
            reason = "when it was loaded, in place of weights, draft model, adapters and process"
            lines.append(PlanLine("measured", plan.static_bytes, reason))
        if plan.set_bytes is not None:
            lines.append(PlanLine("memory_bytes", plan.set_bytes, "set by hand: goes before it"))
        scene = self._core.scene(self._now_s())
        one = Waiting(model.id, plan.reserve_bytes, None)
        context = plan.context_tokens or found.facts.context_tokens
        longest, longest_now = self._longest(model, found, without(model.id, scene))
        return self._answer(
            one,
            scene,
            tuple(lines),
            self._loaded(model.id, question.context_length),
            context_length=context,
            longest_context=longest,
            longest_context_now=longest_now,
        )

    def _model(self, name: str) -> ModelConfig:
        try:
            return self._core.slot(name).model
        except LmxError:
            repository = repository_of(name)
        try:
            # A short name's repository may be served under a name of its own.
            return self._core.slot(repository).model
        except LmxError as unknown:
            try:
                is_of_hub = isinstance(parse_source(repository), HubSource)
                model = ModelConfig(id=repository, source=repository)
            except (SourceError, ValidationError):
                raise unknown from None
            if not is_of_hub:
                # No name in a request reaches the disk.
                raise
            return model

    async def _of_the_hub(self, model: ModelConfig) -> LoadPlan:
        source = parse_source(model.source)
        look = await self._look(model.source) if isinstance(source, HubSource) else None
        if look is None:
            raise RequestError(
                ErrorCode.MODEL_NOT_FOUND,
                f"the files of {model.id} are not on this machine, and the hub does not say how "
                "large they are: check the name, or try again later",
                param="model",
            )
        reason = f"its files on the hub; {format_bytes(look.missing_bytes)} must be downloaded"
        scene = self._core.scene(self._now_s())
        return self._answer(
            Waiting(model.id, look.total_bytes, None),
            scene,
            (PlanLine("files", look.total_bytes, reason),),
            None,
            download_bytes=look.missing_bytes,
        )

    def _answer(
        self,
        one: Waiting,
        scene: PlacementView,
        lines: tuple[PlanLine, ...],
        known: Forecast | None,
        *,
        download_bytes: int = 0,
        context_length: int | None = None,
        longest_context: int | None = None,
        longest_context_now: int | None = None,
    ) -> LoadPlan:
        found = known or forecast(one, without(one.model_id, scene), self._now_s())
        return LoadPlan(
            one.model_id,
            lines,
            one.need_bytes,
            found.outcome,
            found.detail,
            scene.budget_bytes,
            max(0, scene.free_bytes),
            found.evicts,
            download_bytes,
            context_length,
            longest_context,
            longest_context_now,
        )

    def _loaded(self, model_id: str, context_length: int | None) -> Forecast | None:
        slot = self._core.slots.get(model_id)
        worker = None if slot is None else slot.ready_worker
        if slot is None or worker is None or context_length not in (None, slot.context_length):
            return None
        return Forecast(LoadOutcome.LOADED, f"{model_id} is loaded already")

    def _longest(
        self, model: ModelConfig, found: Inspection, scene: PlacementView
    ) -> tuple[int | None, int | None]:
        """Return the longest context with which a model can be loaded at all, and now. None: that
        is not known, or there is none."""
        native = found.facts.context_tokens
        if native is None or (model.kind or found.kind) is not ModelKind.CHAT:
            return None, None
        lengths = [*range(_CONTEXT_STEP_TOKENS, native, _CONTEXT_STEP_TOKENS), native]

        def lacks(tokens: int, *, now: bool) -> bool:
            with_context = model.model_copy(update={"context_length": tokens})
            need_bytes = self._estimate(with_context, found)[1].reserve_bytes
            if now:
                return need_bytes > scene.free_bytes
            return infeasible_reason(Waiting(model.id, need_bytes, None), scene) is not None

        def longest(*, now: bool) -> int | None:
            fitting = bisect_right(lengths, False, key=lambda each: lacks(each, now=now))
            return lengths[fitting - 1] if fitting else None

        return longest(now=False), longest(now=True)
