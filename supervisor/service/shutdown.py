"""How a supervisor goes down: the router first, so that streams can finish; workers after it; then
nothing is left. :mod:`lmx.supervisor.config.shutdown_timeout` says how long that takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from lmx.supervisor.config.shutdown_timeout import ROUTER_FAREWELL_S
from lmx.supervisor.core.core import Core
from lmx.supervisor.router.guard import RouterGuard

log = structlog.get_logger()


class Shutdown:
    """Needs to be told of each exit; the deadlines are the ticks', and end in SIGKILL.
    ``close_fetches`` ends every fetch and download."""

    def __init__(
        self, core: Core, guard: RouterGuard, close_fetches: Callable[[], Awaitable[None]]
    ) -> None:
        self._core = core
        self._guard = guard
        self._close_fetches = close_fetches
        self._wake = asyncio.Event()
        self._at_once = False

    def hurry(self) -> None:
        """Let nobody finish any more."""
        self._at_once = True
        self._wake.set()

    def exited(self) -> None:
        """A process was seen to end."""
        self._wake.set()

    async def run(self, grace_s: float) -> None:
        """Return when no process is left; requests have ``grace_s`` to finish."""
        self._core.begin_stopping()
        _try(lambda: self._core.flush(time.monotonic()))
        # The router ends its streams itself within its grace; the rest is for its exit.
        _try(lambda: self._guard.stop(time.monotonic(), grace_s + ROUTER_FAREWELL_S))
        await self._until(lambda: not self._guard.running or self._at_once)
        # Nobody is left to answer: who comes now is refused at once, not left in the backlog.
        _try(self._guard.close)
        self._core.stop_workers(time.monotonic(), at_once=self._at_once)
        if self._at_once:
            self._guard.stop(time.monotonic(), 0.0)
        try:
            await self._close_fetches()
        except Exception:
            log.exception(
                "fetches.not_closed"
            )  # the processes that are left are ended all the same
        hurried = self._at_once
        await self._until(lambda: not self._processes_left() or self._at_once != hurried)
        if self._processes_left():
            self._core.stop_workers(time.monotonic(), at_once=True)
            await self._until(lambda: not self._processes_left())
        log.info("supervisor.stopped")

    def _processes_left(self) -> bool:
        return bool(self._core.workers) or self._guard.running

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for what follows from an exit or from being asked to hurry."""
        while not condition():
            self._wake.clear()
            await self._wake.wait()


def _try(step: Callable[[], None]) -> None:
    """Go down all the same if a step trips over a bug: nothing may be left running."""
    try:
        step()
    except Exception:
        log.exception("shutdown.step_failed")
