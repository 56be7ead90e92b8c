"""How a supervisor shuts down: first the router, so that streams can finish, and then the workers,
until no process is left that can be ended.
:mod:`lmx.supervisor.config.shutdown_timeout` says how long that takes."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from lmx.supervisor.config.shutdown_timeout import ROUTER_EXIT_S
from lmx.supervisor.core.core import Core
from lmx.supervisor.router.guard import RouterGuard

log = structlog.get_logger()

_LOOK_S: Final = 1.0
"""How often to look whether a worker is stuck by now, of which nothing is notified."""


class Shutdown:
    """Shuts everything down. It must be notified of each exit. The deadlines are those of the
    ticks, and end in SIGKILL. ``close_others`` end every fetch and download, and the ranks of
    other machines' models, each whatever becomes of the others."""

    def __init__(
        self,
        core: Core,
        guard: RouterGuard,
        close_others: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    ) -> None:
        self._core = core
        self._guard = guard
        self._close_others = close_others
        self._wake = asyncio.Event()
        self._at_once = False

    def hurry(self) -> None:
        """Give requests no more time to finish."""
        self._at_once = True
        self._wake.set()

    def exited(self) -> None:
        """Take the news that a process has ended."""
        self._wake.set()

    async def run(self, grace_s: float) -> None:
        """Shut down, and return when no process is left but those that not even SIGKILL ends.
        Requests have ``grace_s`` to finish."""
        self._core.begin_stopping()
        _try(lambda: self._core.flush(time.monotonic()))
        # The router ends its streams itself within its grace. The time beyond that is for its exit.
        _try(lambda: self._guard.stop(time.monotonic(), grace_s + ROUTER_EXIT_S))
        await self._until(lambda: not self._guard.running or self._at_once)
        # There is no router any more, so new connections must be refused at once and not wait in
        # the backlog.
        _try(self._guard.close)
        hurried = self._at_once
        self._core.stop_workers(time.monotonic(), at_once=hurried)
        if hurried:
            self._guard.stop(time.monotonic(), 0.0)
        closing = [asyncio.ensure_future(close()) for close in self._close_others]
        await self._until(lambda: not self._processes_left() or self._at_once != hurried)
        if self._processes_left():
            self._core.stop_workers(time.monotonic(), at_once=True)
            await self._until(lambda: not self._processes_left())
        for each in closing:
            try:
                await each
            except Exception:
                log.exception("shutdown.close_failed")
        for worker in self._core.workers:
            log.error("supervisor.leaves_worker", model=worker.model_id, worker_pid=worker.pid)
        log.info("supervisor.stopped")

    def _processes_left(self) -> bool:
        return self._guard.running or any(not worker.stuck for worker in self._core.workers)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. It is checked after each exit and each call to hurry, and
        once a second."""
        while not condition():
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_S)


def _try(step: Callable[[], None]) -> None:
    """Take one step, and log its failure. A bug in one step must not keep processes running."""
    try:
        step()
    except Exception:
        log.exception("shutdown.step_failed")
