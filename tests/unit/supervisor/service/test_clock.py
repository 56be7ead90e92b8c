"""Time passes for each part of the supervisor, whatever becomes of another."""

import asyncio
import time

import pytest

from lmx.supervisor.service import clock


async def ticks(count: int, wait_s: float = 0.0) -> list[float]:
    """Return for how long each of ``count`` ticks was said to have paused; the first blocks."""
    paused: list[float] = []
    enough = asyncio.Event()

    def broken(now_s: float, paused_s: float) -> None:
        if not paused:
            time.sleep(wait_s)
        raise RuntimeError("a bug")

    def sound(now_s: float, paused_s: float) -> None:
        paused.append(paused_s)
        if len(paused) >= count:
            enough.set()

    task = asyncio.get_running_loop().create_task(
        clock.tick_forever({"broken": broken, "sound": sound})
    )
    try:
        waits = asyncio.get_running_loop().create_task(enough.wait())
        await asyncio.wait({task, waits}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        assert not task.done()
    finally:
        task.cancel()
    return paused


async def test_a_part_that_raises_stops_neither_itself_nor_the_others() -> None:
    assert len(await ticks(3)) >= 3


async def test_a_tick_that_is_late_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_PAUSE_S", 0.2)
    first, second, *_ = await ticks(2, wait_s=0.4)
    assert first == 0.0
    assert second >= 0.2
