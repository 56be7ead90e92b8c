"""What every request gets: an id, a look at the names it comes with, an answer in the API's form
whatever happens, a log line."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import Final

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.protocol.wire.endpoints import accept_request_id
from lmx.router.http.access import check_access
from lmx.router.http.allowed_hosts import HostCheck
from lmx.router.http.cors import ORIGIN, Cors, is_preflight
from lmx.router.http.endpoint import Access, endpoint_of
from lmx.router.http.errors import http_error
from lmx.router.http.rate_limits import ADMISSION
from lmx.router.http.request_record import CLIENT_LEFT, RECORD, Record, Traffic
from lmx.router.http.responses import json_text
from lmx.router.jobs.farewell import Farewell
from lmx.router.services import SERVICES, Services

REQUEST_ID_HEADER: Final = "X-Request-Id"
JOB_ID_HEADER: Final = "X-Job-Id"

_CLIENT_LEFT_STATUS: Final = 499
"""For the log alone, nobody is there to see it; nginx's number for the case."""

_log = structlog.get_logger()


def make_middleware(
    traffic: Traffic, max_requests: int, hosts: HostCheck, cors: Cors, farewell: Farewell
) -> Middleware:
    """Return the one middleware: request id, who may ask by name and by web page, errors, refusal
    while ending and of more than ``max_requests`` at a time, access log."""

    @web.middleware
    async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
        record = Record(accept_request_id(request.headers.get(REQUEST_ID_HEADER)), time.monotonic())
        request[RECORD] = record
        status = _CLIENT_LEFT_STATUS
        farewell.begin(request)
        with structlog.contextvars.bound_contextvars(request_id=record.request_id):
            try:
                # A request that is refused at the end is not counted: it would hold up the end.
                endpoint = endpoint_of(request)
                quiet = endpoint is not None and endpoint.quiet
                # Operators must get through while the server is at its limit.
                admin = endpoint is not None and endpoint.access is Access.ADMIN
                # Before all else: a stranger's page learns nothing, and a preflight has no key.
                stranger = _stranger(request, hosts, cors)
                if stranger is not None:
                    response = _refuse(record, stranger)
                elif ORIGIN in request and is_preflight(request):
                    response = cors.preflight(request)
                elif traffic.closed:
                    response = _refuse(record, _SHUTTING_DOWN)
                elif traffic.under_way >= max_requests and not quiet and not admin:
                    response = _refuse(record, _too_many(max_requests))
                else:
                    # Polls of the health are no requests that anybody served.
                    with nullcontext() if quiet else traffic.count():
                        response = await _answer(request, handler, record)
                status = response.status
                return response
            except asyncio.CancelledError:
                record.error = record.error or CLIENT_LEFT
                raise
            finally:
                farewell.end(request)
                _log_request(request, record, status)
                if not is_preflight(request):
                    metrics = request.app[SERVICES].metrics
                    metrics.request_ended(record, endpoint_of(request), status)

    return serve


def error_response(error: LmxError, record: Record, *, operator: bool = False) -> web.Response:
    """Return an error as an HTTP response, and note it for the log; ``operator``: of a route for
    operators."""
    record.error = error.code.value
    form = http_error(error, operator=operator)
    if error.code is ErrorCode.SYNC_TIMEOUT:
        form.body["error"]["job_id"] = record.job_id
    response = json_text(orjson.dumps(form.body), form.status)
    if form.retry_after is not None:
        response.headers["Retry-After"] = form.retry_after
    if form.not_again:
        # What OpenAI's own server says, and its client libraries obey.
        response.headers["X-Should-Retry"] = "false"
    return response


