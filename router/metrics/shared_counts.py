"""Lets the supervisor keep this router's counts, and takes over what other routers have counted."""

import asyncio
import os
import time
from typing import Final

import structlog

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.counts import CountsKept, ReportCounts, Tally, added, greatest
from lmx.router.event_loop import ends_in_time
from lmx.router.http.rate_limits import RateLimiter
from lmx.router.metrics.requests import RequestMetrics
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.queries import ask

_DEADLINE_S: Final = 1.0

_INTERVAL_S: Final = 0.25
"""The pause between two reports, and between what is new and its report. A router that is killed
loses the counts of this time."""

_REST_S: Final = 10.0
"""The longest time without a look at what is new. Whatever is new ends it at once."""

_LAST_TRIES: Final = 3

_FIRST_S: Final = 5.0
"""How long limits and metrics wait for the first reply, which comes in milliseconds, but longer on
a busy machine: without it, metrics fall back."""

_log = structlog.get_logger()


class SharedCounts:
    """Reports this router's counts to the supervisor, and adds those of earlier routers.

    ``since_s`` is the Unix time of lmx's start; until the supervisor has replied, it is that of
    this router's start. Used from one event loop only.
    """

    def __init__(
        self, supervisor: SupervisorLink, metrics: RequestMetrics, limiter: RateLimiter
    ) -> None:
        self.since_s = time.time()
        self._supervisor = supervisor
        self._metrics = metrics
        self._limiter = limiter
        self._began_s = time.monotonic()
        self._settled = asyncio.Event()
        self._fresh = True
        self._epoch: str | None = None
        self._revision = 0
        self._ended: tuple[Tally, ...] = ()
        self._earlier: tuple[Tally, ...] = ()
        self._reported = -1
        self._others_run = False
        self._news = asyncio.Event()
        metrics.on_change = limiter.on_change = supervisor.on_new_epoch = self._news.set

    async def settled(self) -> None:
        """Wait until the counts of earlier routers are known, but no longer than some seconds after
        this router's start."""
        if not self._settled.is_set():
            left_s = max(0.0, self._began_s + _FIRST_S - time.monotonic())
            await ends_in_time(self._settled.wait(), left_s)
            self._settled.set()

    async def run(self) -> None:
        """Report until cancelled: changes soon, and everything to each new supervisor. It sleeps
        while there is nothing to report."""
        while True:
            # Nothing may be awaited between these lines: news in between would be overlooked.
            self._news.clear()
            if self._fresh or self._others_run or self._has_news:
                await self.report()
            else:
                await ends_in_time(self._news.wait(), _REST_S)
            await asyncio.sleep(_INTERVAL_S)

    async def report_last(self) -> None:
        """Report everything before the router ends: nobody else knows it, and the supervisor may be
        another one than the last report went to, which shows only with its answer to a beat.
        A supervisor on a busy machine may need longer than one deadline."""
        for _ in range(_LAST_TRIES):
            if await self.report(everything=True) or not self._supervisor.alive:
                return

    async def report(self, *, everything: bool = False) -> bool:
        """Report the counts to the supervisor, and return whether it has taken them. Counts that it
        does not take now are reported next time. ``everything`` repeats what it may know."""
        epoch, changes = self._supervisor.epoch, self._changes
        known = epoch == self._epoch and not everything
        report = ReportCounts(
            os.getpid(),
            self._metrics.tallies(),
            tuple(self._limiter.usage(time.monotonic()).values()),
            fresh=self._fresh,
            seen=self._revision if known else 0,
            ended=() if known else self._ended,
            since_s=None if self._fresh else self.since_s,
        )
        try:
            reply = await ask(self._supervisor, report, CountsKept, _DEADLINE_S)
        except LmxError as error:
            _log.debug("counts.write_failed", reason=error.message)
            return False
        self._epoch, self._reported = epoch, changes
        self._apply(reply)
        return True

    @property
    def _has_news(self) -> bool:
        """Whether this supervisor lacks something: a new one lacks everything."""
        return self._changes != self._reported or self._epoch != self._supervisor.epoch

    @property
    def _changes(self) -> int:
        return self._metrics.changes + self._limiter.changes

    def _apply(self, reply: CountsKept) -> None:
        now_s = time.monotonic()
        self._limiter.note_elsewhere({one.asker: one for one in reply.elsewhere}, now_s)
        if self._fresh:
            self._limiter.inherit(reply.inherited, now_s)
        # A supervisor that has replaced another one may reply before its epoch is known here: what
        # has not been reported to it yet is kept.
        self.since_s = reply.since_s if self._fresh else min(self.since_s, reply.since_s)
        self._revision = reply.revision
        if reply.ended is not None:
            self._ended = greatest(self._ended, reply.ended)
        self._others_run = reply.others_run
        # No count falls back, whatever a new supervisor does not know yet.
        earlier = greatest(self._earlier, added(self._ended, reply.others))
        if earlier != self._earlier:
            self._earlier = earlier
            self._metrics.begin_with(earlier)
        self._fresh = False
        self._settled.set()
