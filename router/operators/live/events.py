"""The topic ``event``: what happens, as GET /admin/events has it."""

from collections import deque
from contextlib import AsyncExitStack
from typing import Final

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.control import event_object
from lmx.router.operators.live.feed import Topic, event_text
from lmx.router.supervisor.event_feed import EventFeed, Listener

_LATEST: Final = 200
"""So many events does a new reader get first."""


class EventTopic(Topic):
    """Listens to the feed of events as one of its listeners."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed
        self._listening = AsyncExitStack()
        self._listener: Listener | None = None
        self._latest: deque[bytes] = deque(maxlen=_LATEST)

    async def look(self) -> bytes:
        if self._listener is None:
            try:
                listening = self._feed.listen()
                self._listener = await self._listening.enter_async_context(listening)
            except LmxError:
                return b""  # The topic of the status says so.
        found = (await self._listener.next_batch(0))[-_LATEST:]
        texts = [event_text("event", event_object(each.epoch, each.event)) for each in found]
        self._latest += texts
        return b"".join(texts)

    def whole(self) -> bytes:
        return b"".join(self._latest)

    async def close(self) -> None:
        await self._listening.aclose()
