"""The clock of a supervisor: it calls the parts that wait for time to pass."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

log = structlog.get_logger()

_TICK_S: Final = 0.1
_REST_S: Final = 1.0
"""The longest time between two ticks: what is in no deadline waits no longer."""
_PAUSE_S: Final = 2.0
"""A tick that is this late means that this process was not running. Deadlines are moved by that
time."""

Tick = Callable[[float, float], None]
"""``tick(now_s, paused_s)``, where ``paused_s`` is how long this process was not running."""


async def tick_forever(
    parts: Mapping[str, Tick],
    quiet_until_s: Callable[[float], float | None],
    stirred: asyncio.Event,
) -> None:
    """Call each part ten times a second, and once a second while all is quiet, until cancelled. An
    exception of a part is logged. Every deadline depends on this, also those of the shutdown, so
    that a bug in one part must not stop the others.

    ``quiet_until_s(now_s)`` returns until when time alone changes nothing; None: it may at any
    moment. It is asked again whenever something has ``stirred``.
    """
    last_s = time.monotonic()
    while True:
        late_s = await _next_tick(last_s, quiet_until_s, stirred)
        now_s = time.monotonic()
        last_s = now_s
        paused_s = late_s if late_s > _PAUSE_S else 0.0
        for name, tick in parts.items():
            try:
                tick(now_s, paused_s)
            except Exception:
                log.exception("tick.failed", part=name)


async def _next_tick(
    last_s: float, quiet_until_s: Callable[[float], float | None], stirred: asyncio.Event
) -> float:
    """Wait until the next tick is due, and return how late it is by then."""
    due_s = math.inf
    now_s = last_s
    while True:
        stirred.clear()
        try:
            quiet_s = quiet_until_s(now_s)
        except Exception:
            log.exception("tick.failed", part="clock")
            quiet_s = None
        due_s = min(due_s, max(now_s, _due_s(last_s, quiet_s)))
        try:
            async with asyncio.timeout(max(0.0, due_s - now_s)):
                await stirred.wait()
        except TimeoutError:
            return time.monotonic() - due_s
        now_s = time.monotonic()
        if now_s >= due_s:
            return now_s - due_s


def _due_s(last_s: float, quiet_s: float | None) -> float:
    soonest_s = last_s + _TICK_S
    return soonest_s if quiet_s is None else min(max(soonest_s, quiet_s), last_s + _REST_S)
