"""How many connections are held at a time, so that there is always a file descriptor left.

Without one, accepting fails over and over, and zmq ends the whole process. aiohttp itself closes
connections that sent no whole headers, or are idle, ``keepalive_timeout`` after they began or
were last answered; bytes that trickle in don't put that off.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Final

import orjson
import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.router.errors import http_error

_KEPT_BACK: Final = 384
"""Descriptors for all else: sockets to the workers, files, and the connections that are refused,
of which 128 are accepted before the first is closed."""

_log = structlog.get_logger()


def most_connections(open_files: int) -> int:
    """Return how many connections a process may hold that may open so many files."""
    return max(open_files - _KEPT_BACK, open_files // 4)


def open_files_limit() -> int:
    """Return how many files this process may open; very many where there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


class ConnectionLimit:
    """Gives each new connection its protocol: the server's, or beyond ``most`` one that answers
    429 and closes it."""

    def __init__(self, server: web.Server, most: int) -> None:
        self._server = server
        self._most = most
        self._refusing = False

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol for one more connection."""
        full = len(self._server.connections) >= self._most
        if full and not self._refusing:
            # Once, not for each of them.
            _log.warning("http.connections_refused", most=self._most)
        self._refusing = full
        return _Refusal(self._most) if full else self._server()


class _Refusal(asyncio.Protocol):
    def __init__(self, most: int) -> None:
        self._most = most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        form = http_error(
            UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"lmx holds {self._most} connections, as many as it may: close some that are idle, "
                "or raise the limit of open files and start it again.",
                retry_after_s=5.0,
            )
        )
        body = orjson.dumps(form.body)
        transport.write(
            f"HTTP/1.1 {form.status} Too Many Requests\r\nServer: lmx\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"Retry-After: {form.retry_after}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        transport.close()
