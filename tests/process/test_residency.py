"""Who may stay in memory and who gives way: eviction, pins, groups, and time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from rig import Rig, Stream, ask, http, rig, scripted, wait_until, whole

from lmx.protocol.control import PinModel, UnloadModel

pytestmark = pytest.mark.process

WORDS = "word " * 3
QUICKLY = {"tokens": 3}
SIZE = "100 MiB"
"""More than a worker of the scripted engine takes, so that the ledger goes by it."""


def model(name: str, **settings: Any) -> dict[str, Any]:
    return scripted(name, **{"preload": False, "memory_bytes": SIZE, **settings})


def unload(lmx: Rig, *models: str) -> None:
    for name in models:
        lmx.ask(UnloadModel(name))
    for name in models:
        lmx.wait_state(name, "cold")


def states(lmx: Rig) -> dict[str, str]:
    return {line["model"]: line["state"] for line in lmx.status()["workers"]}


async def answered(session: aiohttp.ClientSession, url: str, name: str, **settings: Any) -> None:
    status, answer = await whole(session, url, name, QUICKLY, **settings)
    assert (status, answer.get("message")) == (200, None), answer
    assert answer["choices"][0]["message"]["content"] == WORDS


@pytest.fixture(scope="class")
def room_for_two() -> Iterator[Rig]:
    memory = {"budget_bytes": "250 MiB", "min_residency_s": 0}
    with rig({"models": [model("a"), model("b"), model("c")], "memory": memory}) as lmx:
        yield lmx


class TestRoomForTwo:
    """Three models and memory for two of them."""

    async def test_the_least_recently_used_makes_room_and_comes_back(
        self, room_for_two: Rig
    ) -> None:
        async with http() as session:
            for name in ("a", "b", "c"):
                await answered(session, room_for_two.url, name)
            line = await asyncio.to_thread(room_for_two.worker, "a")
            assert states(room_for_two) == {"a": "cold", "b": "ready", "c": "ready"}
            assert (line["last_exit"]["cause"], line["exits"]) == ("evicted", {"evicted": 1})
            (event,) = room_for_two.events("model.evicting")
            assert (event.model_id, event.data["for_model"]) == ("a", "c")
            await answered(session, room_for_two.url, "a")
        assert states(room_for_two) == {"a": "ready", "b": "cold", "c": "ready"}
        assert room_for_two.status()["supervisor"]["swaps_total"] == 2

    async def test_a_busy_model_is_never_evicted(self, room_for_two: Rig) -> None:
        await asyncio.to_thread(unload, room_for_two, "a", "b", "c")
        long = {"tokens": 100, "step_s": 0.03}
        async with http() as session:
            url = room_for_two.url
            busy = [Stream(session, url, ask(name, long)) for name in ("a", "b")]
            await asyncio.gather(*(stream.has_text(5) for stream in busy))
            waiting = Stream(session, url, ask("c", QUICKLY))
            await asyncio.to_thread(room_for_two.wait_state, "c", "queued")
            assert room_for_two.worker("c")["position"] == 1
            await waiting.ended()
            first = min(busy, key=lambda stream: not stream.done)
            assert first.done, "there was room before anybody had ended"
            await asyncio.gather(*(stream.ended() for stream in busy))
        assert {(s.text, s.finish_reason) for s in busy} == {("word " * 100, "stop")}
        assert waiting.text == WORDS


class TestPinned:
    """Two that are pinned and one that has no room beside them."""

    async def test_everything_is_pinned_is_said_until_one_is_not(self) -> None:
        models = [model("kept"), model("held", pinned=True, preload=True), model("asked")]
        memory = {"budget_bytes": "250 MiB", "min_residency_s": 0}
        with rig({"models": models, "memory": memory}) as lmx:
            async with http() as session:
                await answered(session, lmx.url, "kept")
                await asyncio.to_thread(lmx.ask, PinModel("kept", True))
                began_s = time.monotonic()
                status, error = await whole(session, lmx.url, "asked", QUICKLY)
                assert (status, error["code"]) == (503, "insufficient_memory")
                assert time.monotonic() - began_s < 5, "it is told at once"
                for word in ("kept", "held", "pinned", "100 MiB", "250 MiB"):
                    assert word in error["message"]
                assert states(lmx) == {"kept": "ready", "held": "ready", "asked": "cold"}
                done = await asyncio.to_thread(lmx.cli, "unpin", "kept")
                assert done.returncode == 0, done.stderr
                await answered(session, lmx.url, "asked")
            assert states(lmx) == {"kept": "cold", "held": "ready", "asked": "ready"}


@pytest.fixture(scope="class")
def with_keep_alive() -> Iterator[Rig]:
    models = [
        model("global"), model("own", keep_alive=0.4), model("asked", keep_alive="forever"),
        model("stays", keep_alive=-1), model("working"), model("pinned", pinned=True),
    ]  # fmt: skip
    with rig({"models": models, "memory": {"keep_alive": "2s"}}) as lmx:
        yield lmx


class TestKeepAlive:
    """How long what is idle stays: by the request, the model, or for all."""

    async def test_each_goes_at_its_time_and_none_while_it_works(
        self, with_keep_alive: Rig
    ) -> None:
        async with http() as session:
            url = with_keep_alive.url
            # Longer than it may idle: it is counted from the end of the request.
            working = Stream(session, url, ask("working", {"tokens": 50, "step_s": 0.06}))
            names = ("global", "own", "stays", "pinned")
            await asyncio.gather(*(answered(session, url, name) for name in names))
            await asyncio.to_thread(with_keep_alive.wait_state, "own", "cold")
            assert states(with_keep_alive)["global"] == "ready"
            await asyncio.to_thread(with_keep_alive.wait_state, "global", "cold")
            await working.ended()
            assert (working.text, working.errors) == ("word " * 50, [])
            assert states(with_keep_alive)["working"] == "ready"
            await asyncio.to_thread(with_keep_alive.wait_state, "working", "cold")
        after = {line["model"]: line for line in with_keep_alive.status()["workers"]}
        assert (after["stays"]["state"], after["pinned"]["state"]) == ("ready", "ready")
        for name in ("global", "own", "working"):
            assert after[name]["last_exit"]["cause"] == "expired"
        assert after["stays"]["expires_in_s"] is None

    async def test_a_requests_word_goes_before_the_models(self, with_keep_alive: Rig) -> None:
        async with http() as session:
            await answered(session, with_keep_alive.url, "asked", keep_alive=0)
            await asyncio.to_thread(with_keep_alive.wait_state, "asked", "cold")
            await answered(session, with_keep_alive.url, "own", keep_alive="1h")
            await asyncio.sleep(1.0)  # more than twice its own limit
            line = await asyncio.to_thread(with_keep_alive.worker, "own")
            assert (line["state"], 3500 < line["expires_in_s"] <= 3600) == ("ready", True)
            await answered(session, with_keep_alive.url, "own", keep_alive=0)
            await asyncio.to_thread(with_keep_alive.wait_state, "own", "cold")


@pytest.fixture(scope="class")
def with_groups() -> Iterator[Rig]:
    names = ("swap1", "swap2", "alone", "fixed", "free")
    groups = [
        {"name": "turns", "models": ["swap1", "swap2"], "swap": True},
        {"name": "sole", "models": ["alone"], "exclusive": True},
        {"name": "always", "models": ["fixed"], "persistent": True},
    ]
    memory = {"min_residency_s": 0}
    models = [model(name) for name in names]
    with rig({"models": models, "groups": groups, "memory": memory}) as lmx:
        yield lmx


class TestGroups:
    """Rules about what may be loaded together, though memory is ample."""

    async def test_the_rules_hold_without_want_of_memory(self, with_groups: Rig) -> None:
        async with http() as session:
            for name in ("fixed", "free", "swap1", "swap2"):
                await answered(session, with_groups.url, name)
            here = {"fixed": "ready", "free": "ready"}
            gone = {"swap1": "cold", "alone": "cold"}
            assert states(with_groups) == {**here, **gone, "swap2": "ready"}
            await answered(session, with_groups.url, "alone")
            assert [n for n, s in states(with_groups).items() if s == "ready"] == ["alone", "fixed"]
            await answered(session, with_groups.url, "free")
            assert [n for n, s in states(with_groups).items() if s == "ready"] == ["fixed", "free"]


class TestTwoThatDoNotFit:
    """Two models, memory for one."""

    async def steady(
        self, session: aiohttp.ClientSession, url: str, name: str, until_s: float
    ) -> list[float]:
        """Ask one after the other; returns when each answer was complete."""
        ends_s = []
        while time.monotonic() < until_s:
            stream = Stream(session, url, ask(name, {"tokens": 10, "step_s": 0.01}))
            await stream.ended()
            assert (stream.text, stream.errors) == ("word " * 10, [])
            ends_s.append(time.monotonic())
        return ends_s

    async def test_steady_requests_for_both_alternate_in_batches(self) -> None:
        memory = {"budget_bytes": "150 MiB", "min_residency_s": 1.0, "fair_wait_s": 1.5}
        with rig({"models": [model("a"), model("b")], "memory": memory}) as lmx:
            async with http() as session:
                url, began_s = lmx.url, time.monotonic()
                until_s = began_s + 8
                ends_s = await asyncio.gather(
                    *(self.steady(session, url, name, until_s) for name in ("a", "b") * 4)
                )
            took_s = time.monotonic() - began_s
            swaps = lmx.status()["supervisor"]["swaps_total"]
            most_s = 0.0
            for name, place in (("a", 0), ("b", 1)):
                of_both = sorted(end_s for ends in ends_s[place::2] for end_s in ends)
                marks_s = [began_s, *of_both]
                gap_s = max(b - a for a, b in pairwise(marks_s))
                print(f"{name}: {len(of_both)} answers, longest wait {gap_s:.1f} s")
                assert len(of_both) >= 20
                most_s = max(most_s, gap_s)
            answers = sum(len(ends) for ends in ends_s)
            print(f"{swaps} swaps for {answers} answers in {took_s:.0f} s")
            # Each has its turn within: the other's patience, its last answers, two loads.
            assert most_s < 10
            assert 2 <= swaps <= took_s  # for each has a second at least
            assert swaps <= 0.25 * answers

    async def test_a_busy_one_that_gives_way_ends_what_it_has_however_long(self) -> None:
        """For fairness a busy model takes no new request; no deadline cuts one that it has."""
        memory = {"budget_bytes": "150 MiB", "min_residency_s": 0, "fair_wait_s": 0.5}
        timing = {"drain_timeout_s": 0.3}
        config = {"models": [model("a"), model("b")], "memory": memory, "timing": timing}
        with rig(config) as lmx:
            async with http() as session:
                url = lmx.url
                long = Stream(session, url, ask("a", {"tokens": 100, "step_s": 0.03}))
                await long.has_text(5)
                other = Stream(session, url, ask("b", QUICKLY))
                await asyncio.to_thread(lmx.wait_state, "a", "draining")
                late = Stream(session, url, ask("a", QUICKLY))
                await asyncio.gather(long.ended(), other.ended(), late.ended())
            assert (long.text, long.errors) == ("word " * 100, [])
            # Who came while it gave way had to wait its turn.
            assert [(s.text, s.errors) for s in (other, late)] == [(WORDS, [])] * 2
            exits = [(e.model_id, e.data["cause"]) for e in lmx.events("worker.exited")]
            assert exits == [("a", "evicted"), ("b", "evicted")]

    async def test_who_has_just_come_stays_for_a_while(self) -> None:
        memory = {"budget_bytes": "150 MiB", "min_residency_s": 3.0, "fair_wait_s": 0}
        with rig({"models": [model("a"), model("b")], "memory": memory}) as lmx:
            async with http() as session:
                await answered(session, lmx.url, "a")
                await answered(session, lmx.url, "b")
            (ready, _) = lmx.events("worker.ready")
            (evicting,) = lmx.events("model.evicting")
            assert (ready.model_id, evicting.model_id) == ("a", "a")
            assert 2.9 < evicting.at_s - ready.at_s < 6


class TestHeld:
    """What an operator takes out of service by the CLI, and gives back."""

    async def test_a_drained_model_takes_nothing_until_it_is_reset(self) -> None:
        with rig({"models": [model("a", preload=True)]}) as lmx:
            pid = lmx.wait_state("a", "ready")["pid"]
            async with http() as session:
                url = lmx.url
                stream = Stream(session, url, ask("a", {"tokens": 60, "step_s": 0.03}))
                await stream.has_text(20)
                done = await asyncio.to_thread(lmx.cli, "drain", "a")
                assert (done.returncode, f"pid {pid} is gone" in done.stdout) == (0, True)
                await stream.ended()
                assert (stream.text, stream.errors) == ("word " * 60, [])
                assert states(lmx) == {"a": "held"}
                status, error = await whole(session, url, "a", QUICKLY)
                assert (status, error["code"]) == (503, "model_drained")
                assert "lmx-supervisor" in error["message"], "it says what to do"
                done = await asyncio.to_thread(lmx.cli, "reset", "a")
                assert (done.returncode, states(lmx)) == (0, {"a": "cold"})
                await answered(session, url, "a")
            assert [e.name for e in lmx.events("model.held", "model.reset")] == [
                "model.held", "model.reset",
            ]  # fmt: skip

    async def test_requests_meanwhile_are_told_at_once_not_after_the_drain(self) -> None:
        with rig({"models": [model("a", preload=True)]}) as lmx:
            lmx.wait_state("a", "ready")
            async with http() as session:
                url = lmx.url
                stream = Stream(session, url, ask("a", {"tokens": 100_000, "step_s": 0.03}))
                await stream.has_text(20)
                draining = asyncio.create_task(asyncio.to_thread(lmx.cli, "drain", "a"))
                await asyncio.to_thread(
                    wait_until, lambda: states(lmx)["a"] == "draining", "it drains"
                )
                async with asyncio.timeout(5):
                    status, error = await whole(session, url, "a", QUICKLY)
                assert (status, error["code"]) == (503, "model_drained")
                await stream.hang_up()
                assert (await draining).returncode == 0
