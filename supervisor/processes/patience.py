"""Waits for what another process does: time in which that process waits for a processor does not
count."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final

from lmx.protocol.host.processor_wait import ProcessorWait, observe

_LOOK_S: Final = 1.0


async def done_within(work: asyncio.Future[Any], limit_s: float, most_s: float, pid: int) -> bool:
    """Return whether ``work`` is done within ``limit_s``, in which the process ``pid`` and those
    that it has started could run, and within ``most_s`` by the clock. If not, it goes on."""
    began_s = time.monotonic()
    deadline_s, last_s = began_s + limit_s, began_s + most_s
    wait = None
    while not work.done() and (left_s := min(deadline_s, last_s) - time.monotonic()) > 0:
        await asyncio.wait([work], timeout=min(left_s, _LOOK_S))
        if wait is None:
            wait = ProcessorWait(pid, partial(observe, descendants=True))
        elif not work.done():
            deadline_s += wait.more_s()
    return work.done()
