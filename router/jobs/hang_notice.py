"""Notifies clients when the event loop hangs and the process is about to be ended.

The supervisor announces this with SIGUSR2. A handler in Python could not run then, because such
handlers run where the loop hangs. So a thread waits for the signal instead, and if the loop does
nothing any more, it writes to the sockets past the loop. If the interpreter itself is blocked,
nothing can be sent.
"""

import asyncio
import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

import orjson
import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode, GenerationError
from lmx.protocol.host.lasting import keep_up_in_thread
from lmx.router.http.api_family import ErrorContext
from lmx.router.http.cors import ORIGIN
from lmx.router.http.endpoint import error_family_of, family_of
from lmx.router.http.errors import http_error
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.sse import EVENT_STREAM

HANG_SIGNAL: Final = signal.SIGUSR2

_HUNG_STATUS: Final = 1

_ALIVE_S: Final = 0.5
"""A loop that does not answer for this long hangs: the supervisor has waited for longer already."""

_log = structlog.get_logger()


def hung_error() -> GenerationError:
    """Return the error that clients get."""
    return GenerationError(
        ErrorCode.ROUTER_HUNG,
        "lmx's router did not react any more and is replaced by another one: send the request "
        "again.",
    )


class HangNotice:
    """The requests under way. Only the event loop adds and removes them; the thread reads them."""

    def __init__(self) -> None:
        self._open: dict[int, web.Request] = {}

    def begin(self, request: web.Request) -> None:
        """Add a request that is under way."""
        self._open[id(request)] = request

    def end(self, request: web.Request) -> None:
        """Remove a request that has ended."""
        self._open.pop(id(request), None)

    @property
    def connections(self) -> set[asyncio.Transport | None]:
        """The connections of these requests, and None for each that has none."""
        return {request.transport for request in self._open.values()}

    def send(self) -> int:
        """Send the error to every client whose connection can take one: nothing was sent yet, or
        only whole events. Return how many were sent. The loop must not write any more."""
        return sum(map(_notify, list(self._open.values())))


def block_signal() -> None:
    """Keep the signal for the thread. Must be called before any thread starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {HANG_SIGNAL})


def watch_in_thread(
    notice: HangNotice, loop: asyncio.AbstractEventLoop, end: Callable[[], object]
) -> None:
    """Wait for the signal in a thread. If the loop runs, ``end`` is called in it. If it hangs, the
    thread sends the errors, writes the stacks of all threads into the log, and ends the process."""

    def watch() -> None:
        signal.sigwait({HANG_SIGNAL})
        alive = threading.Event()
        loop.call_soon_threadsafe(alive.set)
        if alive.wait(_ALIVE_S):
            loop.call_soon_threadsafe(end)
            return
        notified = notice.send()
        _log.error("router.unresponsive", notified=notified)
        faulthandler.dump_traceback(all_threads=True)
        # Nothing else would end: the loop hangs in the main thread.
        os._exit(_HUNG_STATUS)

    keep_up_in_thread(watch, "the hang notice").start()


def _notify(request: web.Request) -> bool:
    transport = request.transport
    if transport is None or transport.is_closing() or transport.get_write_buffer_size():
        return False  # Gone, or it has not taken what came before.
    connection = transport.get_extra_info("socket")
    if connection is None:
        return False  # A message of a WebSocket, which is cut off.
    if transport.get_extra_info("ssl_object") is not None:
        return False  # What is written here would not be encrypted.
    begun = request.writer.output_size > 0
    if begun and not request.get(EVENT_STREAM):
        return False
    text = _error_event(request) if begun else _error_response(request)
    try:
        os.write(connection.fileno(), text)
    except OSError:
        return False
    return True


def _error_event(request: web.Request) -> bytes:
    event = family_of(request).error_event(hung_error(), _request_id(request))
    if request.version < (1, 1):
        return event
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)


def _request_id(request: web.Request) -> str | None:
    context = request.get(CONTEXT)
    return None if context is None else context.request_id


def _error_response(request: web.Request) -> bytes:
    form = http_error(hung_error())
    request_id = _request_id(request)
    context = ErrorContext(request_id=request_id)
    body = orjson.dumps(error_family_of(request).error_body(hung_error(), context))
    headers = [
        f"HTTP/1.1 {form.status} Service Unavailable",
        "Server: lmx",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Retry-After: {form.retry_after}",
        "Connection: close",
    ]
    if request_id is not None:
        headers.append(f"X-Request-Id: {request_id}")
    if (origin := request.get(ORIGIN)) is not None:
        headers.append(f"Access-Control-Allow-Origin: {origin}")
    return "\r\n".join([*headers, "", ""]).encode() + body
