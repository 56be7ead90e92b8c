"""A stream of what comes now and then: comments meanwhile, and an end with the router's."""

from __future__ import annotations

import time

from lmx.router.http.sse import EventStream
from lmx.router.services import Services


class LiveStream:
    """Knows since when a stream is silent. Opens and ends no stream."""

    def __init__(self, services: Services, stream: EventStream) -> None:
        self._services = services
        self._stream = stream
        self._said_at_s = time.monotonic()

    async def send(self, data: bytes) -> None:
        """Send what has come. Raises what :meth:`EventStream.send` raises."""
        await self._stream.send(data)
        self._said_at_s = time.monotonic()

    async def goes_on(self) -> bool:
        """Return whether there is more to wait for: False when the router stops. Sends a comment
        when it is time for one; call it more often than that."""
        if self._services.traffic.closed:
            return False
        if time.monotonic() - self._said_at_s >= self._services.spec.ping_interval_s:
            await self._stream.ping()
            self._said_at_s = time.monotonic()
        return True
