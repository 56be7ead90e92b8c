"""What every request gets: an id, the checks of its host, origin and key, an answer in its API's
form whatever happens, a log line, and a place in the metrics."""

import asyncio
import re
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError, RequestError, UnavailableError
from lmx.protocol.messages.keys import ApiKey, KeyScope
from lmx.protocol.wire.endpoints import accept_request_id
from lmx.router.http.access import PERMIT, Permit, check_access
from lmx.router.http.allowed_hosts import HostCheck
from lmx.router.http.api_family import ErrorContext
from lmx.router.http.cors import ORIGIN, Cors, is_preflight
from lmx.router.http.endpoint import ANTHROPIC_VERSION, Access, endpoint_of, error_family_of
from lmx.router.http.errors import http_error, internal_error
from lmx.router.http.outcome import (
    CLIENT_LEFT,
    CONTEXT,
    IGNORED,
    MACHINE,
    OUTCOME_HEADER,
    Forwarded,
    RequestContext,
    last_outcome,
    log_fields,
    outcome_of,
    outcome_record,
    set_outcome,
)
from lmx.router.http.rate_limits import ADMISSION
from lmx.router.http.responses import add_vary, json_text
from lmx.router.inference.batches.attempts import PASSING
from lmx.router.jobs.live import LIVE_REQUEST
from lmx.router.peers.forwarded import FORWARDED_HEADER, read_headers
from lmx.router.peers.machine import PEER_STATE_PATH
from lmx.router.record_file import READER
from lmx.router.server.sending import send_response
from lmx.router.services import Services
from lmx.router.supervisor.directory import refuse_drained
from lmx.router.usage.budgets import DayBudgets

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from lmx.router.tracing.tracer import Tracer

REQUEST_ID_HEADER: Final = "X-Request-Id"
IGNORED_HEADER: Final = "X-Lmx-Ignored"
JOB_ID_HEADER: Final = "X-Job-Id"
MACHINE_HEADER: Final = "X-Lmx-Machine"

_CLIENT_LEFT_STATUS: Final = 499
"""The status in the log only, since no client is left to see it. The number is nginx's."""

_BUDGETED: Final = web.RequestKey("budgeted", ApiKey)
"""The key of a request that counts as under way for its budget."""

_KEY: Final = re.compile(r"\bsk-[\w-]{12,}")

_log = structlog.get_logger()


