"""One request's way to a worker and back: it acquires the model, submits the request, tries again
while that makes sense, and then passes on the worker's events.

Every endpoint that generates text uses :class:`Dispatcher`; how the events look to the client is
the endpoint's matter. :class:`TaskDispatcher` does the same for tasks: embeddings, reranking,
tokenizing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.protocol.messages.data import Accepted, Generate
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.tasks import Embed, Rerank, Task
from lmx.router.media.source import HeldMedia
from lmx.router.supervisor.directory import ready_instance
from lmx.router.supervisor.model_queues import ModelQueues
from lmx.router.workers.link import WorkerLink
from lmx.router.workers.links import WorkerLinks
from lmx.router.workers.phased_timeout import PhasedTimeout
from lmx.router.workers.stream import Batch, Sink, WorkerStream
from lmx.router.workers.task import OrderedPart, TaskAnswer
from lmx.router.workers.waits import Waits

RETRY_IF_LOST: Final = frozenset({ErrorCode.WORKER_LOST})
RETRY_IF_DIED: Final = RETRY_IF_LOST | {
    ErrorCode.WORKER_CRASHED,
    ErrorCode.WORKER_HUNG,
    ErrorCode.WORKER_KILLED,
    ErrorCode.WORKER_OUT_OF_MEMORY,
    ErrorCode.ENGINE_ERROR,
}
"""For a request that its worker had not accepted yet. Most likely another request ended that
worker. It may have been this one all the same, and it must not go through worker after worker."""

_MAY_BE_ITS_DOING: Final = frozenset(
    {
        ErrorCode.WORKER_LOST,
        ErrorCode.WORKER_CRASHED,
        ErrorCode.WORKER_HUNG,
        ErrorCode.WORKER_OUT_OF_MEMORY,
    }
)
"""For a request that its worker was preparing. Most likely this request caused the hang or
crash."""

_PAUSES_S: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""The pause before each further attempt. The first attempt goes at once: a worker that is being
evicted refuses requests, and the supervisor knows when there is a worker again."""

_log = structlog.get_logger()
_T = TypeVar("_T")


async def on_worker(
    queues: ModelQueues,
    model: ModelView,
    request_id: str,
    owner: str,
    attempt: Callable[[str], Awaitable[_T]],
    waits: Waits,
    retried_event: str,
    once_more_after: frozenset[ErrorCode],
) -> _T:
    """Return what ``attempt`` gives for a worker's instance. ``waits`` notes how long its model is
    waited for.

    An attempt that meets a worker that is draining is made again through the model's queue, where
    the request keeps its place; ``retried_event`` is logged. After an error in ``once_more_after``
    that is not final it is made once more. So an attempt may fail in these ways only before any of
    its output was passed on. Raises the error of the last attempt, or of the waiting queues.
    """
    arrived_s = waits.arrived_s = time.monotonic()
    instance = ready_instance(model)
    once_more = True
    for pause_s in (*_PAUSES_S, None):
        if instance is None:
            with waits.loading():
                instance = await queues.acquire(model.model_id, request_id, owner, arrived_s)
        try:
            return await attempt(instance)
        except LmxError as error:
            late = time.monotonic() - arrived_s >= queues.load_wait_s
            if error.code in once_more_after and once_more and not error.final:
                once_more = False
            elif error.code is not ErrorCode.MODEL_UNLOADED or error.final:
                raise
            if pause_s is None or late:
                raise
            _log.info(retried_event, model=model.model_id, reason=error.message)
        instance = None
        with waits.loading():
            await asyncio.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def blamed(error: LmxError, *, preparing: bool) -> LmxError:
    """Return the error for a request that had no verdict when its worker ended. It is final if the
    worker was ``preparing`` it, so that the request does not stop the next worker too."""
    if not preparing or error.code not in _MAY_BE_ITS_DOING:
        return error
    return GenerationError(error.code, error.message, param=error.param, final=True)


