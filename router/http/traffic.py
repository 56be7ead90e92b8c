"""Counts the requests that are under way, and decides whether new ones are accepted."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from lmx.router.event_loop import ends_in_time


class Traffic:
    """Counts requests. Only :meth:`close` stops new ones from being accepted, and it can't be
    undone."""

    def __init__(self) -> None:
        self.requests_total = 0
        self.used_connections: WeakSet[asyncio.BaseTransport] = WeakSet()
        """The connections on which a request has come."""
        self.under_way = 0
        """How many requests have begun and not ended."""
        self.closed = False
        """Whether the router is ending and accepts no more requests."""
        self.retiring = False
        """Whether another router takes new connections, so that lasting ones had better end."""
        self._idle = asyncio.Event()
        self._idle.set()

    def close(self) -> None:
        """Accept no more requests; those under way continue."""
        self.closed = self.retiring = True

    @contextmanager
    def count(self) -> Iterator[None]:
        """Count one request for the duration of the block."""
        self.requests_total += 1
        self._begin()
        try:
            yield
        finally:
            self._end()

    def track(self, task: asyncio.Task[Any]) -> None:
        """Count ``task`` as under way until it ends: the work that continues after its request was
        answered. It is not counted as a request of its own."""
        self._begin()
        task.add_done_callback(lambda _: self._end())

    async def idle(self, deadline_s: float | None) -> bool:
        """Wait until nothing is under way; return False if that takes longer than ``deadline_s``
        (None: there is no time limit)."""
        return await ends_in_time(self._idle.wait(), deadline_s)

    def _begin(self) -> None:
        self.under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self.under_way -= 1
        if not self.under_way:
            self._idle.set()