class _Answer(NamedTuple):
    """A response, and the code of its error if it is one."""

    response: web.StreamResponse
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestServer:
    """Serves each request: it checks who sends it, lets the handler answer, writes the answer, and
    records what became of it."""

    services: Services
    hosts: HostCheck
    cors: Cors
    budgets: DayBudgets
    local: bool
    """Whether only this machine can send requests."""
    tracer: "Tracer | None" = None
    """None: nothing is traced."""

    @property
    def middleware(self) -> Middleware:
        """The middleware through which an application serves its requests."""

        @web.middleware
        async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._serve(request, handler)

        return serve

    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id = accept_request_id(request.headers.get(REQUEST_ID_HEADER))
        request[CONTEXT] = RequestContext(request_id, time.monotonic())
        status, error = _CLIENT_LEFT_STATUS, None
        if request.transport is not None:
            self.services.traffic.used_connections.add(request.transport)
        self.services.hang_notice.begin(request)
        span, bound = None, {"request_id": request_id}
        if self.tracer is not None and (span := self._span(request, self.tracer)) is not None:
            bound["trace_id"] = self.tracer.trace_id(span)
        with structlog.contextvars.bound_contextvars(**bound):
            try:
                refused = self._refusal(request)
                if refused is not None:
                    # It is not counted: a request that is refused at the router's end would delay
                    # that end.
                    response, error = refused
                    status = response.status
                    return response
                endpoint = endpoint_of(request)
                quiet = endpoint is not None and endpoint.quiet
                # Polls of the health don't count as served requests.
                with nullcontext() if quiet else self.services.traffic.count():
                    response, error = await self._answer(request, handler)
                    status = response.status
                    try:
                        await send_response(request, response, self.services.spec.stall_timeout_s)
                    except GenerationError as stalled:
                        error = stalled.code.value
                    return response
            except (asyncio.CancelledError, ConnectionError):
                # The client left; aiohttp ends the connection.
                error, status = error or CLIENT_LEFT, _CLIENT_LEFT_STATUS
                raise
            finally:
                self.services.hang_notice.end(request)
                try:
                    self._record(request, status, error, span)
                except Exception:  # The answer was sent: it is right whatever is counted.
                    _log.exception("http.record_failed")
                if _BUDGETED in request:
                    self.budgets.end(request[_BUDGETED])

    async def serve_in_process(self, request: web.Request) -> None:
        """Serve a request in process that has a connection, as any other."""
        response = await self._serve(request, request.match_info.handler)
        if not response.prepared:
            # A refusal, which aiohttp sends where there is a connection.
            await send_response(request, response, self.services.spec.stall_timeout_s)

    async def answer_in_background(
        self, request: web.Request, key: ApiKey | None
    ) -> tuple[web.StreamResponse, ErrorCode | None]:
        """Return the answer to a request in process that nobody waits for, and the code of its
        error if it is one. It counts to its key's usage and to the budget of a day, and not to the
        limits of a minute. One with an error that passes counts to nothing, for it is to be sent
        again."""
        endpoint = endpoint_of(request)
        assert endpoint is not None
        owner = None if key is None else key.owner
        context = request[CONTEXT] = RequestContext(
            accept_request_id(None),
            time.monotonic(),
            owner=owner,
            requester=owner or "",
            key=None if key is None else key.name or None,
            apart=self.services.keys.ring.several and not self.services.spec.share_prefix_cache,
            grant=key,
            background=True,
            show_reread=self.services.spec.show_rereads,
        )
        budgeted = None
        with (
            structlog.contextvars.bound_contextvars(request_id=context.request_id),
            self.services.traffic.count(),
        ):
            try:
                error: LmxError | None = None
                try:
                    if key is not None and key.budget is not None:
                        await self.budgets.begin(key)
                        budgeted = key
                    response = await endpoint.handler(request)
                except LmxError as failure:
                    failure.__traceback__ = None  # It leads here: a circle that holds the request.
                    error = failure
                except Exception:
                    _log.exception("http.failed", method=request.method, path=_shown_path(request))
                    error = internal_error(context.request_id)
                if error is not None:
                    response, _ = _error_answer(request, error)
                    if error.code in PASSING:
                        return response, error.code
                code = None if error is None else error.code
                self._record(request, response.status, code, None)
                return response, code
            finally:
                if budgeted is not None:
                    self.budgets.end(budgeted)

    def record_in_background(
        self, request: web.Request, status: int, error: ErrorCode | None
    ) -> None:
        """Record a request of :meth:`answer_in_background` that is not sent again after all."""
        with structlog.contextvars.bound_contextvars(request_id=request[CONTEXT].request_id):
            self._record(request, status, error, None)

    def _refusal(self, request: web.Request) -> _Answer | None:
        """Return the answer to a request that reaches no handler; None if it may pass."""
        endpoint = endpoint_of(request)
        # This comes first: a stranger's page learns nothing, and a preflight has no key.
        try:
            asks_worker = endpoint is not None and endpoint.asks_worker
            self.cors.check(request, self.hosts.check(request), asks_worker=asks_worker)
        except RequestError as stranger:
            return _refuse(request, stranger)
        if ORIGIN in request and is_preflight(request):
            return _Answer(self.cors.preflight(request))
        # Peers learn that it takes no more: what it computes for them meanwhile is theirs.
        if self.services.traffic.closed and request.path != PEER_STATE_PATH:
            return _refuse(request, _SHUTTING_DOWN)
        quiet = endpoint is not None and endpoint.quiet
        # Operators must get through while the server is at its limit.
        admin = endpoint is not None and endpoint.access.for_operators
        limit = self.services.spec.max_requests
        if self.services.traffic.under_way >= limit and not quiet and not admin:
            return _refuse(request, _too_many(limit))
        return None

    async def _answer(self, request: web.Request, handler: Handler) -> _Answer:
        endpoint = endpoint_of(request)
        try:
            if endpoint is None:
                return _Answer(await handler(request))
            ring = self.services.keys.ring
            shows_prompts = endpoint.shows_rereads and self.services.spec.show_rereads
            access = Access.ADMIN if shows_prompts else endpoint.access
            key = check_access(
                request,
                access,
                endpoint.key_family,
                ring,
                local=self.local,
                forwarded=endpoint.is_forwarded,
            )
            request[CONTEXT] = replace(
                request[CONTEXT],
                owner=None if key is None else key.owner,
                requester=(request.remote or "") if key is None else key.owner,
                key=None if key is None else key.name or None,
                priority=None if key is None else key.priority,
                apart=ring.several and not self.services.spec.share_prefix_cache,
                grant=key,
                show_reread=self.services.spec.show_rereads,
                forwarded=_forwarded(request, key),
            )
            # Requests for models have limits of their own. A connection's requests share a context.
            READER.set("" if endpoint.is_inference else request[CONTEXT].requester)
            if not endpoint.is_inference:
                if endpoint.streams:
                    request[PERMIT] = Permit(
                        request, access, endpoint.key_family, self.services.keys, local=self.local
                    )
                return _Answer(await handler(request))
            return _Answer(await self._within_limits(request, handler))
        except LmxError as error:
            error.__traceback__ = None  # It leads here: a circle that holds the request's messages.
            answer = _error_answer(request, error)
            inference = endpoint is not None and endpoint.access is Access.INFERENCE
            if answer.response.status == 401 and inference:
                # The admin key is not one of HTTP's own ways of authentication.
                answer.response.headers["WWW-Authenticate"] = "Bearer"
            return answer
        except web.HTTPException as error:
            return _from_aiohttp(request, error)
        except ConnectionError:
            raise
        except Exception:
            _log.exception("http.failed", method=request.method, path=_shown_path(request))
            if request.writer.output_size:
                # A part of an answer was sent: another answer in its middle would be nonsense.
                set_outcome(request, replace(outcome_of(request), error=ErrorCode.INTERNAL.value))
                raise ConnectionError("the answer is cut off") from None
            return _error_answer(request, internal_error(request[CONTEXT].request_id))

    async def _within_limits(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        key = request[CONTEXT].grant
        if key is not None and key.budget is not None:
            await self.budgets.begin(key)
            request[_BUDGETED] = key
        handler = self._on_the_best_machine(request, handler)
        admission = self.services.limiter.open(request[CONTEXT].requester, time.monotonic())
        if admission is None:
            return await handler(request)
        request[ADMISSION] = admission
        await self.services.counts.settled()
        admission.begin(time.monotonic())
        try:
            return await handler(request)
        finally:
            if not admission.held:
                admission.end(outcome_of(request).tokens, time.monotonic())

    def _on_the_best_machine(self, request: web.Request, handler: Handler) -> Handler:
        """Return what answers a request: its handler, unless other machines may answer it."""
        federation, endpoint = self.services.peers.federation, endpoint_of(request)
        directory = self.services.peers.directory
        if (
            federation is None
            or directory is None
            or endpoint is None
            or not (endpoint.is_forwarded or endpoint.here_only)
        ):
            refuse_drained(directory)
            return handler
        directory = directory.limited_to(request[CONTEXT].grant)
        return partial(federation.serve, endpoint=endpoint, handler=handler, directory=directory)

    def _span(self, request: web.Request, tracer: "Tracer") -> "Span | None":
        endpoint = endpoint_of(request)
        if endpoint is None or not endpoint.is_inference:
            return None
        return tracer.begin(request.headers)

    def _record(
        self, request: web.Request, status: int, error: str | None, span: "Span | None"
    ) -> None:
        """Write the log line of a request that has ended, count it, and end its ``span``. No other
        place does. ``error`` is the code of an error that the middleware knows; a handler's own
        error wins over it."""
        context, outcome, endpoint = request[CONTEXT], last_outcome(request), endpoint_of(request)
        if outcome.error is None and error is not None:
            outcome = replace(outcome, error=error)
        duration_s = time.monotonic() - context.started_at_s
        preflight = is_preflight(request)
        quiet = preflight if endpoint is None else endpoint.quiet
        write = _log.debug if quiet else _log.info
        write(
            "http.request",
            method=request.method,
            path=_shown_path(request),
            status=status,
            duration_s=round(duration_s, 4),
            **log_fields(context, outcome),
        )
        if not preflight:
            self.services.metrics.request_ended(
                outcome,
                endpoint,
                status,
                duration_s,
                context.grant,
                background=context.background,
            )
        live = request.pop(LIVE_REQUEST, None)
        if span is not None and self.tracer is not None and endpoint is not None:
            self.tracer.end(span, endpoint, context, live, outcome, status)


REQUEST_SERVER: Final = web.AppKey("request_server", RequestServer)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request id on every response, streams included, before its headers go out."""
    context = request.get(CONTEXT)
    if context is not None:
        response.headers[REQUEST_ID_HEADER] = context.request_id
        response.headers[error_family_of(request).request_id_header] = context.request_id
        job_id = outcome_of(request).job_id
        if job_id is not None:
            response.headers[JOB_ID_HEADER] = job_id
    if ignored := request.get(IGNORED):
        response.headers[IGNORED_HEADER] = ", ".join(ignored)
    if (machine := request.get(MACHINE)) is not None:
        response.headers[MACHINE_HEADER] = machine
    if context is not None and context.forwarded is not None and isinstance(response, web.Response):
        response.headers[OUTCOME_HEADER] = outcome_record(request).decode()
    admission = request.get(ADMISSION)
    if admission is not None:
        response.headers.update(admission.headers(time.monotonic()))
    # aiohttp would name itself and Python with their versions.
    response.headers["Server"] = "lmx"


def _forwarded(request: web.Request, key: ApiKey | None) -> Forwarded | None:
    """Return what a peer says of a request that it forwards. Nobody else is believed."""
    machine = request.headers.get(FORWARDED_HEADER)
    if machine is None or key is None or KeyScope.PEER not in key.scopes:
        return None
    return read_headers(request, machine)


def _error_answer(request: web.Request, error: LmxError) -> _Answer:
    endpoint = endpoint_of(request)
    operator = endpoint is not None and endpoint.access.for_operators
    shown = http_error(error, operator=operator)
    context = ErrorContext(
        operator,
        outcome_of(request).job_id if error.code is ErrorCode.SYNC_TIMEOUT else None,
        request[CONTEXT].request_id,
    )
    body = error_family_of(request).error_body(error, context)
    response = json_text(orjson.dumps(body), shown.status)
    add_vary(response, ANTHROPIC_VERSION)
    if shown.retry_after is not None:
        response.headers["Retry-After"] = shown.retry_after
    if shown.not_again:
        # OpenAI's own server sends this header, and its client libraries obey it.
        response.headers["X-Should-Retry"] = "false"
    return _Answer(response, error.code.value)


def _shown_path(request: web.Request) -> str:
    # A key may be in it by mistake, at the end of a base URL for example.
    return _KEY.sub("sk-...", request.path)


def _from_aiohttp(request: web.Request, error: web.HTTPException) -> _Answer:
    path = _shown_path(request)[:200]
    match error:
        case web.HTTPMethodNotAllowed():
            allowed = error.headers["Allow"]
            answer = _error_answer(
                request,
                RequestError(
                    ErrorCode.METHOD_NOT_ALLOWED,
                    f"{request.method} is not allowed on {path}; use {allowed}.",
                ),
            )
            answer.response.headers["Allow"] = allowed
            return answer
        case web.HTTPNotFound():
            return _error_answer(
                request,
                RequestError(
                    ErrorCode.NOT_FOUND,
                    f"There is no {request.method} {path}. "
                    "The API is below /v1, for example POST /v1/chat/completions; /docs in a "
                    "browser shows all of it.",
                ),
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


def _refuse(request: web.Request, error: LmxError) -> _Answer:
    # The request's body is not read, so nothing can follow on the connection.
    refused = _error_answer(request, error)
    refused.response.force_close()
    return refused