_ACCEPT_DEADLINE_S: Final = 180.0
"""For the worker's verdict, from the request's turn on: it tokenizes the prompt first, which takes
seconds for megabytes. Longer than the supervisor waits before it ends a worker that hangs, and says
so."""

_TURN_GRACE_S: Final = 330.0
"""A request waits for its turn as long as its worker lets it (``max_queue_s``). If it takes so much
longer, the worker has lost it; decoding its media, for 300 s at most, comes before its turn."""


class Generation:
    """A generation that a worker has accepted.

    ``queued`` is the number of requests before it when it was accepted. ``load_s`` is how long its
    model was waited for. ``remarks`` are what is done otherwise than requested. ``prompt_ids`` are
    the tokens of its prompts, if they were requested. ``ignored`` are the request's fields
    that change nothing.
    """

    def __init__(
        self, link: WorkerLink, stream: WorkerStream, accepted: Accepted, load_s: float
    ) -> None:
        self.prompt_tokens = accepted.prompt_tokens
        self.queued = accepted.queued
        self.remarks = accepted.remarks
        self.prompt_ids = (accepted.prompt_ids,)
        self.ignored = accepted.ignored
        self.load_s = load_s
        self._link = link
        self._stream = stream

    def next_batch(self, wait_s: float) -> Coroutine[Any, Any, Batch]:
        """Return a coroutine that gives what is ready within ``wait_s``, and raises if the
        generation is lost.

        A further call means that the batch before was delivered. Only then does the worker get its
        credit back, so that a slow client slows down only its own stream.
        """
        # This is the stream's own coroutine, and not one more around it for each token.
        self._link.grant(self._stream)
        return self._stream.next_batch(wait_s)

    def relay_to(self, sink: Sink) -> None:
        """Let ``sink`` deliver what comes while :meth:`next_batch` waits. The worker gets its
        credit back for that too."""
        self._stream.sink = sink

    def close(self) -> None:
        """Cancel the generation on its worker, unless it has ended."""
        # The sink leads back here: a circle would keep the answer until the garbage is collected.
        self._stream.sink = None
        self._link.close_stream(self._stream)


class Dispatcher:
    """Finds a worker for a request. Holds no state of its own."""

    def __init__(self, queues: ModelQueues, workers: WorkerLinks) -> None:
        self._queues = queues
        self._workers = workers

    @asynccontextmanager
    async def generate(
        self,
        model: ModelView,
        request: Generate,
        waits: Waits,
        held: HeldMedia | None = None,
    ) -> AsyncIterator[Generation]:
        """Have ``request`` accepted by a worker of ``model``; cancel it on the way out. ``waits``
        notes what it waits for. ``held`` are its media: their bytes go with it each time that it is
        sent, and are released when it was accepted.

        Raises the error with which the request is refused. Leaving the block in any way (the end,
        an error, a client that left) cancels what has not ended. A request that meets a worker that
        is draining or gone is sent again, through the model's queue: nothing has been produced for
        it yet.
        """
        until_s = time.monotonic() + self._queues.load_wait_s
        link, stream, accepted = await on_worker(
            self._queues,
            model,
            request.request_id,
            request.owner,
            lambda instance: self._submit(instance, model, request, waits, held, until_s),
            waits,
            "generation.retried",
            # An attempt ends as soon as the request was taken.
            RETRY_IF_DIED,
        )
        if held is not None:
            held.release()
        generation = Generation(link, stream, accepted, waits.load_s)
        try:
            yield generation
        finally:
            generation.close()

    async def _submit(
        self,
        instance: str,
        model: ModelView,
        request: Generate,
        waits: Waits,
        held: HeldMedia | None,
        until_s: float,
    ) -> tuple[WorkerLink, WorkerStream, Accepted]:
        link = self._workers.link_to(instance)
        # A request that waits for memory in a worker waits as long as it would for a worker.
        left_s = max(0.0, until_s - time.monotonic())
        asked = replace(request, adapter=model.adapter, memory_wait_s=left_s)
        stream = link.submit(asked, held.blobs if held is not None else ())
        waits.sent(stream.timeout)
        with ExitStack() as undo:
            undo.callback(link.close_stream, stream)
            try:
                verdict = stream.accepted(_turn_s(model), _ACCEPT_DEADLINE_S)
                accepted = await _not_lost(
                    verdict, stream.timeout, model, "take the request", _ACCEPT_DEADLINE_S
                )
            except LmxError as error:
                raise blamed(error, preparing=stream.timeout.begun) from error
            undo.pop_all()
        waits.accepted()
        return link, stream, accepted


