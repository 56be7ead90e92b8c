"""The clock of a supervisor: it calls the parts that wait for time to pass."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

log = structlog.get_logger()

_TICK_S: Final = 0.1
_PAUSE_S: Final = 2.0
"""A tick that is this late means that this process was not running. Deadlines are moved by that
time."""

Tick = Callable[[float, float], None]
"""``tick(now_s, paused_s)``, where ``paused_s`` is how long this process was not running."""


async def tick_forever(parts: Mapping[str, Tick]) -> None:
    """Call each part ten times a second, until cancelled. An exception of a part is logged. Every
    deadline depends on this, also those of the shutdown, so that a bug in one part must not stop
    the others."""
    last_s = time.monotonic()
    while True:
        await asyncio.sleep(_TICK_S)
        now_s = time.monotonic()
        late_s = now_s - last_s - _TICK_S
        last_s = now_s
        paused_s = late_s if late_s > _PAUSE_S else 0.0
        for name, tick in parts.items():
            try:
                tick(now_s, paused_s)
            except Exception:
                log.exception("tick.failed", part=name)
