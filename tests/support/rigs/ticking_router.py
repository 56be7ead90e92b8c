"""A program: lmx's router with a ticker on its event loop. ``python -m ... FD`` writes each
longer gap between two ticks to the descriptor FD, as ``GAP``: when it began (monotonic), and
how much processor time the process used in it, but no more than the gap took by the clock.

It is processor time, so that a busy machine does not make a gap. It is that of the whole process
and not of the loop's thread, because a thread that holds the interpreter's lock holds up the loop
too; one that does not hold it works at the same time, which only the clock shows.
"""

import asyncio
import faulthandler
import os
import struct
import sys
import time
from typing import Final

from lmx.protocol.host.imports import quick_imports

with quick_imports():  # as `python -m lmx.router` does
    from lmx.protocol.messages.specs import RouterSpec
    from lmx.router import process
    from lmx.router.server.process import serve

GAP: Final = struct.Struct("dd")
TICK_S: Final = 0.01
_WRITTEN_S: Final = 0.02
_STACKS: Final = os.environ.get("LMX_WALK_STACKS")
"""After so many seconds without a tick all stacks are written to stderr, to find what holds up the
loop. It is no verdict: these seconds are the clock's."""


async def _tick(to: int) -> None:
    used_s, began_s = time.process_time(), time.monotonic()
    while True:
        if _STACKS:
            faulthandler.dump_traceback_later(float(_STACKS))
        await asyncio.sleep(TICK_S)
        now_s, clock_s = time.process_time(), time.monotonic()
        gap_s = min(now_s - used_s, clock_s - began_s)
        if gap_s > _WRITTEN_S:
            os.write(to, GAP.pack(began_s, gap_s))
        used_s, began_s = now_s, clock_s


async def _serve(spec: RouterSpec) -> None:
    ticking = asyncio.create_task(_tick(int(sys.argv[1])))
    try:
        await serve(spec)
    finally:
        ticking.cancel()


if __name__ == "__main__":
    setattr(process, "serve", _serve)  # noqa: B010  # it is that module's own import
    sys.exit(process.main())