def _turn_s(model: ModelView) -> float:
    return model.max_queue_s + _TURN_GRACE_S


async def _not_lost(
    work: Awaitable[_T], timeout: PhasedTimeout, model: ModelView, what: str, work_s: float
) -> _T:
    """Return what ``work`` gives. Raises WORKER_LOST for a worker that is alive and has not done
    ``what`` in time."""
    try:
        return await work
    except TimeoutError as error:
        if not timeout.begun:
            what, work_s = "begin with the request", _turn_s(model)
        raise GenerationError(
            ErrorCode.WORKER_LOST, f"The model's worker did not {what} in {work_s:g} s."
        ) from error


COMPUTE_DEADLINE_S: Final = 600.0
"""For thousands of inputs on a CPU. A worker that is stuck is found sooner, by its progress."""

TOKENIZE_DEADLINE_S: Final = 60.0

_ANSWER_GRACE_S: Final = 5.0
"""A worker answers by the deadline; later it is lost."""


class TaskDispatcher:
    """Finds a worker for a task. Holds no state of its own."""

    def __init__(self, queues: ModelQueues, workers: WorkerLinks) -> None:
        self._queues = queues
        self._workers = workers

    async def perform(
        self,
        model: ModelView,
        task: Task,
        waits: Waits,
        blobs: Sequence[bytes] = (),
        on_part: Callable[[OrderedPart], None] | None = None,
    ) -> TaskAnswer:
        """Have ``task`` done by a worker of ``model``, and cancel it when no request waits any
        more.

        ``waits`` notes what it waits for. ``blobs`` are the bytes of its media. ``on_part`` is
        called with each part of a transcript or a sound as it comes. Raises the error with which it
        is refused. A task whose worker is draining or gone is sent again, through the model's
        queue, unless ``on_part`` was called.
        """
        return await on_worker(
            self._queues,
            model,
            task.request_id,
            task.owner,
            lambda instance: self._perform(instance, model, task, waits, blobs, on_part),
            waits,
            "task.retried",
            # An attempt is the whole task: the task itself may have ended its worker.
            RETRY_IF_LOST,
        )

    async def _perform(
        self,
        instance: str,
        model: ModelView,
        task: Task,
        waits: Waits,
        blobs: Sequence[bytes],
        on_part: Callable[[OrderedPart], None] | None,
    ) -> TaskAnswer:
        link = self._workers.link_to(instance)
        pending = link.submit_task(
            lambda number: replace(task, stream_id=number), _inputs(task), blobs, on_part
        )
        waits.sent(pending.timeout)
        try:
            answer = pending.answer(_turn_s(model), task.deadline_s + _ANSWER_GRACE_S)
            return await _not_lost(answer, pending.timeout, model, "answer", task.deadline_s)
        except LmxError as error:
            if pending.relayed:
                raise GenerationError(
                    error.code, error.message, param=error.param, final=True
                ) from error
            raise blamed(error, preparing=pending.timeout.begun) from error
        finally:
            link.close_task(pending)


def _inputs(task: Task) -> int:
    match task:
        case Embed():
            return len(task.texts) or len(task.tokens)
        case Rerank():
            return len(task.documents)
        case _:
            return 0
