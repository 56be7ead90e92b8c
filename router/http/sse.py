"""A server-sent event stream on one HTTP response: headers, writing, pings, stalled readers.

When a ping is due is decided here and nowhere else (:meth:`EventStream.send_all`).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import structlog
from aiohttp import HttpVersion11, web

from lmx.protocol.errors import ErrorCode, GenerationError, RequestError
from lmx.router.event_loop import yield_to_loop
from lmx.router.http import access
from lmx.router.http.endpoint import family_of
from lmx.router.http.outcome import CONTEXT, RECORD, outcome_record
from lmx.router.http.responses import in_pieces, takes_at_once

EVENT_STREAM: Final = web.RequestKey("event_stream", bool)
"""Whether a request is answered by whole events, with one or more of them in each write."""

OPENED: Final = web.RequestKey("opened", web.StreamResponse)
"""The response to a request that is open before anything has begun to answer it."""

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    # nginx and its kin would otherwise collect the stream before they pass it on.
    "X-Accel-Buffering": "no",
}

_log = structlog.get_logger()


class EventStream:
    """Writes whole events. It knows nothing of what is in them; its pings are those of the
    route's API family.

    A write returns once the data is on its way or in the connection's buffer (aiohttp's 64 KiB); a
    reader that has not drained it for ``stall_timeout_s`` is dropped. Only one task may write at a
    time.
    """

    def __init__(
        self, request: web.Request, stall_timeout_s: float, media_type: str | None = None
    ) -> None:
        """With a ``media_type`` the "events" are parts of a file of that type, which may be cut
        anywhere, and are sent by :meth:`send` alone: there are no pings in a file."""
        self.family = family_of(request)
        """The API family of the route: the language of the stream."""
        headers = {**_HEADERS, "Content-Type": media_type or self.family.stream_type}
        # A stream that was opened while other machines were asked continues here.
        self.response = request.get(OPENED) or web.StreamResponse(headers=headers)
        context = request.get(CONTEXT)
        if context is None or context.forwarded is None:
            # An error must end the connection, and a client that does not know so beforehand may
            # send its next request into the closing. It costs a stream one connection on a LAN.
            # A peer knows, and pays for a handshake of TLS besides.
            self.response.force_close()
        self._request = request
        request[EVENT_STREAM] = media_type is None
        self._stall_timeout_s = stall_timeout_s
        self._ping = self.family.ping
        self._transport = request.transport if self.response.prepared else None
        """The connection, once the headers are out."""
        self._is_chunked = request.version >= HttpVersion11
        self._silent_since_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the headers are out: from then on an error can only be an event."""
        return self.response.prepared

    async def open(self) -> None:
        """Send the headers."""
        await self.response.prepare(self._request)
        self._transport = self._request.transport

    @property
    def keeps_up(self) -> bool:
        """Whether the reader has taken all that was written: then :meth:`write` may be called."""
        transport = self._transport
        return (
            transport is not None
            and not transport.get_write_buffer_size()
            and not transport.is_closing()
        )

    def write(self, events: bytes) -> None:
        """Write whole events without waiting; none are no write. Allowed only for a reader that
        keeps up, and while no task writes."""
        if not events or self._transport is None:
            return
        # aiohttp's way, a coroutine and five calls, takes as long as all the rest of a token's way.
        chunk = b"%x\r\n%b\r\n" % (len(events), events) if self._is_chunked else events
        self._transport.write(chunk)
        self._silent_since_s = time.monotonic()

    async def send(self, events: bytes) -> None:
        """Write one or more whole events.

        Raises ``ConnectionError`` when the client has left, CLIENT_STALLED when it takes
        nothing any more; its connection has been dropped then.
        """
        transport = self._request.transport
        if transport is not None and takes_at_once(transport, len(events)):
            # The reader keeps up, so this write can't wait and needs no deadline: a timer for
            # every token was a tenth of the router's work.
            await self.response.write(events)
        else:
            # Between two pieces nobody else may write an event.
            whole = self._request[EVENT_STREAM]
            self._request[EVENT_STREAM] = False
            for number, piece in enumerate(in_pieces(events)):
                if number:
                    await yield_to_loop()
                await self._within_patience(self.response.write(piece))
            self._request[EVENT_STREAM] = whole

    async def send_all(
        self, next_events: Callable[[float], Awaitable[bytes | None]], ping_interval_s: float
    ) -> None:
        """Send what ``next_events`` gives until it gives None, and a ping whenever nothing was sent
        for ``ping_interval_s``; but nothing by itself before the stream is open. What
        ``next_events`` writes by :meth:`write` while it waits counts as sent.

        ``next_events`` is called with the longest time that it may wait, in seconds, and gives
        ``b""`` where there is nothing to send yet; it may well give that sooner. Raises what
        ``next_events`` and :meth:`send` raise.
        """
        self._silent_since_s, wait_s = time.monotonic(), ping_interval_s
        while (events := await next_events(wait_s)) is not None:
            if not events:
                wait_s = self._silent_since_s + ping_interval_s - time.monotonic()
                if wait_s > 0:
                    continue
                if self.is_open:
                    await self.send(self._ping)
            else:
                await self.send(events)
            self._silent_since_s, wait_s = time.monotonic(), ping_interval_s

    async def follow(
        self, next_events: Callable[[float], Awaitable[bytes | None]], ping_interval_s: float
    ) -> None:
        """Send what happens, whoever looks, as :meth:`send_all` does; but only for as long as the
        request's key may see it. An error event says why the stream ends before its end."""
        permit = self._request.get(access.PERMIT)
        if permit is None:
            await self.send_all(next_events, ping_interval_s)
            return
        refusal: RequestError | None = None

        async def permitted(wait_s: float) -> bytes | None:
            nonlocal refusal
            events = await next_events(min(wait_s, access.PERMIT_S))
            refusal = permit.refusal(self._request)
            return events if refusal is None else None

        await self.send_all(permitted, ping_interval_s)
        if refusal is not None:
            _log.info("stream.key_ended", reason=refusal.message)
            await self.send(self.family.error_event(refusal, self._request[CONTEXT].request_id))

    async def send_each(self, source: AsyncIterator[bytes], ping_interval_s: float) -> None:
        """Send what ``source`` yields, as :meth:`follow`. It must yield ``b""`` where it has
        nothing yet, within ``PERMIT_S`` and more often than pings are due."""
        await self.follow(lambda _: anext(source, None), ping_interval_s)

    async def send_and_end(self, source: AsyncIterator[bytes], ping_interval_s: float) -> None:
        """Send all of a stream, from its headers to its end. A client that reads nothing any more
        has been dropped then."""
        await self.open()
        with contextlib.suppress(GenerationError):
            await self.send_each(source, ping_interval_s)
            await self.end()

    async def end(self) -> None:
        """End the response, and with it the connection unless it is a peer's. Raises as
        :meth:`send` does."""
        context = self._request.get(CONTEXT)
        record = b""
        if context is not None and context.forwarded is not None:
            record = RECORD + outcome_record(self._request)
        await self._within_patience(self.response.write_eof(record))

    async def _within_patience(self, write: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await write
        except TimeoutError as error:
            _log.warning("stream.stalled", stall_timeout_s=self._stall_timeout_s)
            if self._request.transport is not None:
                # Not a close, which would wait for the very buffer that nobody reads.
                self._request.transport.abort()
            raise GenerationError(
                ErrorCode.CLIENT_STALLED,
                f"The client took nothing for {self._stall_timeout_s:g} s.",
            ) from error
