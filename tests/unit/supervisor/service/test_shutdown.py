"""Going down ends every process, whatever trips over a bug on the way."""

import asyncio
from typing import Any

from lmx.supervisor.service.shutdown import Shutdown
from tests.support.rigs.core_rig import CoreRig


class _Guard:
    """A router's guard that fails whenever it is asked for anything."""

    running = False

    def stop(self, _now_s: float, _grace_s: float) -> None:
        raise ValueError("a bug")

    def close(self) -> None:
        raise ValueError("another bug")


async def _no_fetches() -> None:
    raise ValueError("a third")


async def test_workers_end_though_every_step_fails() -> None:
    rig = CoreRig({"a": 100, "b": 100})
    rig.up("a")
    rig.up("b")
    guard: Any = _Guard()

    def fails(now_s: float) -> None:
        raise ValueError(f"what it says at {now_s} can't be sent")

    rig.core.flush = fails  # type: ignore[method-assign]
    reported = rig.actions.signal

    def signal(worker: Any, number: int) -> None:
        reported(worker, number)
        if worker.model_id == "a":
            raise ValueError("a bug in one model's affairs")

    rig.actions.signal = signal  # type: ignore[method-assign]
    shutdown = Shutdown(rig.core, guard, _no_fetches)
    ending = asyncio.create_task(shutdown.run(1.0))
    async with asyncio.timeout(90):
        while len(rig.actions.signals) < 2:
            await asyncio.sleep(0.01)
        for name in ("a", "b"):
            rig.exits(name)
        shutdown.exited()
        await ending
    assert {pid for pid, _ in rig.actions.signals} == {1001, 1002}


async def test_to_be_hurried_counts_while_fetches_are_closed() -> None:
    rig = CoreRig({"a": 100})
    rig.up("a")
    guard: Any = _Guard()
    seen: list[bool] = []

    def stop_workers(now_s: float, *, at_once: bool) -> None:
        assert now_s > 0
        seen.append(at_once)

    rig.core.stop_workers = stop_workers  # type: ignore[method-assign]

    async def close_fetches() -> None:
        shutdown.hurry()

    shutdown = Shutdown(rig.core, guard, close_fetches)
    ending = asyncio.create_task(shutdown.run(1.0))
    async with asyncio.timeout(90):
        while len(seen) < 2:
            await asyncio.sleep(0.01)
    assert seen == [False, True]
    ending.cancel()
