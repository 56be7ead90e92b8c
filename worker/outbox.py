"""From the engine thread to the event loop: what its steps produced, one wake-up for many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from lmx.worker.jobs import JobOutput

# Steps that the loop may lag behind. The engine waits for a loop that is further behind: its
# output has nowhere to go, and would pile up here.
LIMIT_STEPS: Final = 256
_WAIT_S: Final = 0.5


class Outbox:
    """A bounded queue of steps. ``post`` is for the engine thread, ``deliver`` gets called
    on the loop with the outputs of one or more steps, in order."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[JobOutput]], None]
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._steps: list[list[JobOutput]] = []
        self._changed = threading.Condition()

    def post(self, outputs: list[JobOutput]) -> None:
        """Hand over one step's outputs; waits for a loop that lags. Drops them when it closed."""
        with self._changed:
            while len(self._steps) >= LIMIT_STEPS:
                self._changed.wait(_WAIT_S)
                if self._loop.is_closed():
                    return
            self._steps.append(outputs)
            wake = len(self._steps) == 1
        if wake:
            self.call(self._drain)

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the loop; does nothing when it has closed: the process ends."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _drain(self) -> None:
        with self._changed:
            steps, self._steps = self._steps, []
            self._changed.notify()
        self._deliver([output for step in steps for output in step])
