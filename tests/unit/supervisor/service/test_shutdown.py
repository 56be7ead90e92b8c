"""Going down ends every process, whatever trips over a bug on the way."""

import asyncio
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
import structlog

from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.shutdown_timeout import ROUTER_EXIT_S
from lmx.supervisor.processes.handover import Invocation
from lmx.supervisor.service import service as service_module
from lmx.supervisor.service.service import Service
from lmx.supervisor.service.shutdown import Shutdown
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_peers import until
from tests.support.rigs.core_rig import CoreRig


async def test_workers_end_though_every_step_fails() -> None:
    rig = CoreRig({"a": 100, "b": 100}, up="ab")
    guard: Any = MagicMock(running=False)
    guard.stop.side_effect, guard.close.side_effect = ValueError("a bug"), ValueError("another bug")

    def fails(now_s: float) -> None:
        raise ValueError(f"what it says at {now_s} can't be sent")

    rig.core.flush = fails  # type: ignore[method-assign]
    reported = rig.actions.signal

    def signal(worker: Any, number: int) -> None:
        reported(worker, number)
        if worker.model_id == "a":
            raise ValueError("a bug in one model's affairs")

    rig.actions.signal = signal  # type: ignore[method-assign]
    first_failed, closed = asyncio.Event(), False

    async def no_fetches() -> None:
        first_failed.set()
        raise ValueError("a third")

    async def close_ranks() -> None:
        nonlocal closed
        await first_failed.wait()
        for _ in range(20):  # what waits for the first one alone would be ready long before
            await asyncio.sleep(0)
        closed = True

    shutdown = Shutdown(rig.core, guard, (no_fetches, close_ranks))
    ending = asyncio.create_task(shutdown.run(1.0))
    await until(lambda: len(rig.actions.signals) >= 2)
    for name in ("a", "b"):
        rig.exits(name)
    shutdown.exited()
    await asyncio.wait_for(ending, 90)
    assert {pid for pid, _ in rig.actions.signals} == {1001, 1002}
    assert closed


async def test_workers_end_after_the_router_which_has_the_grace_for_its_streams() -> None:
    rig = CoreRig({"a": 100}, up="a")
    guard: Any = MagicMock(running=True)
    shutdown = Shutdown(rig.core, guard, ())
    ending = asyncio.create_task(shutdown.run(7.0))
    for _ in range(20):
        await asyncio.sleep(0)
    assert guard.stop.call_args.args[1] == 7.0 + ROUTER_EXIT_S
    assert not rig.actions.signals
    guard.running = False
    shutdown.exited()
    await until(lambda: rig.actions.signals)
    rig.exits("a")
    shutdown.exited()
    await asyncio.wait_for(ending, 90)


async def test_a_worker_that_not_even_sigkill_ends_is_left() -> None:
    rig = CoreRig({"a": 100, "b": 100}, up="ab")
    guard: Any = MagicMock(running=False)
    shutdown = Shutdown(rig.core, guard, ())
    ending = asyncio.create_task(shutdown.run(1.0))
    async with asyncio.timeout(90):
        while len(rig.actions.signals) < 2:
            await asyncio.sleep(0.01)
        rig.exits("b")
        shutdown.exited()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not ending.done(), "it may end yet"
        now_s = time.monotonic()
        for second in range(100):  # nothing is notified of a worker that is stuck by now
            rig.core.tick(now_s + second, 0.0)
        with structlog.testing.capture_logs() as logs:
            await ending
    left = [one["worker_pid"] for one in logs if one["event"] == "supervisor.leaves_worker"]
    assert left == [rig.worker("a").pid]


async def test_to_be_hurried_counts_while_fetches_are_closed() -> None:
    rig = CoreRig({"a": 100}, up="a")
    guard: Any = MagicMock(running=False)
    seen: list[bool] = []

    def stop_workers(now_s: float, *, at_once: bool) -> None:
        assert now_s > 0
        seen.append(at_once)

    rig.core.stop_workers = stop_workers  # type: ignore[method-assign]

    async def close_fetches() -> None:
        shutdown.hurry()
        await asyncio.Event().wait()  # it may take longer than the workers have

    shutdown = Shutdown(rig.core, guard, (close_fetches,))
    ending = asyncio.create_task(shutdown.run(1.0))
    await until(lambda: len(seen) >= 2)
    assert seen == [False, True]
    ending.cancel()


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_stop_in_the_midst_of_a_handover_is_obeyed(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forever(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(service_module, "tick_forever", forever)
    monkeypatch.setattr(service_module, "_come_up", AsyncMock())
    monkeypatch.setattr(service_module, "leave", lambda *_: "what is left")
    invocation = Invocation(None, True, Config)
    service = Service(Config(), Home(tmp_path), "1", invocation, lambda _logs: None)
    parts: Any = MagicMock()
    parts.processes.server.serve = forever
    parts.processes.spare.close = parts.processes.descendants.end_all = AsyncMock()
    parts.shutdown.run = parts.close = AsyncMock()
    parts.downloads.close = AsyncMock()
    if stopped:
        parts.downloads.close.side_effect = lambda **_: service.stop("somebody asked for it")
    service._parts, service._lock = parts, MagicMock()
    assert not service.replacing
    service.replace()
    assert service.replacing
    left = await asyncio.wait_for(service._serve(parts), 90)
    assert left == (None if stopped else "what is left")


def test_a_notice_that_repeats_itself_stands_once(tmp_path: Path) -> None:
    service = Service(Config(), Home(tmp_path), "1", Invocation(None, True, Config), MagicMock())
    for text in ("no network", "a full disk", "no network"):
        service.notify(text)
    assert service.notices == ["no network", "a full disk"]
