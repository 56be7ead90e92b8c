"""Answers to what is not HTTP, in the API's form: it never becomes a request of the app.

aiohttp answers such bytes itself, below every middleware, as plain text with its own name and
version. Its ``RequestHandler.handle_error`` is the one place where it does.
"""

from __future__ import annotations

import re
from typing import Final

import orjson
import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.ids import new_request_id
from lmx.router.errors import http_error

_QUOTED: Final = re.compile(r":?\s*(?<!\w)b?['\"]|:\s*\n")

_log = structlog.get_logger()


def answer_malformed_requests() -> None:
    """From now on, for the whole process, malformed HTTP gets an API error. Idempotent."""
    web.RequestHandler.handle_error = _handle_error  # type: ignore[assignment,method-assign]


def _handle_error(
    _handler: web.RequestHandler,
    request: web.BaseRequest,
    status: int = 500,
    exc: BaseException | None = None,
    message: str | None = None,
) -> web.StreamResponse:
    if isinstance(exc, ConnectionError):
        raise exc  # The client left while it was written to; aiohttp ends the connection.
    request_id = new_request_id()
    error = _error(status, exc, message, request_id)
    if error.code is ErrorCode.INTERNAL:
        _log.error("http.failed", request_id=request_id, exc_info=exc)
    else:
        _log.info("http.malformed", request_id=request_id, reason=error.message)
    if request.writer.output_size > 0:
        raise ConnectionError("the response has begun; its connection can only be cut")
    form = http_error(error)
    response = web.Response(
        status=form.status,
        body=orjson.dumps(form.body),
        content_type="application/json",
        headers={"Server": "lmx", "X-Request-Id": request_id},
    )
    response.force_close()
    return response


def _error(
    status: int, exc: BaseException | None, message: str | None, request_id: str
) -> LmxError:
    if isinstance(exc, LineTooLong):
        return LmxError(
            ErrorCode.HEADERS_TOO_LARGE,
            "The request line or a header is longer than 8190 bytes: put the data in the body.",
        )
    if 400 <= status < 500:
        # What follows is a piece of the request, which may hold a key.
        reason = " ".join(_QUOTED.split(message or str(exc) or "", maxsplit=1)[0].split())[:200]
        return LmxError(ErrorCode.MALFORMED_REQUEST, f"This is not valid HTTP: {reason}")
    return LmxError(
        ErrorCode.INTERNAL,
        f"An internal error occurred. The log has the details under request id {request_id}.",
    )
