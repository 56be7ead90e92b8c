"""Answers that are made whether or not their clients stay: fetched later, or followed as streams
that their clients may leave and come back to."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

from aiohttp import web

from lmx.protocol.errors import LmxError, UnavailableError
from lmx.router.http.endpoint import family_of
from lmx.router.http.errors import internal_error
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.sse import EventStream
from lmx.router.inference.answering import MORE_WAIT_S, Plan, Relay, Reply, begin, detach, gather
from lmx.router.jobs.event_logs import EventLog, EventLogs
from lmx.router.jobs.job import Job
from lmx.router.rendering.answer_format import EventWriter
from lmx.router.services import SERVICES


async def begin_answer(request: web.Request, plan: Plan, *, stream: bool) -> Job:
    """Begin an answer in the background, and return its job. With ``stream`` its events have a
    log."""
    logs = request.app[SERVICES].event_logs
    reply = begin(request, plan, None)
    job = reply.job
    work: Coroutine[Any, Any, Any]
    if stream:
        job.live.stream = True
        logs.begin(job.live.id)
        work = _log_events(reply, logs, family_of(request).error_event)
    else:
        work = gather(reply)
    task = asyncio.create_task(work, name=f"job {job.live.id}")
    detach(request, job, task)
    # The task begins now, and its job has a record. A read comes behind its writing: a client that
    # gets the id finds the job even if the router ends now.
    await asyncio.sleep(0)
    services = request.app[SERVICES]
    with suppress(UnavailableError):
        await services.jobs.get(job.live.id, request[CONTEXT].owner)
    return job


async def follow_events(request: web.Request, log: EventLog, place: int) -> web.StreamResponse:
    """Send the events of a log from a place on, until there are no more."""
    spec = request.app[SERVICES].spec
    events = EventStream(request, spec.stall_timeout_s)
    await events.open()

    async def next_events(wait_s: float) -> bytes | None:
        nonlocal place
        found = await log.read(place, wait_s)
        if found is None:
            return None
        place += len(found)
        return b"".join(found)

    await events.follow(next_events, spec.ping_interval_s)
    await events.end()
    return events.response


async def _log_events(
    reply: Reply, logs: EventLogs, error_event: Callable[[LmxError, str | None], bytes]
) -> None:
    log = logs.get(reply.job.live.id)
    assert log is not None
    writer: EventWriter | None = None
    lost: LmxError | None = None
    try:
        async with AsyncExitStack() as opened:
            opened.enter_context(reply.job)
            source = await reply.open(opened)
            writer = reply.writer()
            log.add(writer.first())
            relay = Relay(source, reply, writer)
            while (events := await relay.next_events(MORE_WAIT_S)) is not None:
                log.add(events)
    except LmxError as error:
        lost = error
        raise
    except Exception:
        lost = internal_error(reply.job.live.context.request_id)
        raise
    finally:
        if lost is not None:
            end = error_event if writer is None else writer.failed
            log.add(end(lost, reply.job.live.context.request_id))
        logs.end(reply.job.live.id)
