"""Waits for what another process does: time in which that process waits for a processor does not
count."""

import asyncio
import time
from functools import partial
from typing import Any, Final

from lmx.protocol.host.processor_wait import ProcessorWait, observe

_LOOK_S: Final = 1.0


async def done_within(work: asyncio.Future[Any], limit_s: float, most_s: float, pid: int) -> bool:
    """Return whether ``work`` is done within ``limit_s``, in which the process ``pid`` and those
    that it has started could run, and within ``most_s`` by the clock. Time in which this process
    stands still does not count: what was done meanwhile is seen first. If not, it continues."""
    began_s = time.monotonic()
    deadline_s, last_s = began_s + limit_s, began_s + most_s
    wait = ProcessorWait(pid, partial(observe, descendants=True))
    while not work.done():
        now_s = time.monotonic()
        look_s = now_s + max(0.0, min(deadline_s - now_s, last_s - now_s, _LOOK_S))
        await asyncio.wait([work], timeout=look_s - now_s)
        late_s = max(0.0, time.monotonic() - look_s)
        deadline_s += wait.more_s() + late_s
        last_s += late_s
        if min(deadline_s, last_s) <= time.monotonic():
            break
    return work.done()
