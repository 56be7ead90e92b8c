"""The supervisor's events for everybody who listens, also those of supervisors before. One task
asks for them while anybody does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from lmx.protocol.errors import LmxError
from lmx.protocol.host.lasting import keep_up
from lmx.protocol.messages.control import Event, EventList, GetEvents
from lmx.router.event_loop import ends_in_time
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.queries import ask

_POLL_S: Final = 0.5
_DEADLINE_S: Final = 2.0
_KEPT: Final = 2000
"""As many events as a supervisor keeps. A listener that falls further behind misses the oldest."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event with its place in the order of all events."""

    number: int
    """Counts the events of this feed, from 1."""
    epoch: str
    """The supervisor's epoch, in which the event's own number counts."""
    event: Event


class Listener:
    """One reader's place in the feed."""

    def __init__(self, feed: EventFeed) -> None:
        self._feed = feed
        self._seen = 0

    async def next_batch(self, wait_s: float) -> Sequence[FeedEvent]:
        """Return what has happened since the last call; the first call returns all that is known.
        Returns nothing if nothing happens within ``wait_s``."""
        if not self._feed.has_after(self._seen):
            await ends_in_time(self._feed.changed(), wait_s)
        found = self._feed.after(self._seen)
        if found:
            self._seen = found[-1].number
        return found


class EventFeed:
    """Knows the latest events while somebody listens, and nothing while nobody does.

    Used from one event loop only. Asks every half second, however many listen.
    """

    def __init__(self, supervisor: SupervisorLink) -> None:
        self._supervisor = supervisor
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._forget()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Listener]:
        """Listen for the duration of the block. The first listener waits for the supervisor's
        answer. Raises the error with which the supervisor refuses, or SUPERVISOR_UNAVAILABLE."""
        self._listeners += 1
        try:
            if not self._asked:
                await self._ask()
            if self._task is None:
                self._task = keep_up(self._poll, "the feed of events")
            yield Listener(self)
        finally:
            self._listeners -= 1
            if not self._listeners:
                if self._task is not None:
                    self._task.cancel()
                    self._task = None
                self._forget()

    def has_after(self, number: int) -> bool:
        """Return whether there are newer events than ``number``."""
        return self._number > number

    def after(self, number: int) -> Sequence[FeedEvent]:
        """Return the events after ``number``, oldest first."""
        return [found for found in self._kept if found.number > number]

    async def changed(self) -> None:
        """Wait until something happens."""
        await self._news.wait()

    def _forget(self) -> None:
        self._kept: deque[FeedEvent] = deque(maxlen=_KEPT)
        self._number = 0
        self._epoch: str | None = None
        self._seq = 0
        self._asked = False
        self._news = asyncio.Event()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                await self._ask()
            except LmxError:
                # The supervisor is being restarted, or is busy: the listeners stay, and get the
                # events later.
                continue

    async def _ask(self) -> None:
        known, seq = self._epoch, self._seq
        question = GetEvents(seq, _KEPT, earlier=not self._asked)
        answer = await ask(self._supervisor, question, EventList, _DEADLINE_S)
        if known not in (None, answer.epoch):
            # Another supervisor counts from 1 again: the question was about the other's numbers.
            question = GetEvents(0, _KEPT, earlier=True)
            answer = await ask(self._supervisor, question, EventList, _DEADLINE_S)
        # Two listeners may have asked at once.
        if self._epoch == known != answer.epoch:
            epochs = [life.epoch for life in answer.earlier]
            already = {one.epoch for one in self._kept} - {known}
            for life in answer.earlier[epochs.index(known) if known in epochs else 0 :]:
                for event in life.events:
                    if life.epoch not in already and (life.epoch != known or event.seq > seq):
                        self._add(life.epoch, event)
            self._seq = 0
        self._asked, self._epoch = True, answer.epoch
        for event in answer.events:
            if event.seq > self._seq:
                self._add(answer.epoch, event)
        if answer.last_seq > self._seq:
            self._seq = answer.last_seq
            news, self._news = self._news, asyncio.Event()
            news.set()

    def _add(self, epoch: str, event: Event) -> None:
        self._number += 1
        self._kept.append(FeedEvent(self._number, epoch, event))
