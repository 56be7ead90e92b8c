"""The one thread that has the tokenizer: prompts are made on it, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lmx.worker.progress import ProgressClock

_T = TypeVar("_T")


class PromptThread:
    """First come, first served. Methods are called on the event loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="prompt")
        self.clock = ProgressClock()

    def run(self, function: Callable[[], _T], done: Callable[[asyncio.Future[_T]], None]) -> None:
        """Call ``function`` on the thread, then ``done`` on the loop. The caller bounds how many
        calls wait."""
        self.clock.begin(time.monotonic())

        def finished(future: asyncio.Future[_T]) -> None:
            self.clock.advance(time.monotonic())
            self.clock.end()
            done(future)

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._executor, function).add_done_callback(finished)
