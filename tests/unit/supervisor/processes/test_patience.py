"""For how long one waits for what another process does."""

import asyncio
import time

import pytest

from lmx.protocol.host.processor_wait import Observed, Turns
from lmx.supervisor.processes import patience


@pytest.mark.parametrize(
    ("share", "most_s", "at_least_s"), [(0.0, 90.0, 0.2), (1.0, 2.0, 2.0), (0.5, 90.0, 0.3)]
)
async def test_time_in_which_it_waits_for_a_processor_does_not_count(
    monkeypatch: pytest.MonkeyPatch, share: float, most_s: float, at_least_s: float
) -> None:
    loop = asyncio.get_running_loop()

    def observe(_pid: int, *, descendants: bool) -> Observed:
        now_s = loop.time()
        assert descendants
        return Observed(now_s, {1: Turns(now_s * (1 - share), now_s * share)})

    monkeypatch.setattr(patience, "observe", observe)
    monkeypatch.setattr(patience, "_LOOK_S", 0.02)
    began_s = loop.time()
    never: asyncio.Future[None] = loop.create_future()
    assert not await patience.done_within(never, 0.2, most_s, 1)
    assert loop.time() - began_s >= at_least_s
    assert not never.done()


async def test_what_is_done_is_seen_at_once() -> None:
    work = asyncio.ensure_future(asyncio.sleep(0))
    assert await patience.done_within(work, 90.0, 90.0, 1)


async def test_time_in_which_this_process_stands_still_does_not_count() -> None:
    loop = asyncio.get_running_loop()
    work: asyncio.Future[None] = loop.create_future()

    def stand_still() -> None:
        time.sleep(1.0)
        loop.call_later(0.1, work.set_result, None)

    loop.call_later(0.1, stand_still)
    assert await patience.done_within(work, 0.8, 0.8, 1)