def _stranger(request: web.Request, hosts: HostCheck, cors: Cors) -> RequestError | None:
    try:
        cors.check(request, hosts.check(request))
    except RequestError as error:
        return error
    return None


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request id on every response, streams included, before its headers go out."""
    record = request.get(RECORD)
    if record is not None:
        response.headers[REQUEST_ID_HEADER] = record.request_id
        if record.job_id is not None:
            response.headers[JOB_ID_HEADER] = record.job_id
            record.job_told = True
    admission = request.get(ADMISSION)
    if admission is not None:
        response.headers.update(admission.headers(time.monotonic()))
    # aiohttp would name itself and Python with their versions.
    response.headers["Server"] = "lmx"


async def _answer(request: web.Request, handler: Handler, record: Record) -> web.StreamResponse:
    endpoint = endpoint_of(request)
    try:
        if endpoint is None:
            return await handler(request)
        services = request.app[SERVICES]
        record.owner = check_access(request, endpoint.access, services.spec)
        record.asker = record.owner or request.remote or ""
        record.key = services.limiter.name_of(record.owner)
        if not endpoint.is_inference:
            return await handler(request)
        return await _within_limits(request, handler, record, services)
    except LmxError as error:
        access = None if endpoint is None else endpoint.access
        response = error_response(error, record, operator=access is Access.ADMIN)
        if response.status == 401 and access is Access.INFERENCE:
            # The admin key is none of HTTP's own ways to prove who asks.
            response.headers["WWW-Authenticate"] = "Bearer"
        return response
    except web.HTTPException as error:
        return _from_aiohttp(request, error, record)
    except ConnectionError:
        # The client left while it was being written to; aiohttp ends the connection.
        record.error = record.error or CLIENT_LEFT
        raise
    except Exception:
        _log.exception("http.failed", method=request.method, path=request.path)
        return error_response(
            LmxError(
                ErrorCode.INTERNAL,
                "An internal error occurred. The log has the details under request id "
                f"{record.request_id}.",
            ),
            record,
        )


async def _within_limits(
    request: web.Request, handler: Handler, record: Record, services: Services
) -> web.StreamResponse:
    admission = services.limiter.open(record.asker, time.monotonic())
    if admission is None:
        return await handler(request)
    request[ADMISSION] = admission
    await services.counts.settled()
    admission.begin(time.monotonic())
    try:
        return await handler(request)
    finally:
        if not admission.held:
            admission.end(record.tokens, time.monotonic())


def _from_aiohttp(
    request: web.Request, error: web.HTTPException, record: Record
) -> web.StreamResponse:
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = error.headers["Allow"]
            response = error_response(
                RequestError(
                    ErrorCode.METHOD_NOT_ALLOWED,
                    f"{request.method} is not allowed on {request.path[:200]}; use {allowed}.",
                ),
                record,
            )
            response.headers["Allow"] = allowed
            return response
        case web.HTTPNotFound():
            return error_response(
                RequestError(
                    ErrorCode.NOT_FOUND,
                    f"There is no {request.method} {request.path[:200]}. "
                    "The API is below /v1, for example POST /v1/chat/completions; /docs in a "
                    "browser shows all of it.",
                ),
                record,
            )
        case _:
            # Nothing in lmx raises another one, and the router of aiohttp has only these two.
            raise error


_SHUTTING_DOWN: Final = UnavailableError(
    ErrorCode.SHUTTING_DOWN, "lmx is shutting down: try again later.", retry_after_s=5.0
)


def _too_many(max_requests: int) -> UnavailableError:
    return UnavailableError(
        ErrorCode.QUEUE_FULL,
        f"{max_requests} requests are under way, as many as lmx takes at a time "
        "(server.max_requests): try again in a few seconds.",
        retry_after_s=2.0,
    )


def _refuse(record: Record, error: LmxError) -> web.StreamResponse:
    # Its body is not read, so that nothing can follow on the connection.
    response = error_response(error, record)
    response.force_close()
    return response


def _log_request(request: web.Request, record: Record, status: int) -> None:
    endpoint = endpoint_of(request)
    quiet = is_preflight(request) if endpoint is None else endpoint.quiet
    write = _log.debug if quiet else _log.info
    write(
        "http.request",
        method=request.method,
        path=request.path,
        status=status,
        duration_s=round(time.monotonic() - record.started_at, 4),
        **record.outcome(),
    )
