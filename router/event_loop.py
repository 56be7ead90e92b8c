"""The steps of the event loop: others get their turn between two steps with something large, and
garbage is collected between them and never within one."""

import asyncio
import gc
from collections.abc import Awaitable
from typing import Final

_INTERVAL_S: Final = 0.1
_IDLE_INTERVAL_S: Final = 1.0
"""While hardly anything is made. Of what a sudden crowd makes in this time, steps with something
large collect the garbage themselves, and the next interval is short."""
_WORTH_OBJECTS: Final = 2_000
_IDLE_OBJECTS: Final = 200
_IDLE_S: Final = 5.0
_LONGEST_IDLE_S: Final = 80.0
"""After this time without a collection, all garbage is collected, because few objects may hold much
memory; and then again after twice the time, up to the longest, while nothing else is collected."""
_OLDER_AFTER: Final = 10
"""An older generation is collected after this many collections of the one before it, as Python does
by itself."""


async def yield_to_loop() -> None:
    """Let others have their turn: also timers and sockets that became due during the step before,
    which the loop sees only after it has begun its next round."""
    await _whole_round()
    if not gc.isenabled() and _collected():
        await _whole_round()


async def ends_in_time(work: Awaitable[object], deadline_s: float | None) -> bool:
    """Await ``work``; return False if it takes longer than ``deadline_s`` (None: there is no time
    limit)."""
    try:
        async with asyncio.timeout(deadline_s):
            await work
    except TimeoutError:
        return False
    return True


async def collect_between_steps() -> None:
    """Collect garbage for as long as the process lives, instead of Python's own collector.

    That one collects wherever enough objects were made: in the middle of a step with a large body,
    which takes tens of milliseconds itself, and of the same 100,000 objects up to three times, for
    20, 35 and 50 ms.
    """
    gc.disable()
    try:
        interval_s, idle_s, collected_after_s, made = _INTERVAL_S, 0.0, _IDLE_S, 0
        while True:
            await asyncio.sleep(interval_s)
            idle_s += interval_s
            before, made = made, gc.get_count()[0]
            if _collected():
                interval_s, idle_s, collected_after_s, made = _INTERVAL_S, 0.0, _IDLE_S, 0
                continue
            interval_s = _INTERVAL_S if made - before > _IDLE_OBJECTS else _IDLE_INTERVAL_S
            if idle_s >= collected_after_s:
                idle_s, collected_after_s = 0.0, min(2 * collected_after_s, _LONGEST_IDLE_S)
                gc.collect()
    finally:
        gc.enable()


def generation_due(counts: tuple[int, int, int]) -> int | None:
    """Return the generation to collect now; None if it is not worth it.

    ``counts`` are those of :func:`gc.get_count`: the objects made since the last collection, less
    those freed, and the collections of the first and of the second generation since one of the next
    generation.
    """
    made, younger, older = counts
    if made < _WORTH_OBJECTS:
        return None
    if younger < _OLDER_AFTER:
        return 0
    return 1 if older < _OLDER_AFTER else 2


def _collected() -> bool:
    due = generation_due(gc.get_count())
    if due is not None:
        gc.collect(due)
    return due is not None


async def _whole_round() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
