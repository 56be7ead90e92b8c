"""From a generation to an HTTP response, as a stream or whole, for every kind of completion.

The form of the answer is decided by its :class:`lmx.router.rendering.answer_format.AnswerFormat`.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.protocol.messages.data import Delta
from lmx.protocol.messages.snapshot import ModelView
from lmx.router.event_loop import ends_in_time, yield_to_loop
from lmx.router.http.bodies.capture import CAPTURES
from lmx.router.http.endpoint import api_of, family_of
from lmx.router.http.errors import internal_error
from lmx.router.http.outcome import CONTEXT, follow_outcome, note_ignored
from lmx.router.http.rate_limits import ADMISSION
from lmx.router.http.responses import json_text
from lmx.router.http.sse import EventStream
from lmx.router.jobs.job import Job, Source, StoredInput
from lmx.router.jobs.live import LIVE_REQUEST, LiveRequest, RequestKind
from lmx.router.rendering.answer_format import AnswerFormat, EventWriter
from lmx.router.rendering.envelope import Identity, fingerprint
from lmx.router.services import SERVICES
from lmx.router.workers.fallback import first_opened
from lmx.router.workers.stream import Batch
from lmx.router.workers.waits import Waits

_Part = TypeVar("_Part")

QUIET_S: Final = 2.0
"""For this long nothing is sent: most waits are over by then, and a request that fails so soon
fails with its own status and not within a stream."""

INTERVAL_S: Final = 1.0
"""The least time between two comments."""

_LARGE_BYTES: Final = 64 * 1024
MORE_WAIT_S: Final = 60.0
"""How long one wait for more of an answer lasts, where nobody needs a ping; then the next
begins."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request is answered."""

    models: Sequence[ModelView]
    """The models to try, in this order."""
    generate: Callable[[ModelView, Waits], AbstractAsyncContextManager[Source]]
    """Begins the generation on a model, and notes what it waits for."""
    form: AnswerFormat
    kind: RequestKind
    id_prefix: str
    """Begins the answer's id, which is also its job's id."""
    stored: StoredInput | None = None
    """The input that is stored with the job's record."""


