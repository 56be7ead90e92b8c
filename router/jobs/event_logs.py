"""The events of streams that their clients may leave and come back to."""

import asyncio
from typing import Final

_END: Final = b"\n\n"
_MOST_KEPT_BYTES: Final = 32 * 1024 * 1024
"""The most that the logs of streams that are over may have together."""

_MOST_KEPT: Final = 256


class EventLog:
    """The events of one stream, from the first one on. One task writes it, and any number read it,
    on one event loop. It has no limit of its own: it holds what the job of the stream holds too."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.is_over = False
        self._events: list[bytes] = []
        self._news = asyncio.Event()

    def add(self, events: bytes) -> None:
        """Add some whole events."""
        if not events:
            return
        self._events += [event + _END for event in events.removesuffix(_END).split(_END)]
        self.size_bytes += len(events)
        self._notify()

    def end(self) -> None:
        """Mark the end: no more events come."""
        self.is_over = True
        self._notify()

    async def read(self, place: int, wait_s: float) -> list[bytes] | None:
        """Return the events from a place on; none if no one comes within ``wait_s``. None: there
        are none, and no more will come."""
        if place >= len(self._events) and not self.is_over:
            try:
                async with asyncio.timeout(wait_s):
                    while place >= len(self._events) and not self.is_over:
                        await self._news.wait()
            except TimeoutError:
                return []
        if place >= len(self._events):
            return None
        return self._events[place:]

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class EventLogs:
    """The logs of streams under way, and of the last ones that are over."""

    def __init__(self) -> None:
        self._logs: dict[str, EventLog] = {}

    def get(self, job_id: str) -> EventLog | None:
        """Return the log of a job; None if it has none, or none any more."""
        return self._logs.get(job_id)

    def begin(self, job_id: str) -> EventLog:
        """Return a new log for a job."""
        made = self._logs[job_id] = EventLog()
        return made

    def end(self, job_id: str) -> None:
        """Mark the end of a job's stream. The oldest logs are dropped where there are too many."""
        self._logs[job_id].end()
        over = [(one, log) for one, log in self._logs.items() if log.is_over]
        excess_bytes = sum(log.size_bytes for _, log in over) - _MOST_KEPT_BYTES
        excess = len(over) - _MOST_KEPT
        for one, log in over:
            if excess_bytes <= 0 and excess <= 0:
                break
            del self._logs[one]
            excess_bytes -= log.size_bytes
            excess -= 1
