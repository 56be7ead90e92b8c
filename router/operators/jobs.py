"""The routes about jobs and about requests under way.

GET /v1/jobs, GET and DELETE /v1/jobs/{id}: a client's generations, under way and ended. GET
/admin/requests, POST /admin/requests/{id}/cancel and GET /admin/requests/{id}/capture: the requests
of all clients, for operators.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.router.http.bodies.capture import CAPTURES
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.responses import Answer, ListPage, json_page, json_value
from lmx.router.jobs.live import LiveRequest, LiveState, RequestShown, cancel_job
from lmx.router.jobs.records import JobRow, JobState, Wanted
from lmx.router.rendering.envelope import GenerationUsage, Timings
from lmx.router.schema.requests.operators import JobsQuery, RequestsQuery
from lmx.router.schema.validation import invalid, validated
from lmx.router.services import SERVICES, Services

_JOB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JobError(Answer):
    """Why a job did not end well: the error as its client got it."""

    message: str
    """What went wrong and what to do next, for people."""
    type: str
    param: str | None
    """The path of the field at fault, where one is."""
    code: str
    """What went wrong, for programs."""


class Job(Answer):
    """One generation. Times are seconds since 1970."""

    id: str
    object: Literal["job"]
    kind: Literal["chat", "completion"]
    model: str
    state: JobState
    stream: bool
    created: float
    """When the request came."""
    started: float | None
    """When it began to run. Null before."""
    ended: float | None
    """When it ended. Null before."""
    queue_position: int | None
    """Its place in line, for the model or in its worker, while it is in one."""
    tokens: int
    """The tokens that were made until now."""
    usage: GenerationUsage | None
    """How many tokens it took, when it has ended well."""
    timings: Timings | None
    """Where the time went, when it has ended well."""
    error: JobError | None
    """Why it did not end well."""
    http_status: int | None
    """The status of the answer; 499 where its client had left."""
    request_id: str


class JobWithResult(Job):
    """A job with what it made."""

    result: dict[str, Any] | None
    """The answer as it is without `stream`. Of a job that did not end well it is what there was,
    without usage and timings."""


class JobList(ListPage):
    """A page of jobs, the newest first."""

    data: list[Job]


class CancelledJob(JobWithResult):
    """A job that was under way."""

    deleted: Literal[False]


class DeletedJob(Answer):
    """A job that had ended, and is gone."""

    id: str
    object: Literal["job"]
    deleted: Literal[True]


class RequestList(Answer):
    """Requests of this router."""

    object: Literal["list"]
    data: list[RequestShown]
    """Those under way, the oldest first."""
    ended: list[RequestShown]
    """The last ones that have ended, the newest first, as many as were requested."""


class CapturedRequest(Answer):
    """What a request asked, without keys and files."""

    id: str
    object: Literal["capture"]
    method: Literal["POST"]
    path: str
    body: dict[str, Any] | None
    """The body. In the place of a file's content is its type and size, as `[image/png, 20480
    characters]`. Null: it is too large to be captured."""


async def list_jobs(request: web.Request) -> web.Response:
    """List the jobs of the caller's key without their results, the newest first."""
    services = request.app[SERVICES]
    query = validated(JobsQuery, dict(request.query))
    after = query.after
    page = None
    if after is None or _JOB_ID.fullmatch(after):
        page = await services.jobs.listed(
            Wanted(
                request[CONTEXT].owner,
                query.state,
                _model_id(services, query.model),
                query.kind,
                query.limit,
                after,
            )
        )
    if page is None:
        raise invalid(
            "after",
            "is not the id of a job: it may have been removed meanwhile. List the jobs again "
            "from the first.",
        )
    rows, has_more = page
    return json_page([(row.id, _job(services, row)) for row in rows], has_more=has_more)


async def get_job(request: web.Request) -> web.Response:
    """Return one job with its result, or with what it has made until now."""
    services = request.app[SERVICES]
    row = await _row(request)
    return json_value({**_job(services, row), "result": _raw(row.result)})


async def delete_job(request: web.Request) -> web.Response:
    """Cancel a job that is under way; remove the record of one that has ended."""
    services = request.app[SERVICES]
    row = await _row(request)
    if row.ended_s is not None:
        await services.jobs.delete(row.id)
        return json_value({"id": row.id, "object": "job", "deleted": True})
    await cancel_job(services.live, services.jobs, row)
    # The job has ended by now: it was cancelled, or it ended just before.
    row = await _row(request)
    return json_value({**_job(services, row), "deleted": False, "result": _raw(row.result)})


async def _row(request: web.Request) -> JobRow:
    """Return the record that a request names. Raises NOT_FOUND, also for a record of another
    key."""
    job_id = request.match_info["id"]
    row = None
    if _JOB_ID.fullmatch(job_id):
        row = await request.app[SERVICES].jobs.get(job_id, request[CONTEXT].owner)
    if row is None:
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"There is no job {job_id[:100]!r}: its record may have been removed by age or "
            "number. GET /v1/jobs lists those that there are.",
            param="id",
        )
    return row


def _model_id(services: Services, name: str | None) -> str | None:
    directory = services.supervisor.latest
    if name is None or directory is None:
        return name
    try:
        return directory.resolve(name).model_id
    except LmxError:
        return name  # Of a model that is not there any more.


def _job(services: Services, row: JobRow) -> Job:
    """Return a job as clients see it. If it is under way here, this is its present state."""
    state, position, tokens = row.state, row.queue_position, row.tokens
    live = services.live.get(row.id) if row.ended_s is None else None
    if live is not None:
        where, position = services.live.place(live)
        tokens = live.tokens
        if live.error is not None:
            state, position = JobState.CANCELLED, None
        else:
            state = JobState.RUNNING if where is LiveState.RUNNING else JobState.QUEUED
    return {
        "id": row.id,
        "object": "job",
        "kind": cast("Literal['chat', 'completion']", row.kind),
        "model": row.model if live is None else live.model_id,
        "state": cast("JobState", state),
        "stream": bool(row.stream),
        "created": round(row.created_s, 3),
        "started": _rounded(row.started_s),
        "ended": _rounded(row.ended_s),
        "queue_position": position,
        "tokens": tokens,
        "usage": _raw(row.usage),
        "timings": _raw(row.timings),
        "error": _raw(row.error),
        "http_status": row.http_status,
        "request_id": row.request_id,
    }


def _rounded(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s, 3)


def _raw(json: bytes | None) -> Any:
    return None if json is None else orjson.Fragment(json)


async def list_requests(request: web.Request) -> web.Response:
    """List every request that this router has under way, of all keys, and some of the last ones
    that have ended. Those that were refused before their model was known are in the log alone."""
    query = validated(RequestsQuery, dict(request.query))
    live = request.app[SERVICES].live
    return _listed(request, live.all, live.last_ended(query.ended))


async def get_capture(request: web.Request) -> web.Response:
    """Return the body of a request, which is kept while `server.capture_requests` says so."""
    captures, name = request.app[CAPTURES], request.match_info["id"]
    captured = captures.get(name)
    if captured is None:
        why = (
            f"Only the last {captures.most} are kept, of those that have reached a model."
            if captures.most
            else "Requests are not captured: `server.capture_requests` switches it on."
        )
        raise RequestError(
            ErrorCode.NOT_FOUND, f"The request {name[:100]!r} is not kept. {why}", param="id"
        )
    return json_value(
        {
            "id": name,
            "object": "capture",
            "method": "POST",
            "path": captured.path,
            "body": _raw(captured.body),
        }
    )


async def cancel_request(request: web.Request) -> web.Response:
    """Cancel a request by its id, which is also its job's id; or all that have a request id."""
    name = request.match_info["id"]
    found = request.app[SERVICES].live.named(name)
    if not found:
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"No request {name[:100]!r} is under way. GET /admin/requests lists those that are.",
            param="id",
        )
    for live in found:
        live.cancel()
    return _listed(request, found)


def _listed(
    request: web.Request, found: tuple[LiveRequest, ...], ended: Sequence[RequestShown] = ()
) -> web.Response:
    shown = request.app[SERVICES].live.shown
    return json_value({"object": "list", "data": [shown(live) for live in found], "ended": ended})
