"""Limits how many connections are open, and answers bytes that are not HTTP.

The limit leaves some file descriptors free: without one, accepting fails over and over, and zmq
ends the whole process. aiohttp itself closes connections that sent no whole headers, or are idle,
``keepalive_timeout`` after they began or were last answered; bytes that trickle in don't put that
off.

Bytes that are not HTTP never become a request of the app. aiohttp answers them itself, below every
middleware, as plain text with its own name and version. Its ``RequestHandler.handle_error`` is the
one place that does; it is replaced here, so that the answer has the API's form.
"""

import asyncio
import re
import termios
import time
from array import array
from collections.abc import Container
from fcntl import ioctl
from typing import Final

import orjson
import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.wire.endpoints import new_request_id
from lmx.router.http.api_family import openai_error
from lmx.router.http.errors import http_error, internal_error
from lmx.router.server.tls import FirstByte, OwnCertificate

_KEPT_BACK: Final = 384
"""Descriptors for everything else: sockets to the workers, files, and refused connections, of which
some 128 are accepted before the first is closed."""

_FIRST_REQUEST_S: Final = 5.0
"""How long a connection may be open without a request while more than half of all are: then
:class:`ConnectionLimit` closes it at its next look, which comes this long after the last one."""

_log = structlog.get_logger()


def most_connections(open_files: int) -> int:
    """Return how many connections a process may have open if it may open ``open_files`` files."""
    return max(open_files - _KEPT_BACK, open_files // 4)


class ConnectionLimit:
    """Gives each new connection its protocol: the server's own, or, beyond ``most`` connections,
    one that answers 429 and closes the connection. TLS shows ``certificate``.

    From half of them on, connections on which no request comes are closed: ``used`` are those on
    which one has come. A client that opens many and says nothing keeps nobody else out.
    """

    def __init__(
        self,
        server: web.Server,
        most: int,
        certificate: OwnCertificate,
        used: Container[asyncio.BaseTransport],
    ) -> None:
        self._server = server
        self._certificate = certificate
        self._most = most
        self._used = used
        self._refusing = False
        self._silent: set[web.RequestHandler] = set()
        """Those on which no request had come at the last look."""
        self._looked_s = 0.0

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol for one more connection."""
        count = len(self._server.connections)
        if count >= self._most / 2:
            self._close_silent(time.monotonic())
        full = count >= self._most
        if full and not self._refusing:
            # This is logged once, and not for each of them.
            _log.warning("http.connections_refused", most=self._most)
        self._refusing = full
        if full:
            return _Refusal(self._most)
        return FirstByte(self._server, self._certificate)

    def _close_silent(self, now_s: float) -> None:
        if now_s - self._looked_s < _FIRST_REQUEST_S:
            return
        silent = {
            one
            for one in self._server.connections
            if one.transport is not None
            and not one.transport.is_closing()
            and one.transport not in self._used
        }
        for one in silent & self._silent:
            one.force_close()
        self._silent, self._looked_s = silent - self._silent, now_s


def has_request_coming(
    connection: web.RequestHandler, used: Container[asyncio.BaseTransport]
) -> bool:
    """Return whether a request is on its way on a connection: its first one, or one that has come
    and is not read. ``used`` are the connections on which one was read."""
    transport = connection.transport
    if transport is None or transport.is_closing():
        return False
    unread_bytes = array("i", [0])
    ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, unread_bytes)
    return transport not in used or unread_bytes[0] > 0


class _Refusal(asyncio.Protocol):
    def __init__(self, most: int) -> None:
        self._most = most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        error = UnavailableError(
            ErrorCode.QUEUE_FULL,
            f"lmx holds {self._most} connections, as many as it may: close some that are idle, "
            "or raise the limit of open files and start it again.",
            retry_after_s=5.0,
        )
        form, body = http_error(error), orjson.dumps(openai_error(error))
        transport.write(
            f"HTTP/1.1 {form.status} Too Many Requests\r\nServer: lmx\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"X-Request-Id: {new_request_id()}\r\n"
            f"Retry-After: {form.retry_after}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        transport.close()


_HEADER: Final = re.compile(r"'(Host|Content-Length|Transfer-Encoding)'")
_QUOTED: Final = re.compile(r":?\s*(?<!\w)b?['\"]|:\s*\n")


def answer_malformed_requests() -> None:
    """Make the whole process answer malformed HTTP with an API error from now on. Idempotent."""
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
        body=orjson.dumps(openai_error(error)),
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
        # The quoted rest is a piece of the request, which may hold a key; a header's name has none.
        text = _HEADER.sub(r"\1", message or str(exc) or "")
        reason = " ".join(_QUOTED.split(text, maxsplit=1)[0].split())[:200]
        return LmxError(ErrorCode.MALFORMED_REQUEST, f"This is not valid HTTP: {reason}")
    return internal_error(request_id)
