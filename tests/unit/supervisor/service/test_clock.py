"""Time passes for each part of the supervisor, whatever becomes of another."""

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from lmx.supervisor.service import clock
from tests.support.fakes.fake_peers import until


async def ticks(count: int, block: Callable[[], None] = lambda: None) -> list[float]:
    """Return for how long each of ``count`` ticks was said to have paused; the first blocks."""
    paused: list[float] = []
    enough = asyncio.Event()

    def broken(now_s: float, paused_s: float) -> None:
        if not paused:
            block()
        raise RuntimeError("a bug")

    def sound(now_s: float, paused_s: float) -> None:
        paused.append(paused_s)
        if len(paused) >= count:
            enough.set()

    task = asyncio.get_running_loop().create_task(
        clock.tick_forever({"broken": broken, "sound": sound}, lambda _now_s: None, asyncio.Event())
    )
    try:
        waits = asyncio.get_running_loop().create_task(enough.wait())
        await asyncio.wait({task, waits}, timeout=90, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        assert not task.done()
    finally:
        task.cancel()
    return paused


async def test_a_part_that_raises_stops_neither_itself_nor_the_others() -> None:
    assert len(await ticks(3)) >= 3


async def test_a_tick_that_is_late_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0

    def block() -> None:
        nonlocal now_s
        now_s += 5.0

    # Its own time passes only there: this process may stand still at any moment.
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: now_s))
    first, second, *_ = await ticks(2, block)
    assert first == 0.0
    assert second == pytest.approx(4.9)


async def test_a_quiet_supervisor_rests_until_something_stirs_or_is_due() -> None:
    ticked_s: list[float] = []
    stirred, quiet_s = asyncio.Event(), 1000.0

    def quiet_until_s(now_s: float) -> float | None:
        return now_s + quiet_s if quiet_s else None

    def tick(now_s: float, _paused_s: float) -> None:
        ticked_s.append(now_s)

    task = asyncio.create_task(clock.tick_forever({"one": tick}, quiet_until_s, stirred))

    async def after(count: int) -> list[float]:
        await until(lambda: len(ticked_s) >= count)
        return [later - sooner for sooner, later in itertools.pairwise(ticked_s[-count:])]

    try:
        assert min(await after(3)) >= 0.95
        stirred.set()  # Nothing of what stirred ends the rest.
        assert min(await after(4)) >= 0.95
        quiet_s = 0.0
        stirred.set()
        async with asyncio.timeout(90):
            # On a busy machine some ticks are late.
            while (await after(len(ticked_s) + 1))[-1] >= 0.5:
                pass
        quiet_s = 0.3  # The next deadline is sooner than the end of a rest.
        assert min(await after(len(ticked_s) + 4)) >= 0.09
    finally:
        task.cancel()


async def test_a_clock_that_does_not_know_ticks() -> None:
    ticks = 0

    def tick(_now_s: float, _paused_s: float) -> None:
        nonlocal ticks
        ticks += 1

    def broken(_now_s: float) -> float | None:
        raise RuntimeError("a bug")

    task = asyncio.create_task(clock.tick_forever({"one": tick}, broken, asyncio.Event()))
    await until(lambda: ticks >= 3)
    assert not task.done()
    task.cancel()
