"""Models that do not fit together, asked for all the time: both make progress, in batches; and a
model that an operator takes out of service."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.long

WORDS = "word " * 3
QUICKLY = {"tokens": 3}
LONG = 400
"""Tokens of an answer of 12 s: whoever looks meanwhile finds it under way."""


def model(name: str) -> dict[str, Any]:
    return scripted(name, preload=False, memory_bytes="100 MiB")


class TestTwoThatDoNotFit:
    """Two models, memory for one."""

    async def steady(
        self, session: aiohttp.ClientSession, url: str, name: str, over: asyncio.Event
    ) -> int:
        """Ask one after the other; returns how many answers came."""
        answers = 0
        while not over.is_set():
            stream = Stream(session, url, ask(name, {"tokens": 10, "step_s": 0.01}))
            await stream.ended()
            assert (stream.text, stream.errors) == ("word " * 10, [])
            answers += 1
        return answers

    async def test_steady_requests_for_both_alternate_in_batches(self) -> None:
        memory = {"budget_bytes": "150 MiB", "min_residency_s": 1.0, "fair_wait_s": 1.5}
        with rig({"models": [model("a"), model("b")], "memory": memory}) as lmx:
            over = asyncio.Event()
            async with http() as session:
                asking = [
                    asyncio.create_task(self.steady(session, lmx.url, name, over))
                    for name in ("a", "b") * 4
                ]
                await asyncio.to_thread(
                    wait_until, lambda: len(lmx.events("model.evicting")) >= 2, "each gave way"
                )
                over.set()
                answers = await asyncio.gather(*asking)
            assert min(answers) >= 1, "everybody had a turn"
            evicted = [(event.model_id, event.at_s) for event in lmx.events("model.evicting")]
            loaded = [(event.model_id, event.at_s) for event in lmx.events("worker.ready")]
            names = [name for name, _ in loaded]
            assert all(one != next_one for one, next_one in pairwise(names)), "they take turns"
            stays_s = [
                end_s - begin_s for (_, begin_s), (_, end_s) in zip(loaded, evicted, strict=False)
            ]
            print(f"{len(loaded)} loads for {sum(answers)} answers; stays of {stays_s} s")
            # In batches: none goes sooner than it may, however many wait for the other one.
            # An event has the time at which it is noted.
            assert min(stays_s) >= 0.5

    async def test_a_busy_one_that_is_evicted_ends_what_it_has_however_long(self) -> None:
        """For fairness a busy model takes no new request; no deadline cuts one that it has."""
        memory = {"budget_bytes": "150 MiB", "min_residency_s": 0, "fair_wait_s": 0.5}
        timing = {"drain_timeout_s": 0.3}
        config = {"models": [model("a"), model("b")], "memory": memory, "timing": timing}
        with rig(config) as lmx:
            async with http() as session:
                url = lmx.url
                long = Stream(session, url, ask("a", {"tokens": LONG, "step_s": 0.03}))
                await long.has_text(5)
                other = Stream(session, url, ask("b", QUICKLY))
                await asyncio.to_thread(lmx.wait_state, "a", "draining")
                late = Stream(session, url, ask("a", QUICKLY))
                await asyncio.gather(long.ended(), other.ended(), late.ended())
            assert (long.text, long.errors) == ("word " * LONG, [])
            # Who came while it gave way had to wait its turn.
            assert [(s.text, s.errors) for s in (other, late)] == [(WORDS, [])] * 2
            exits = [(e.model_id, e.data["cause"]) for e in lmx.events("worker.exited")]
            assert exits == [("a", "evicted"), ("b", "evicted")]

    async def test_who_has_just_come_stays_for_a_while(self) -> None:
        memory = {"budget_bytes": "150 MiB", "min_residency_s": 1.5, "fair_wait_s": 0}
        with rig({"models": [model("a"), model("b")], "memory": memory}) as lmx:
            async with http() as session:
                assert (await whole(session, lmx.url, "a", QUICKLY))[0] == 200
                assert (await whole(session, lmx.url, "b", QUICKLY))[0] == 200
            (ready, _) = lmx.events("worker.ready")
            (evicting,) = lmx.events("model.evicting")
            assert (ready.model_id, evicting.model_id) == ("a", "a")
            assert evicting.at_s - ready.at_s > 0.75


@pytest.fixture(scope="class")
def one() -> Iterator[Rig]:
    with rig({"models": [scripted("a")]}) as lmx:
        yield lmx


class TestHeld:
    """What an operator takes out of service by the CLI, and gives back."""

    async def test_a_drained_model_takes_nothing_until_it_is_reset(self, one: Rig) -> None:
        lmx = one
        pid = lmx.wait_state("a", "ready")["pid"]
        async with http() as session:
            url = lmx.url
            stream = Stream(session, url, ask("a", {"tokens": 60, "step_s": 0.03}))
            await stream.has_text(20)
            done = await asyncio.to_thread(lmx.cli, "drain", "a")
            assert (done.returncode, f"pid {pid} is gone" in done.stdout) == (0, True)
            await stream.ended()
            assert (stream.text, stream.errors) == ("word " * 60, [])
            assert lmx.worker("a")["state"] == "drained"
            status, error = await whole(session, url, "a", QUICKLY)
            assert (status, error["code"]) == (503, "model_drained")
            assert "`lmx" in error["message"], "it says what to do"
            done = await asyncio.to_thread(lmx.cli, "reset", "a")
            assert (done.returncode, lmx.worker("a")["state"]) == (0, "cold")
            assert (await whole(session, url, "a", QUICKLY))[0] == 200
        assert [e.name for e in lmx.events("model.drained", "model.reset")] == [
            "model.drained", "model.reset",
        ]  # fmt: skip

    async def test_requests_meanwhile_are_answered_at_once_not_after_the_drain(
        self, one: Rig
    ) -> None:
        lmx = one
        lmx.wait_state("a", "ready")
        async with http() as session:
            url = lmx.url
            stream = Stream(session, url, ask("a", {"tokens": 100_000, "step_s": 0.03}))
            await stream.has_text(20)
            draining = asyncio.create_task(asyncio.to_thread(lmx.cli, "drain", "a"))
            await asyncio.to_thread(lmx.wait_state, "a", "draining")
            async with asyncio.timeout(90):
                status, error = await whole(session, url, "a", QUICKLY)
            assert (status, error["code"]) == (503, "model_drained")
            await stream.hang_up()
            assert (await draining).returncode == 0
