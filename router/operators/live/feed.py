"""What all readers of GET /admin/live get: one task asks and encodes for everybody, and works only
while somebody reads.

There is no queue for each reader. The latest pieces are kept once, and a reader has its place among
them; one that has fallen behind all of them begins again with the whole values.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

import orjson
import structlog

from lmx.protocol.host.lasting import begin, keep_up
from lmx.router.event_loop import ends_in_time

_log = structlog.get_logger()

_INTERVAL_S: Final = 1.0
"""The time between two looks at the topics."""

_KEPT: Final = 64
"""So many pieces, a few a second, may a reader be behind before it gets the whole values again."""

_KEPT_BYTES: Final = 16 * 1024**2
"""The most that these pieces have together: thousands of requests at work take 3 MB a second."""

_WHOLE_S: Final = 1.0
"""How long the whole values are given to others who begin."""


class Topic(ABC):
    """One kind of messages in the stream. An object lives for as long as somebody reads."""

    @abstractmethod
    async def look(self) -> bytes:
        """Return what is new since the last call, as whole events of :func:`event_text`; nothing if
        nothing is. It must not raise because the supervisor does not answer."""

    @abstractmethod
    def whole(self) -> bytes:
        """Return all that a new reader must know, up to the last :meth:`look`."""

    async def close(self) -> None:  # noqa: B027 -- most topics hold nothing
        """Give up what it holds: nobody reads any more."""


def event_text(name: str, value: Any) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(value))


class Reader:
    """One reader's place in the feed."""

    def __init__(self, feed: "LiveFeed") -> None:
        self._feed = feed
        self._seen: int | None = None

    async def next_events(self, wait_s: float) -> bytes:
        """Return what has come since the last call; the first call returns the whole values, as
        soon as each topic was looked at, and so does one that comes too late. Returns what there is
        after ``wait_s``, which may be nothing."""
        if self._seen is None:
            await ends_in_time(self._feed.looked.wait(), wait_s)
        elif self._seen == self._feed.number:
            await ends_in_time(self._feed.changed(), wait_s)
        events, self._seen = self._feed.after(self._seen), self._feed.number
        return events


class LiveFeed:
    """Owns the topics while somebody reads. ``make_topics`` returns new ones for the first reader.
    Used from one event loop only."""

    def __init__(self, make_topics: Callable[[], Sequence[Topic]]) -> None:
        self._make_topics = make_topics
        self._readers = 0
        self._topics: Sequence[Topic] = ()
        self._failed: list[Topic] = []
        """The topics whose last look failed: that is logged once."""
        self._task: asyncio.Task[None] | None = None
        self._kept: deque[bytes] = deque(maxlen=_KEPT)
        self._whole: tuple[int, float, bytes] | None = None
        """The number and the time at which the whole values were made, and they."""
        self._news = asyncio.Event()
        self.looked = asyncio.Event()
        """Set once each topic was looked at, while somebody reads."""
        self.number = 0
        """How many pieces there have been."""

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Read for the duration of the block."""
        self._readers += 1
        try:
            if self._task is None:
                self._topics = self._make_topics()
                self._task = keep_up(self._produce, "the console's stream")
            yield Reader(self)
        finally:
            self._readers -= 1
            if not self._readers and self._task is not None:
                self._task.cancel()
                begin(_closed(self._topics), "the end of the console's stream")
                self._task, self._topics, self._whole = None, (), None
                self._failed.clear()
                self._kept.clear()
                self.looked.clear()

    def after(self, number: int | None) -> bytes:
        """Return the pieces after ``number``; the whole values for None, and if not all of those
        pieces are kept."""
        missed = None if number is None else self.number - number
        if missed is not None and missed <= len(self._kept):
            return b"".join(list(self._kept)[len(self._kept) - missed :])
        # Fifty readers may begin at once: it is made once for them. It says when it was made, so
        # it is not kept while nothing changes.
        now_s = time.monotonic()
        if (
            self._whole is None
            or self._whole[0] != self.number
            or now_s - self._whole[1] > _WHOLE_S
        ):
            whole = b"".join(topic.whole() for topic in self._topics)
            self._whole = (self.number, now_s, whole)
        return self._whole[2]

    async def changed(self) -> None:
        """Wait for the next piece."""
        await self._news.wait()

    async def _produce(self) -> None:
        while True:
            began_s, before = time.monotonic(), self.number
            for topic in self._topics:
                # Published at once: between its look and this no reader may ask for whole values.
                if events := await self._look(topic):
                    self._publish(events)
            self.looked.set()
            if self.number > before:
                # Once for all topics, so that a reader has one write a second.
                news, self._news = self._news, asyncio.Event()
                news.set()
            await asyncio.sleep(max(0.0, began_s + _INTERVAL_S - time.monotonic()))

    async def _look(self, topic: Topic) -> bytes:
        """Return what is new of a topic; nothing if it fails, which holds up no other one."""
        try:
            events = await topic.look()
        except Exception:
            if topic not in self._failed:
                _log.exception("live.topic_failed", topic=type(topic).__name__)
                self._failed.append(topic)
            return b""
        if topic in self._failed:
            self._failed.remove(topic)
        return events

    def _publish(self, events: bytes) -> None:
        self._kept.append(events)
        while sum(map(len, self._kept)) > _KEPT_BYTES:
            self._kept.popleft()
        self.number += 1


async def _closed(topics: Sequence[Topic]) -> None:
    async with AsyncExitStack() as closing:  # All of them, also where one fails.
        for topic in topics:
            closing.push_async_callback(topic.close)
