"""From a generation to an HTTP response, as a stream or whole, for every kind of completion.

A stream's beginning: what a client sees while its request waits for a model.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.protocol.messages.control import ModelView
from lmx.router.http.rate_limits import ADMISSION
from lmx.router.http.request_record import RECORD
from lmx.router.http.responses import json_text
from lmx.router.http.sse import DONE, EventStream
from lmx.router.jobs.job import Job, Source
from lmx.router.rendering.chunks import ChunkWriter, error_event
from lmx.router.rendering.envelope import Identity, fingerprint
from lmx.router.services import SERVICES, Services

QUIET_S: Final = 2.0
"""So long nothing is sent: most waits are over by then, and what fails so soon fails with its
own status, not within a stream."""

INTERVAL_S: Final = 1.0
"""Between two comments at least."""


@asynccontextmanager
async def with_wait_comments(
    events: EventStream, news: Callable[[], str | None], ping_interval_s: float
) -> AsyncIterator[None]:
    """Open the stream and write comments while the block waits for a model.

    ``news`` gives the state and progress of what is waited for, None while nothing is: only
    where there are some is the stream opened. They are written when they change; without
    change a ping goes out each ``ping_interval_s``. After the block nothing is being written,
    and the stream is open or is not. Raises as writing does.
    """
    over = asyncio.Event()
    writer = asyncio.create_task(_tell(events, news, ping_interval_s, over))
    try:
        yield
    except asyncio.CancelledError:
        # The client has left: half a comment does not matter.
        writer.cancel()
        raise
    finally:
        # Not cancelled otherwise, which could leave half of the headers.
        over.set()
        try:
            await asyncio.wait({writer})
        finally:
            # It has ended, unless the client left just now.
            writer.cancel()
        if not writer.cancelled():
            writer.result()


async def _tell(
    events: EventStream,
    news: Callable[[], str | None],
    ping_interval_s: float,
    over: asyncio.Event,
) -> None:
    said = None
    said_at = 0.0
    wait_s = QUIET_S
    while not await _is_set(over, wait_s):
        wait_s = min(INTERVAL_S, ping_interval_s)
        text = news()
        if text is not None and text != said:
            if not events.is_open:
                await events.open()
            await events.comment(text)
            said, said_at = text, time.monotonic()
        elif events.is_open and time.monotonic() - said_at >= ping_interval_s:
            await events.ping()
            said_at = time.monotonic()


async def _is_set(event: asyncio.Event, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


_GATHER_WAIT_S: Final = 60.0
"""How long one wait for more of an answer that does not stream lasts; then the next begins."""

_log = structlog.get_logger()


def is_ovms(request: web.Request) -> bool:
    """Return whether a request came by the path of OpenVINO Model Server, whose rules differ."""
    return request.path.startswith("/v3/")


def new_identity(prefix: str, services: Services, model: ModelView) -> Identity:
    """Return the identity of a new completion; ``prefix`` begins its id."""
    return Identity(
        f"{prefix}-{secrets.token_hex(12)}",
        int(time.time()),
        model.model_id,
        fingerprint(services.spec.version, model.model_id, model.source),
    )


async def answer_whole(
    request: web.Request, opening: AbstractAsyncContextManager[Source], job: Job
) -> web.Response:
    """Wait for all that the generation of ``opening`` makes and return it.

    Raises when it is refused or lost, and SYNC_TIMEOUT when it takes longer than a client is kept
    waiting: the job goes on then. A client that leaves before that ends it.
    """
    services, record = request.app[SERVICES], request[RECORD]
    task = asyncio.create_task(_gather(opening, job), name=f"job {job.live.id}")
    left_s = record.started_at + services.spec.sync_timeout_s - time.monotonic()
    try:
        await asyncio.wait({task}, timeout=max(0.0, left_s))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # It was lost at the same moment; there is nobody to tell.
        raise
    if task.done():
        return json_text(task.result())
    job.live.detached = True
    told_tokens = record.prompt_tokens or 0
    task.add_done_callback(_end_detached)
    task.add_done_callback(lambda _: services.metrics.job_ended(record, told_tokens))
    admission = request.get(ADMISSION)
    if admission is not None:
        admission.held = True
        task.add_done_callback(lambda _: admission.end(record.tokens, time.monotonic()))
    services.traffic.go_on(task)
    raise GenerationError(
        ErrorCode.SYNC_TIMEOUT,
        f"The answer takes longer than {services.spec.sync_timeout_s:g} s, as long as a request "
        f"waits (server.sync_timeout_s). The job keeps running: fetch its result with "
        f"GET /v1/jobs/{job.live.id}, or send the request with `stream`.",
    )


async def _gather(opening: AbstractAsyncContextManager[Source], job: Job) -> bytes:
    with job:
        async with AsyncExitStack() as opened:
            source = await job.begin(opened, opening)
            while (await job.take(source, _GATHER_WAIT_S)).finished is None:
                pass
    return job.answer


def _end_detached(task: asyncio.Task[bytes]) -> None:
    # The record has what became of it. What is no error of a request's is a bug.
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, LmxError):
        _log.error("job.failed", job=task.get_name(), exc_info=error)


async def answer_stream(
    request: web.Request, opening: AbstractAsyncContextManager[Source], job: Job
) -> web.StreamResponse:
    """Send the answer of the generation that ``opening`` begins, as it comes.

    What can be refused at once raises. What is lost after the headers went out, with the answer
    or while a model is waited for, ends the stream with an error event.
    """
    services, record = request.app[SERVICES], request[RECORD]
    ping_interval_s = services.spec.ping_interval_s
    events = EventStream(request, services.spec.stall_timeout_s)
    try:
        async with AsyncExitStack() as until_sent:
            until_sent.enter_context(job)
            async with with_wait_comments(
                events, lambda: services.room.news(job.live.model_id), ping_interval_s
            ):
                source = await job.begin(until_sent, opening)
            if not events.is_open:
                await events.open()
            await _pump(source, job, events, ping_interval_s)
        await events.end()
        return events.response
    except LmxError as error:
        if not events.is_open:
            raise
        lost = error
    except ConnectionError:
        # The client has left: there is nobody to tell.
        raise
    except Exception:
        if not events.is_open:
            raise
        _log.exception("stream.failed")
        lost = LmxError(
            ErrorCode.INTERNAL,
            f"An internal error occurred. The log has the details under {record.request_id}.",
        )
    record.error = lost.code.value
    if lost.code is not ErrorCode.CLIENT_STALLED:
        await events.send(error_event(lost))
        await events.end()
    return events.response


async def _pump(source: Source, job: Job, events: EventStream, ping_interval_s: float) -> None:
    # Not before: which model answers is known by now alone.
    writer = ChunkWriter(job.identity, job.form, job.shape(), job.warnings, source.prompt_tokens)
    if beginning := writer.first(source.prompt_ids):
        await events.send(beginning)
    while True:
        batch = await job.take(source, ping_interval_s)
        data = writer.deltas(batch.deltas) if batch.deltas else b""
        if batch.ended:
            data += writer.ends(batch.ended)
        if batch.finished is not None:
            await events.send(data + writer.last(batch.finished, job.clocked) + DONE)
            return
        if data:
            await events.send(data)
        elif not batch.deltas and not batch.ended:
            await events.ping()
