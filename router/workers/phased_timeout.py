"""How long a worker is waited for: one limit while a request is in its queue, and another one once
the worker has begun with it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class PhasedTimeout:
    """One request's turn at its worker. A deadline for the work begins when the turn comes: others
    that were served before count against the queue's limit alone."""

    def __init__(self) -> None:
        self.begun_s: float | None = None
        """When the worker began with the request, on the monotonic clock."""
        self._work_s = 0.0
        self._limit: asyncio.Timeout | None = None

    @property
    def begun(self) -> bool:
        """Whether the worker has begun with the request: what ends it may be its doing."""
        return self.begun_s is not None

    def begin(self) -> None:
        """Note that the worker has begun."""
        if self.begun:
            return
        self.begun_s = time.monotonic()
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._work_s)

    @asynccontextmanager
    async def within(self, queue_s: float, work_s: float) -> AsyncIterator[None]:
        """Raise ``TimeoutError`` if the block takes longer than ``queue_s`` until the turn comes,
        or ``work_s`` from then on."""
        self._work_s = work_s
        try:
            async with asyncio.timeout(work_s if self.begun else queue_s) as self._limit:
                yield
        finally:
            self._limit = None
