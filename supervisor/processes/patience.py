"""Waits for what another process does: time in which that process waits for a processor does not
count."""

import asyncio
import time
from functools import partial
from typing import Any, Final

from lmx.protocol.host.processor_wait import ProcessorWait, observe

_LOOK_S: Final = 1.0
_STOOD_STILL_S: Final = 0.25


async def done_within(work: asyncio.Future[Any], limit_s: float, most_s: float, pid: int) -> bool:
    """Return whether ``work`` is done within ``limit_s``, in which the process ``pid`` and those
    that it has started could run, and within ``most_s`` by the clock. If not, it continues."""
    began_s = time.monotonic()
    deadline_s, last_s = began_s + limit_s, began_s + most_s
    wait = ProcessorWait(pid, partial(observe, descendants=True))
    while not work.done():
        now_s = time.monotonic()
        look_s = max(now_s, min(deadline_s, last_s, now_s + _LOOK_S))
        await asyncio.wait([work], timeout=look_s - now_s)
        deadline_s += wait.more_s()
        now_s = time.monotonic()
        if now_s - look_s > _STOOD_STILL_S:
            # What was done while this process stood still comes in now.
            deadline_s, last_s = max(deadline_s, now_s + _LOOK_S), max(last_s, now_s + _LOOK_S)
        if min(deadline_s, last_s) <= now_s:
            break
    return work.done()
