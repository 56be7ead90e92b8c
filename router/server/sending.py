"""Writes whole answers, so that a request counts as under way until its last byte has been sent.

aiohttp writes an answer after every middleware has returned: a router that ends would believe that
the request has ended, and cut off a large answer that its client still reads.
"""

import asyncio
from collections.abc import Callable

import structlog
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from lmx.protocol.errors import ErrorCode, GenerationError
from lmx.router.http.responses import takes_at_once

_log = structlog.get_logger()


async def send_response(
    request: web.Request, response: web.StreamResponse, stall_timeout_s: float
) -> None:
    """Write ``response``, and return when the kernel has all of it. Streams are skipped, because
    their handlers have written them.

    Raises ``ConnectionError`` if the client has left, and CLIENT_STALLED if it has taken nothing
    for ``stall_timeout_s``; its connection has been dropped then.
    """
    transport = request.transport
    if not isinstance(response, web.Response) or transport is None:
        return  # Where the client has left, aiohttp finds out again, and ends the connection.
    writer = await response.prepare(request)
    body = response.body
    if not isinstance(body, Payload) and takes_at_once(transport, len(body or b"")):
        await response.write_eof()
        if not transport.get_write_buffer_size():
            return
    # From now on a write, and a drain, waits until the buffer is empty.
    transport.set_write_buffer_limits(high=0)
    assert writer is not None
    await _while_it_is_read(
        asyncio.ensure_future(_finish(response, writer)),
        lambda: writer.output_size - transport.get_write_buffer_size(),
        transport,
        stall_timeout_s,
    )
    transport.set_write_buffer_limits()


async def _finish(response: web.Response, writer: AbstractStreamWriter) -> None:
    await response.write_eof()
    await writer.drain()


async def _while_it_is_read(
    writing: asyncio.Task[None],
    taken_bytes: Callable[[], int],
    transport: asyncio.Transport,
    stall_timeout_s: float,
) -> None:
    """``taken_bytes()`` returns how much of the answer the kernel has taken. What is left in the
    buffer does not say it: it is filled with the next piece whenever it is empty."""
    try:
        await asyncio.sleep(0)  # It has begun after this.
        now_bytes = taken_bytes()
        while not (await asyncio.wait({writing}, timeout=stall_timeout_s))[0]:
            before_bytes, now_bytes = now_bytes, taken_bytes()
            if now_bytes <= before_bytes:
                _log.warning("answer.stalled", stall_timeout_s=stall_timeout_s)
                # This is no close, which would wait for the very buffer that nobody reads.
                transport.abort()
                raise GenerationError(
                    ErrorCode.CLIENT_STALLED, f"The client took nothing for {stall_timeout_s:g} s."
                )
        writing.result()
    finally:
        writing.cancel()
        if writing.done() and not writing.cancelled():
            writing.exception()  # Of a client that has left, and whose handler is cancelled.
