"""A task's way from its handler to a worker and back. All routes without generation use it."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel

from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.tasks import Scores, Task, TaskFinished, Tokenize
from lmx.router.http.bodies.capture import CAPTURES
from lmx.router.http.bodies.json_body import next_step, read_object
from lmx.router.http.endpoint import api_of
from lmx.router.http.outcome import CONTEXT, Outcome, follow_outcome, note_ignored, set_outcome
from lmx.router.jobs.live import LIVE_REQUEST, LiveRequest, RequestKind
from lmx.router.media.source import MediaSource
from lmx.router.rendering.envelope import Usage
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.services import SERVICES
from lmx.router.workers.dispatch import COMPUTE_DEADLINE_S
from lmx.router.workers.fallback import perform_on_first
from lmx.router.workers.task import Last, Part
from lmx.router.workers.waits import Waits

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, slots=True)
class Computed:
    """What a model has computed for texts."""

    model_id: str
    """The model that computed it."""
    parts: Sequence[Part]
    """The result for each text, in any order; none is missing."""
    prompt_tokens: int

    @property
    def usage(self) -> Usage:
        """The usage object of the answer: all tokens are the prompt's."""
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}


async def read_task(
    request: web.Request,
    parse: Callable[[dict[str, Any]], _Parsed],
    schema: type[BaseModel],
    supported: dict[str, tuple[Any, ...]] | None = None,
) -> _Parsed:
    """Return what ``parse`` makes of a request's body, and note the fields that change nothing:
    those that are not in ``schema``, nor in the table of values that are ``supported``."""
    body = await read_object(request, request.app[SERVICES].spec.body_limit_bytes)
    parsed = parse(body)
    await next_step(request)
    note_ignored(request, ignored_fields(body, schema, supported or {}))
    return parsed


async def compute(
    request: web.Request, models: Sequence[ModelView], task: Task, kind: RequestKind, answer_id: str
) -> Computed:
    """Have the first available model of ``models`` do ``task``. Meanwhile it is listed as
    ``answer_id`` among the requests under way. Raises the error of its refusal, or
    REQUEST_CANCELLED."""
    services, context = request.app[SERVICES], request[CONTEXT]
    live = LiveRequest(
        answer_id, context, kind, api_of(request), request.remote, models[0].model_id
    )
    request[LIVE_REQUEST] = live
    live.is_captured = request.app[CAPTURES].keep(live.id, request)
    follow_outcome(request, lambda: Outcome(model=live.model_id))

    def choose(model: ModelView) -> None:
        live.model_id = model.model_id

    work = perform_on_first(services.tasks, models, _own(request, task), choose, live.waits)
    model, answer = await services.live.perform(live, work)
    assert isinstance(answer.last, TaskFinished)
    computed = Computed(model.model_id, answer.parts, answer.last.prompt_tokens)
    set_outcome(request, Outcome(model=model.model_id, prompt_tokens=computed.prompt_tokens))
    return computed


async def ask_tokenizer(
    request: web.Request,
    models: Sequence[ModelView],
    task: Task,
    sources: Sequence[MediaSource] = (),
) -> Last:
    """Return the answer of the first available model of ``models`` to a ``task`` that computes
    nothing, and so is neither listed nor counted in tokens. ``sources`` are the media of a
    ``Tokenize``. Raises the error of its refusal, and :class:`lmx.protocol.errors.RequestError` for
    media that can't be had."""
    services = request.app[SERVICES]
    own = _own(request, task)
    blobs: Sequence[bytes] = ()

    def choose(model: ModelView) -> None:
        set_outcome(request, Outcome(model=model.model_id))

    async with AsyncExitStack() as until_answered:
        if sources:
            assert isinstance(own, Tokenize)
            services.media.check(sources)
            held = await until_answered.enter_async_context(services.media.read(sources, own.owner))
            # Decoding has a limit of its own.
            own = replace(own, media=held.items, deadline_s=COMPUTE_DEADLINE_S)
            blobs = held.blobs
        _, answer = await perform_on_first(services.tasks, models, own, choose, Waits(), blobs)
    return answer.last


def scores_of(computed: Computed) -> dict[int, float]:
    """Return the score of each text, by the text's index, in the texts' order."""
    scores: dict[int, float] = {}
    for part in computed.parts:
        assert isinstance(part, Scores)
        scores.update(zip(part.indexes, part.scores, strict=True))
    return dict(sorted(scores.items()))


def _own(request: web.Request, task: Task) -> Task:
    context = request[CONTEXT]
    return replace(task, request_id=context.request_id, owner=context.requester)