async def answer(request: web.Request, plan: Plan, *, stream: bool) -> web.StreamResponse:
    """Answer a request with what the first available model generates.

    Errors before a stream's headers are sent are raised; later ones end the stream with an error
    event.
    """
    events = EventStream(request, request.app[SERVICES].spec.stall_timeout_s) if stream else None
    reply = begin(request, plan, events)
    if events is not None:
        return await _answer_stream(request, reply, events)
    return await _answer_complete(request, reply)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request: its form, its generation, and who observes it."""

    opening: AbstractAsyncContextManager[Source]
    form: AnswerFormat
    identity: Identity
    job: Job

    async def open(self, until_sent: AsyncExitStack) -> Source:
        """Enter the generation on ``until_sent`` and return it, once it is accepted. Raises the
        error of its refusal, or REQUEST_CANCELLED."""
        opened = until_sent.enter_async_context(self.opening)
        source = await self.job.live.interruptible(opened)
        self.job.began(source)
        return source

    def writer(self) -> EventWriter:
        """Return the writer of the answer's stream. Only an open generation has one: before, it is
        not known which model answers."""
        return self.form.writer(self.identity, self.job.beginning)

    async def next_batch(self, source: Source, wait_s: float) -> Batch:
        """Return what ``source`` has ready within ``wait_s``. Raises if the generation is lost, or
        REQUEST_CANCELLED."""
        batch = await self.job.live.interruptible(source.next_batch(wait_s))
        self.job.observe(batch)
        return batch


def begin(request: web.Request, plan: Plan, events: EventStream | None) -> Reply:
    """Return what makes an answer. ``events`` is its stream."""
    services, model = request.app[SERVICES], plan.models[0]
    version = services.spec.version
    identity = Identity(
        f"{plan.id_prefix}{secrets.token_hex(12)}",
        int(time.time()),
        model.model_id,
        fingerprint(version, model.model_id, model.source),
    )
    live = LiveRequest(
        identity.completion_id,
        request[CONTEXT],
        plan.kind,
        api_of(request),
        request.remote,
        model.model_id,
        events is not None,
    )
    request[LIVE_REQUEST] = live
    live.is_captured = request.app[CAPTURES].keep(live.id, request)

    def knows_id() -> bool:
        # The id is in the headers of a stream, and in the answer that detaches a job.
        return live.detached or (events is not None and events.is_open)

    def choose(chosen: ModelView) -> None:
        # Nothing of the answer was sent before.
        live.model_id = identity.model_id = chosen.model_id
        identity.fingerprint = fingerprint(version, chosen.model_id, chosen.source)

    form = plan.form
    job = Job(services.live, services.jobs, live, identity, form, knows_id, plan.stored)
    follow_outcome(request, job.outcome)
    opening = first_opened(plan.models, lambda one: plan.generate(one, live.waits), choose)
    return Reply(opening, form, identity, job)


async def _answer_complete(request: web.Request, reply: Reply) -> web.Response:
    """Wait for all output of a generation and return it.

    Raises if the generation is refused or lost, and SYNC_TIMEOUT if it takes longer than a client
    may wait: the job continues then. A client that leaves before that ends it.
    """
    services, context, job = request.app[SERVICES], request[CONTEXT], reply.job
    task = asyncio.create_task(gather(reply), name=f"job {job.live.id}")
    left_s = context.started_at_s + services.spec.sync_timeout_s - time.monotonic()
    # Another lmx, which forwards the request, knows how long its client waits.
    no_limit = context.background or context.forwarded is not None
    wait_s = None if no_limit else max(0.0, left_s)
    try:
        await asyncio.wait({task}, timeout=wait_s)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # It was lost at the same moment; nobody can be notified.
        raise
    note_ignored(request, job.beginning.ignored)
    if task.done():
        try:
            return json_text(task.result())
        finally:
            del task  # It holds its error, whose traceback leads here.
    detach(request, job, task)
    raise GenerationError(
        ErrorCode.SYNC_TIMEOUT,
        f"The answer takes longer than {services.spec.sync_timeout_s:g} s, as long as a request "
        f"waits (server.sync_timeout_s). The job keeps running: fetch its result with "
        f"GET /v1/jobs/{job.live.id}, or send the request with `stream`.",
    )


def detach(request: web.Request, job: Job, task: asyncio.Task[Any]) -> None:
    """Let the task of a job continue when its request has been answered."""
    services = request.app[SERVICES]
    job.live.detached = True
    counted_tokens = job.outcome().prompt_tokens
    # The other tokens are counted when the job has ended, which may be before the request has.
    follow_outcome(
        request,
        lambda: replace(
            job.outcome(),
            prompt_tokens=counted_tokens,
            cached_tokens=None,
            completion_tokens=None,
        ),
    )
    task.add_done_callback(_end_detached)
    key = job.live.context.grant
    task.add_done_callback(
        lambda _: services.metrics.job_ended(job.outcome(), counted_tokens or 0, key)
    )
    admission = request.get(ADMISSION)
    if admission is not None:
        admission.held = True
        task.add_done_callback(lambda _: admission.end(job.outcome().tokens, time.monotonic()))
    services.traffic.track(task)


async def gather(reply: Reply) -> bytes:
    """Take all output of a generation, and return the whole answer."""

    def collect(deltas: Sequence[Delta]) -> bool:
        reply.job.collect(deltas)
        return True

    with reply.job:
        async with AsyncExitStack() as opened:
            source = await reply.open(opened)
            source.relay_to(collect)
            while (await reply.next_batch(source, MORE_WAIT_S)).finished is None:
                pass
    return reply.job.answer


def _end_detached(task: asyncio.Task[Any]) -> None:
    # The record says what became of it. Any other exception is a bug.
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, LmxError):
        _log.error("job.failed", job=task.get_name(), exc_info=error)


async def _answer_stream(
    request: web.Request, reply: Reply, events: EventStream
) -> web.StreamResponse:
    """Send an answer as it comes.

    Refusals that come within ``QUIET_S`` are raised. If the answer is lost after the headers were
    sent, an error event ends the stream.
    """
    services, job = request.app[SERVICES], reply.job
    ping_interval_s = services.spec.ping_interval_s
    writer: EventWriter | None = None
    try:
        async with AsyncExitStack() as until_sent:
            until_sent.enter_context(job)
            forwarded = request[CONTEXT].forwarded is not None
            # Another lmx, which forwards the request, sends pings itself. It may ask another
            # machine until it has the first token: nothing is sent before.
            waiting = with_wait_comments(
                events, lambda: services.queues.progress(job.live.model_id), ping_interval_s
            )
            async with nullcontext() if forwarded else waiting:
                source = await reply.open(until_sent)
            note_ignored(request, job.beginning.ignored)
            writer = reply.writer()
            beginning = writer.first()
            relay = Relay(source, reply, writer)
            if forwarded:
                while not (events_of_first := await relay.next_events(MORE_WAIT_S)):
                    pass
                beginning += events_of_first
            if not events.is_open:
                await events.open()
            if beginning:
                await events.send(beginning)
            source.relay_to(partial(relay.relay, events))
            await events.send_all(relay.next_events, ping_interval_s)
        await events.end()
        return events.response
    except LmxError as error:
        if not events.is_open:
            raise
        # Its traceback leads here: a circle that holds the whole answer.
        lost = error.with_traceback(None)
    except ConnectionError:
        # The client has left, so nobody can be notified.
        raise
    except Exception:
        if not events.is_open:
            raise
        _log.exception("stream.failed")
        lost = internal_error(request[CONTEXT].request_id)
    follow_outcome(request, lambda: replace(job.outcome(), error=lost.code.value))
    if lost.code is not ErrorCode.CLIENT_STALLED:
        end = family_of(request).error_event if writer is None else writer.failed
        await events.send(end(lost, request[CONTEXT].request_id))
        await events.end()
    return events.response


class Relay:
    """Turns a generation's output into the events of its stream.

    Nearly every token takes the short way, :meth:`relay`, which is the hot path: a client that
    keeps up gets it within the call that has read it from the worker.
    """

    def __init__(self, source: Source, reply: Reply, writer: EventWriter) -> None:
        self._source = source
        self._reply = reply
        self._job = reply.job
        self._writer = writer
        self._is_over = False
        self._unwritten: Iterator[bytes] = iter(())
        """Makes the events that are to be sent next."""

    def relay(self, stream: EventStream, deltas: Sequence[Delta]) -> bool:
        """Write the events of ``deltas`` to ``stream`` at once, and return whether that was
        possible."""
        if not stream.keeps_up:
            return False
        self._job.collect(deltas)
        stream.write(self._writer.deltas(deltas))
        return True

    async def next_events(self, wait_s: float) -> bytes | None:
        """Return the events of the output that is ready within ``wait_s``; None after the last
        ones."""
        if events := self._written():
            return events
        if self._is_over:
            return None
        batch = await self._reply.next_batch(self._source, wait_s)
        self._unwritten = self._events_of(batch)
        if batch.finished is not None:
            self._is_over = True
            await yield_to_loop()  # The record of the whole answer has just been made.
        return self._written()

    def _events_of(self, batch: Batch) -> Iterator[bytes]:
        if batch.deltas:
            yield self._writer.deltas(batch.deltas)
        if batch.ended:
            yield from self._writer.ends(batch.ended)
        if batch.finished is not None:
            assert self._job.ending is not None
            yield self._writer.last(self._job.ending)

    def _written(self) -> bytes:
        # The end of an answer with logprobs has megabytes, which are sent before the next are made.
        events = b""
        for some in self._unwritten:
            events += some
            if len(events) >= _LARGE_BYTES:
                break
        return events


@asynccontextmanager
async def with_wait_comments(
    events: EventStream, progress: Callable[[], str | None], ping_interval_s: float
) -> AsyncIterator[None]:
    """Open the stream and write comments while the block waits, for whatever it waits.

    ``progress`` returns the state and progress of a model that is waited for, None while none is.
    The stream is opened after ``QUIET_S``, so that no proxy and no client takes the wait for a dead
    server. News are written when they change; without a change a ping is sent every
    ``ping_interval_s``. After the block nothing is being written, and the stream may be open or
    not. Raises as writing does.
    """
    comments = _WaitComments(events, progress)
    writer = asyncio.create_task(events.send_all(comments.next_comment, ping_interval_s))
    try:
        yield
    except asyncio.CancelledError:
        # The client has left: half a comment does not matter.
        writer.cancel()
        raise
    finally:
        # The writer is not cancelled here, because that could leave half of the headers written.
        comments.over.set()
        try:
            await asyncio.wait({writer})
        finally:
            # The task has ended, unless the client left just now.
            writer.cancel()
        if not writer.cancelled():
            writer.result()


async def relay_parts(
    events: EventStream,
    next_part: Callable[[], Awaitable[_Part | None]],
    rendered: Callable[[_Part], bytes],
    progress: Callable[[], str | None],
    ping_interval_s: float,
) -> None:
    """Send the events of each part of an answer as it comes, until there is none.

    The stream is opened for the first one at the latest, and stays closed if there is none.
    ``progress`` is that of :func:`with_wait_comments`. Raises as writing and ``next_part`` do.
    """
    async with with_wait_comments(events, progress, ping_interval_s):
        first = await next_part()
    if first is None:
        return
    if not events.is_open:
        await events.open()
    if beginning := rendered(first):
        await events.send(beginning)

    async def next_events(wait_s: float) -> bytes | None:
        try:
            async with asyncio.timeout(wait_s):
                part = await next_part()
        except TimeoutError:
            return b""
        return None if part is None else rendered(part)

    await events.send_all(next_events, ping_interval_s)


class _WaitComments:
    """The comments for a client whose request waits, until ``over`` is set."""

    def __init__(self, events: EventStream, progress: Callable[[], str | None]) -> None:
        self.over = asyncio.Event()
        self._events = events
        self._progress = progress
        self._last_text: str | None = None
        self._is_quiet = True

    async def next_comment(self, wait_s: float) -> bytes | None:
        """Return the comment that is due. The first one, or a ping, opens the stream."""
        # Before the stream is open there are no pings that the quiet could hold up.
        if await ends_in_time(
            self.over.wait(), QUIET_S if self._is_quiet else min(INTERVAL_S, wait_s)
        ):
            return None
        self._is_quiet = False
        text = self._progress()
        line = b""
        if text is not None and text != self._last_text:
            line, self._last_text = self._events.family.comment(text), text
        if not self._events.is_open:
            await self._events.open()
            return line or self._events.family.ping
        return line
