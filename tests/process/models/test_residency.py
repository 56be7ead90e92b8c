"""Who may stay in memory and who gives way: eviction, pins, groups, and time."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from lmx.protocol.messages.control import LoadPlan, PinModel, PlanLoad, UnloadModel
from tests.support.rigs.rig import (
    Rig,
    Stream,
    ask,
    http,
    rig,
    scripted,
    serving_too,
    wait_until,
    whole,
)

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


async def idle(lmx: Rig, *names: str) -> None:
    """Wait until the workers have said that they are idle: who was used last is judged by that."""

    def all_are() -> bool:
        return all(lmx.worker(name)["requests_active"] == 0 for name in names)

    await asyncio.to_thread(wait_until, all_are, f"{' and '.join(names)} are idle")


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
                if name == "c":
                    await idle(room_for_two, "a", "b")
                    plan: LoadPlan = await asyncio.to_thread(room_for_two.ask, PlanLoad("c"))
                    assert (plan.outcome, plan.evicts) == ("evicts", ("a",)), plan
                    assert plan.need_bytes == 100 * 2**20
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
        endless = {"tokens": 100_000, "step_s": 0.03}
        async with http() as session:
            url = room_for_two.url
            busy = [Stream(session, url, ask(name, endless)) for name in ("a", "b")]
            await asyncio.gather(*(stream.has_text(5) for stream in busy))
            waiting = Stream(session, url, ask("c", QUICKLY))

            def waits_first() -> bool:
                """It has a place in the queue once its files have been read."""
                return bool(room_for_two.worker("c")["position"] == 1)

            await asyncio.to_thread(wait_until, waits_first, "c is the first that waits")
            await asyncio.gather(*(stream.has_text(len(stream.text) + 20) for stream in busy))
            assert waiting.text == "", "there was room before anybody had ended"
            await busy[0].hang_up()
            await waiting.ended()
            assert waiting.text == WORDS
            assert states(room_for_two) == {"a": "cold", "b": "ready", "c": "ready"}
            await busy[1].has_text(len(busy[1].text) + 20)
            assert not busy[1].errors
            await busy[1].hang_up()

    async def test_a_voice_makes_room_when_it_is_silent_and_comes_back(
        self, room_for_two: Rig
    ) -> None:
        voice = model(
            "voice", engine="tests.support.fakes.scripted_voice:create", kind="speech",
            options={"sentence_s": 0.2},
        )  # fmt: skip
        await asyncio.to_thread(unload, room_for_two, "a", "b", "c")
        with serving_too(room_for_two, voice):
            url = room_for_two.url
            sentence = "This is a sentence of the text. "
            spoken = {"model": "voice", "input": sentence, "response_format": "pcm"}
            async with http() as session:
                async with session.post(f"{url}/audio/speech", json=spoken) as response:
                    assert (response.status, len(await response.read())) == (200, 48_000)
                for name, before in (("a", "voice"), ("b", "a")):
                    await idle(room_for_two, before)
                    await answered(session, url, name)
                assert states(room_for_two)["voice"] == "cold"
                line = await asyncio.to_thread(room_for_two.worker, "voice")
                assert line["last_exit"]["cause"] == "evicted"
                # While it speaks it stays, and whoever needs the memory waits.
                long = {**spoken, "input": sentence * 120}
                speaking = await session.post(f"{url}/audio/speech", json=long)
                await speaking.content.readexactly(48_000)
                assert states(room_for_two) == {
                    "a": "cold", "b": "ready", "c": "cold", "voice": "ready"
                }  # fmt: skip
                # Somebody hears it meanwhile: else its connection would be given up.
                heard = asyncio.create_task(speaking.read())
                await answered(session, url, "c")
                assert states(room_for_two) == {
                    "a": "cold", "b": "cold", "c": "ready", "voice": "ready"
                }  # fmt: skip
                assert not heard.done() or heard.exception() is None
                speaking.close()
                heard.cancel()
                await asyncio.wait({heard})


class TestPinned:
    """Two that are pinned and one that has no room beside them."""

    async def test_everything_is_pinned_is_said_until_one_is_not(self) -> None:
        models = [model("kept"), model("held", pinned=True, preload=True), model("asked")]
        memory = {"budget_bytes": "250 MiB", "min_residency_s": 0}
        # Whoever had to wait for its answer would do so for longer than the client waits.
        server = {"load_wait_s": 600}
        with rig({"models": models, "memory": memory, "server": server}) as lmx:
            await asyncio.to_thread(lmx.wait_state, "held", "ready")
            async with http() as session:
                await answered(session, lmx.url, "kept")
                await asyncio.to_thread(lmx.ask, PinModel("kept", True))
                status, error = await whole(session, lmx.url, "asked", QUICKLY)
                assert (status, error["code"]) == (503, "insufficient_memory")
                for word in ("kept", "held", "pinned", "100 MiB", "250 MiB"):
                    assert word in error["message"]
                assert states(lmx) == {"kept": "ready", "held": "ready", "asked": "cold"}
                async with session.get(f"{lmx.url}/models/asked") as listed:
                    assert (await listed.json())["state"] == "cold"
                done = await asyncio.to_thread(lmx.cli, "unpin", "kept")
                assert done.returncode == 0, done.stderr
                await answered(session, lmx.url, "asked")
            assert states(lmx) == {"kept": "cold", "held": "ready", "asked": "ready"}


@pytest.fixture(scope="class")
def with_keep_alive() -> Iterator[Rig]:
    models = [
        model("global"), model("own", keep_alive=0.4), model("stays", keep_alive=-1),
        model("working"), model("pinned", pinned=True),
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
            for name in ("own", "global"):
                await asyncio.to_thread(with_keep_alive.wait_state, name, "cold")
            await working.ended()
            assert (working.text, working.errors) == ("word " * 50, [])
            await asyncio.to_thread(with_keep_alive.wait_state, "working", "cold")
        stayed_s = {
            exited.model_id: exited.at_s - ready.at_s
            for exited in with_keep_alive.events("worker.exited")
            for ready in with_keep_alive.events("worker.ready")
            if ready.model_id == exited.model_id
        }
        # Their request was answered after they were ready; that of ``working`` took 2.9 s at least.
        for name, least_s in (("own", 0.4), ("global", 2.0), ("working", 2.9 + 2.0)):
            assert stayed_s[name] > least_s - 0.1, name
        after = {line["model"]: line for line in with_keep_alive.status()["workers"]}
        assert (after["stays"]["state"], after["pinned"]["state"]) == ("ready", "ready")
        for name in ("global", "own", "working"):
            assert after[name]["last_exit"]["cause"] == "expired"
        assert after["stays"]["expires_in_s"] is None


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
