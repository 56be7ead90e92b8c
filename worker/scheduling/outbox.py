"""Brings the outputs of the engine thread's steps to the event loop.

Whenever the loop wakes up, it takes the interpreter from the engine thread, and sends a message
that wakes the router too. While steps take a millisecond or two, that is a part of their time. So
steps that follow each other so closely are delivered together. Each token keeps a delta of its own.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from lmx.worker.scheduling.requests import RequestOutput

LIMIT_STEPS: Final = 256
"""How many steps the loop may lag behind. The engine waits for a loop that is further behind: its
output has nowhere to go, and would pile up here."""

COALESCE_S: Final = 0.01
"""How long a step's outputs wait at most for those of the next steps. They never wait if steps take
more than half of this. A screen shows a new picture every 16 ms."""

_WAIT_S: Final = 0.5


class Outbox:
    """A bounded queue of steps. The engine thread calls ``post`` and ``call``. The loop calls
    ``deliver`` with the outputs of one or more steps, in order.

    Outputs are delivered at once, but while at least two steps are made in ``COALESCE_S``, there is
    one delivery in ``COALESCE_S``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.deliver: Callable[[list[RequestOutput]], None] | None = None
        """Set before the first post."""
        self._steps: list[list[RequestOutput]] = []
        self._changed = threading.Condition()
        self._awaited = False
        """Whether the loop will look for steps without being woken. The condition guards it."""
        # Only the loop uses these.
        self._timer: asyncio.TimerHandle | None = None
        self._delivered_s = -COALESCE_S

    def post(self, outputs: list[RequestOutput], *, urgent: bool = False) -> None:
        """Hand over one step's outputs; wait if the loop lags behind. They are dropped if the loop
        has closed. If they are ``urgent``, they are delivered at once."""
        with self._changed:
            while len(self._steps) >= LIMIT_STEPS:
                self._changed.wait(_WAIT_S)
                if self._loop.is_closed():
                    return
            self._steps.append(outputs)
            wake = urgent or not self._awaited
            self._awaited = True
        if wake:
            self._call(self._drain)

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the loop, after everything that was posted before is delivered. Does
        nothing if the loop has closed, because the process ends then."""

        def in_order() -> None:
            self._drain()
            function()

        self._call(in_order)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _drain(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._loop.time()
        with self._changed:
            steps, self._steps = self._steps, []
            self._awaited = _worth_waiting(len(steps), now - self._delivered_s)
            self._changed.notify()
        if self._awaited:
            self._timer = self._loop.call_later(COALESCE_S, self._drain)
        if steps:
            assert self.deliver is not None
            self._delivered_s = now
            self.deliver([output for step in steps for output in step])


def _worth_waiting(steps: int, since_s: float) -> bool:
    """Return whether steps follow each other so closely, ``since_s`` after the last delivery, that
    it pays to wait for the next ones."""
    return steps > 1 or (steps == 1 and since_s <= COALESCE_S / 2)
