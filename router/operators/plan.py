"""GET /admin/models/plan: what a load would need, and what would follow. It changes nothing."""

from typing import Final

from aiohttp import web

from lmx.protocol.messages.control import LoadPlan, PlanLine, PlanLoad
from lmx.protocol.states import LoadOutcome
from lmx.router.http.responses import Answer, json_value
from lmx.router.schema.requests.operators import PlanQuery
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.supervisor.queries import ask, known_model

_DEADLINE_S: Final = 75.0
"""The hub has a minute to say how large a repository is."""


class PlanAnswer(Answer):
    """The answer of GET /admin/models/plan."""

    model: str
    """The model's id, or the repository of one that is not served."""
    lines: list[PlanLine]
    """The parts of the estimate. Of a repository that is not on this machine they come from the
    heads of its files on the hub."""
    need_bytes: int
    """What would be reserved."""
    download_bytes: int
    """How much of its files is not on this machine."""
    budget_bytes: int
    free_bytes: int
    """How much of the budget is free now."""
    outcome: LoadOutcome
    """What would become of the load."""
    fits: bool
    """Whether it can be loaded at all."""
    message: str
    """The outcome in a sentence for people."""
    evicts: list[str]
    """The models that would be evicted for it."""
    context_length: int | None
    """The context that it would have. Null if that is not known."""
    longest_context: int | None
    """The longest context with which it could be loaded, if everything is evicted that may be. Null
    if that is not known, or there is none."""
    longest_context_now: int | None
    """The longest context with which it could be loaded and nothing be evicted. Null likewise."""


async def plan_load(request: web.Request) -> web.Response:
    """Return what the supervisor's own rules say of a load. Raises MODEL_NOT_FOUND, QUEUE_FULL
    where too many models are looked up on the hub, and INVALID_VALUE for a context that the model
    can't have."""
    query = validated(PlanQuery, dict(request.query))
    supervisor = request.app[SERVICES].supervisor
    model = known_model(await supervisor.directory(), query.model)
    asked = query.model if model is None else model.model_id
    found = await ask(supervisor, PlanLoad(asked, query.context_length), LoadPlan, _DEADLINE_S)
    return json_value(
        PlanAnswer(
            model=found.model_id,
            lines=list(found.lines),
            need_bytes=found.need_bytes,
            download_bytes=found.download_bytes,
            budget_bytes=found.budget_bytes,
            free_bytes=found.free_bytes,
            outcome=found.outcome,
            fits=found.outcome is not LoadOutcome.IMPOSSIBLE,
            message=found.detail,
            evicts=list(found.evicts),
            context_length=found.context_length,
            longest_context=found.longest_context,
            longest_context_now=found.longest_context_now,
        )
    )
