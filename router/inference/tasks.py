"""A task's way from its handler to a worker and back. All routes without generation use it."""

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel

from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.tasks import (
    Embed,
    Scores,
    Task,
    TaskFinished,
    TaskPart,
    Tokenize,
    Tokenized,
    Vectors,
)
from lmx.router.http.bodies.capture import CAPTURES
from lmx.router.http.bodies.json_body import next_step, read_object
from lmx.router.http.endpoint import api_of
from lmx.router.http.outcome import CONTEXT, Outcome, follow_outcome, note_ignored, set_outcome
from lmx.router.inference.model_choice import models_for
from lmx.router.inference.named_files import with_files
from lmx.router.inference.prompts import prepared
from lmx.router.jobs.live import LIVE_REQUEST, LiveRequest, RequestKind
from lmx.router.media.source import MediaSource, PartSource
from lmx.router.rendering.envelope import Usage
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.services import SERVICES
from lmx.router.workers.dispatch import COMPUTE_DEADLINE_S
from lmx.router.workers.fallback import perform_on_first
from lmx.router.workers.task import Last, OrderedPart
from lmx.router.workers.waits import Waits

_Parsed = TypeVar("_Parsed")

_BACKGROUND_DEADLINE_S: Final = 86_400.0
"""A batch has expired by then."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What a model has computed for texts."""

    model_id: str
    """The model that computed it."""
    parts: Sequence[TaskPart]
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


class ListedTask:
    """A task for the first available one of some models, which is listed meanwhile among the
    requests under way, as ``answer_id``."""

    def __init__(
        self,
        request: web.Request,
        models: Sequence[ModelView],
        task: Task,
        kind: RequestKind,
        answer_id: str,
        blobs: Sequence[bytes] = (),
    ) -> None:
        self.live = request[LIVE_REQUEST] = LiveRequest(
            answer_id, request[CONTEXT], kind, api_of(request), request.remote, models[0].model_id
        )
        self.live.is_captured = request.app[CAPTURES].keep(answer_id, request)
        self._services = request.app[SERVICES]
        self._models = models
        self._task = _own(request, task)
        self._blobs = blobs

    async def perform(self, on_part: Callable[[OrderedPart], None] | None = None) -> Computed:
        """Return what was computed; ``on_part`` is called with each part of an answer in parts.
        Raises the error of its refusal, or REQUEST_CANCELLED."""
        work = perform_on_first(
            self._services.tasks,
            self._models,
            self._task,
            self._choose,
            self.live.waits,
            self._blobs,
            on_part,
        )
        model, answer = await self._services.live.perform(self.live, work)
        assert isinstance(answer.last, TaskFinished)
        return Computed(model.model_id, answer.parts, answer.last.prompt_tokens)

    def _choose(self, model: ModelView) -> None:
        self.live.model_id = model.model_id


async def end_work(work: asyncio.Task[Any]) -> None:
    """End what a request does in a task of its own, and wait until it has ended. Its error is
    known by now, or its client has left."""
    work.cancel()
    await asyncio.wait({work})
    if not work.cancelled():
        work.exception()


async def compute(
    request: web.Request, models: Sequence[ModelView], task: Task, kind: RequestKind, answer_id: str
) -> Computed:
    """Have the first available model of ``models`` do ``task``. Meanwhile it is listed as
    ``answer_id`` among the requests under way. Raises the error of its refusal, or
    REQUEST_CANCELLED."""
    listed = ListedTask(request, models, task, kind, answer_id)
    live = listed.live
    follow_outcome(request, lambda: Outcome(model=live.model_id))
    computed = await listed.perform()
    set_outcome(request, Outcome(model=computed.model_id, prompt_tokens=computed.prompt_tokens))
    return computed


async def tokenized(
    request: web.Request,
    name: str | None,
    task: Tokenize,
    sources: Sequence[PartSource],
    field: str,
) -> Tokenized:
    """Return the tokens of a prompt, as the model of a name counts them. ``sources`` are its media,
    and ``field`` is the one that names a result's call. Raises what :func:`ask_tokenizer` does."""
    task, media = await with_files(request, task, sources)
    models = await models_for(request, name, media=media)
    task = prepared(request, task, field)
    await next_step(request)
    answer = await ask_tokenizer(request, models, task, media)
    assert isinstance(answer, Tokenized)
    return answer


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


def vectors_of(part: Vectors) -> Iterator[tuple[int, bytes]]:
    """Yield the vectors of some texts, as 32-bit floats, each with its text's index."""
    size_bytes = 4 * part.dimensions
    for place, index in enumerate(part.indexes):
        yield index, part.data[place * size_bytes : (place + 1) * size_bytes]


def floats_of(vector: bytes) -> tuple[Any, ...]:
    """Return the numbers of a vector of 32-bit floats."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


def _own(request: web.Request, task: Task) -> Task:
    context = request[CONTEXT]
    if context.background and isinstance(task, Embed):
        # It stands still for everybody else's, however long those take.
        task = replace(task, background=True, deadline_s=_BACKGROUND_DEADLINE_S)
    return replace(task, request_id=context.request_id, owner=context.requester)
