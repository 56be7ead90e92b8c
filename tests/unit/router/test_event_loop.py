"""Others get their turn between two steps of the loop, and garbage is collected there."""

import asyncio
import gc
import time
import weakref

import pytest

from lmx.router import event_loop
from lmx.router.event_loop import collect_between_steps, generation_due, yield_to_loop


class Node:
    def __init__(self) -> None:
        self.own = self


@pytest.mark.parametrize(
    ("counts", "due"),
    [
        ((1_999, 99, 99), None),
        ((-5, 99, 99), None),
        ((2_000, 0, 0), 0),
        ((200_000, 9, 99), 0),
        ((2_000, 10, 9), 1),
        ((2_000, 10, 10), 2),
    ],
)
def test_older_generations_are_collected_less_often(
    counts: tuple[int, int, int], due: int | None
) -> None:
    assert generation_due(counts) == due


async def test_a_timer_that_was_due_during_a_step_comes_before_the_next_step() -> None:
    due = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, due.set)
    time.sleep(0.01)
    await yield_to_loop()
    assert due.is_set()


async def test_garbage_is_collected_while_pythons_collector_is_off() -> None:
    collecting = asyncio.create_task(collect_between_steps())
    try:
        await asyncio.sleep(0)
        assert not gc.isenabled()
        gone = weakref.ref(Node())
        kept = [[n] for n in range(5_000)]
        async with asyncio.timeout(90):
            while gone() is not None:
                await asyncio.sleep(0.01)
        assert len(kept) == 5_000
    finally:
        collecting.cancel()
        await asyncio.wait({collecting})
    assert gc.isenabled()


async def test_the_garbage_of_few_objects_is_collected_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "_WORTH_OBJECTS", 10**9)
    monkeypatch.setattr(event_loop, "_IDLE_S", 0.1)
    collecting = asyncio.create_task(collect_between_steps())
    try:
        await asyncio.sleep(0)
        gone = weakref.ref(Node())
        kept = [[n] for n in range(200)]
        async with asyncio.timeout(90):
            while gone() is not None:
                await asyncio.sleep(0.01)
        assert len(kept) == 200
    finally:
        collecting.cancel()
        await asyncio.wait({collecting})


async def test_a_turn_of_others_collects_only_where_pythons_collector_is_off() -> None:
    gc.disable()
    try:
        gone = weakref.ref(Node())
        kept = [[n] for n in range(5_000)]
        await yield_to_loop()
        assert gone() is None
        assert kept
    finally:
        gc.enable()
