"""A thread on which owners take turns. A worker has three: the prompt thread, which alone has the
tokenizer; the media thread, which waits for the decoder; and the one that checks whole answers."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from lmx.worker.scheduling.fair_queue import FairQueue
from lmx.worker.scheduling.progress import ProgressClock

_T = TypeVar("_T")


class _Call(NamedTuple):
    """One call for the thread."""

    on_start: Callable[[], None]
    function: Callable[[], Any]
    done: Callable[[asyncio.Future[Any]], None]


class FairThread:
    """Runs calls of all owners in turns, so that an owner's calls delay those of others by one call
    at most. Calls of a higher priority value wait for all others. Methods are called on the event
    loop."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: FairQueue[_Call] = FairQueue()
        self._busy = False
        self._pauses: dict[str, int] = {}
        """By reason, the lowest priority value of which no call begins."""
        self.clock = ProgressClock()

    def run(
        self,
        owner: str,
        on_start: Callable[[], None],
        function: Callable[[], _T],
        done: Callable[[asyncio.Future[_T]], None],
        priority: int = 0,
    ) -> None:
        """When the turn has come, call ``on_start`` on the loop right before ``function`` on the
        thread; then ``done`` on the loop. The caller limits how many calls wait."""
        self.clock.begin(time.monotonic())
        self._waiting.add(owner, _Call(on_start, function, done), priority)
        self._next()

    def pause(self, reason: str, priority: int = 0) -> None:
        """Begin no further call of this priority value or a higher one until :meth:`resume` for the
        same reason, such as full memory."""
        self._pauses[reason] = priority
        self._next()

    def resume(self, reason: str) -> None:
        """Begin calls again, unless there is another reason not to."""
        self._pauses.pop(reason, None)
        self._next()

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        if self._pauses and self._waiting.next_priority >= min(self._pauses.values()):
            return
        call = self._waiting.pop()
        self._busy = True
        loop = asyncio.get_running_loop()
        try:
            # This comes before the thread starts: code that holds the GIL would also delay this
            # call.
            call.on_start()
        finally:
            future = loop.run_in_executor(self._executor, call.function)
            future.add_done_callback(lambda done: self._finished(call, done))

    def _finished(self, call: _Call, future: asyncio.Future[Any]) -> None:
        self._busy = False
        self.clock.advance(time.monotonic())
        self.clock.end()
        try:
            call.done(future)
        finally:
            self._next()
