"""Who dies, and what happens: real processes, a scripted engine, one fault at a time."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from lmx.protocol.messages.control import LoadModel, UnloadModel
from tests.support.rigs.rig import (
    QUICK,
    Rig,
    Stream,
    ask,
    command_of,
    http,
    rig,
    scripted,
    wait_until,
)

TWO = {"models": [scripted("alpha"), scripted("beta")]}
SHARED = {
    "models": [
        *TWO["models"],
        scripted("strict", stall_timeout_s=2.0),
        scripted("patient", preload=False, stall_timeout_s=600),
        scripted("forking", preload=False, options={"children": True}),
    ],
    # What ends in one test is soon there for the next one.
    "restart": {"max_failures": 1000, "backoff_base_s": 0.1, "backoff_max_s": 0.2},
}
LONG = {"tokens": 200, "step_s": 0.02}
ENDLESS = {"tokens": 100_000, "step_s": 0.02}


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    with rig(SHARED) as running:
        yield running


@pytest.fixture
def lmx(shared: Rig) -> Rig:
    """The one of all tests here, whole again after what the last test did to it."""
    shared.wait_state("alpha", "ready")
    shared.wait_state("beta", "ready")
    return shared


def workers(lmx: Rig) -> set[int]:
    return {process.pid for process in lmx.running("lmx.worker")}


async def test_a_crash_is_one_error_event_and_nothing_to_the_others(lmx: Rig) -> None:
    before = {name: lmx.wait_state(name, "ready") for name in ("alpha", "beta")}
    assert before["alpha"]["pid"] != before["beta"]["pid"]
    router = lmx.status()["router"]["pid"]
    async with http() as session:
        url = lmx.url
        dying = Stream(session, url, ask("alpha", ENDLESS))
        living = Stream(session, url, ask("beta", LONG))
        await asyncio.gather(dying.has_text(50), living.has_text(50))
        os.kill(before["alpha"]["pid"], signal.SIGKILL)
        await dying.ended()
        assert [error["code"] for error in dying.errors] == ["worker_crashed"]
        assert "SIGKILL" in dying.errors[0]["message"]
        assert (dying.done, dying.after_error) == (False, 0)
        again = Stream(session, url, ask("alpha", {"tokens": 3}))
        await again.ended()
        assert (again.text, again.finish_reason) == ("word word word ", "stop")
        await living.ended()
        assert (living.text, living.errors) == ("word " * 200, [])
        assert living.done
    after = await asyncio.to_thread(lmx.wait_state, "alpha", "ready")
    assert after["pid"] != before["alpha"]["pid"]
    assert after["restarts"] == before["alpha"]["restarts"] + 1
    assert after["last_exit"]["cause"] == "signal"
    status = lmx.status()
    assert status["router"]["pid"] == router
    assert lmx.worker("beta")["pid"] == before["beta"]["pid"]


async def test_a_stopped_worker_is_found_killed_and_started_again(lmx: Rig) -> None:
    first = lmx.wait_state("alpha", "ready")
    lmx.wait_state("beta", "ready")
    async with http() as session:
        url = lmx.url
        hung = Stream(session, url, ask("alpha", ENDLESS))
        other = Stream(session, url, ask("beta", LONG))
        await asyncio.gather(hung.has_text(50), other.has_text(20))
        os.kill(first["pid"], signal.SIGSTOP)
        stopped_s = time.monotonic()
        await hung.ended()
        took_s = time.monotonic() - stopped_s
        assert [error["code"] for error in hung.errors] == ["worker_hung"]
        assert not hung.done
        assert took_s > QUICK["beat_timeout_s"] - QUICK["beat_interval_s"] - 0.1
        second = await asyncio.to_thread(lmx.wait_state, "alpha", "ready")
        assert second["pid"] != first["pid"]
        assert not psutil.pid_exists(first["pid"])
        await other.ended()
        assert (other.text, other.errors) == ("word " * 200, [])


async def test_slow_is_not_hung(lmx: Rig) -> None:
    """A long prefill and slow tokens make progress: longer than the limit, never killed."""
    first = lmx.wait_state("strict", "ready")
    async with http() as session:
        slow = Stream(
            session, lmx.url, ask("strict", {"tokens": 4, "prefill_s": 3.0, "step_s": 0.6})
        )
        await slow.ended()
    assert (slow.text, slow.errors) == ("word " * 4, [])
    assert lmx.worker("strict")["pid"] == first["pid"]


async def test_kill_by_hand_works_at_once_on_a_hung_model(lmx: Rig) -> None:
    router = lmx.status()["router"]["pid"]
    async with http() as session:
        hung = Stream(session, lmx.url, ask("patient", {"tokens": 50, "hang_at": 5}))
        await hung.has_text(25)
        first = lmx.worker("patient")
        done = await asyncio.to_thread(lmx.cli, "kill", "patient")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"killed patient (pid {first['pid']})" in done.stdout
        await hung.ended()
        assert [error["code"] for error in hung.errors] == ["worker_killed"]
    second = lmx.wait_state("patient", "ready")
    assert second["pid"] != first["pid"]
    assert (second["last_exit"]["cause"], second["exits"]["killed"]) == ("killed", 1)
    assert [e.data["cause"] for e in lmx.events("worker.exited") if e.model_id == "patient"] == [
        "killed"
    ]
    assert lmx.status()["router"]["pid"] == router
    lmx.ask(UnloadModel("patient"))
    lmx.wait_state("patient", "cold")


async def test_a_killed_supervisor_is_replaced_and_nothing_is_loaded_again(lmx: Rig) -> None:
    before = {name: lmx.wait_state(name, "ready") for name in ("alpha", "beta")}
    lmx.wait_state("strict", "ready")
    held = workers(lmx)
    router = lmx.status()["router"]["pid"]
    async with http() as session:
        url = lmx.url
        stream = Stream(session, url, ask("alpha", LONG))
        await stream.has_text(50)
        assert lmx.supervisor is not None
        lmx.supervisor.kill()
        lmx.supervisor.wait()
        assert lmx.cli("status").returncode == 3
        warm = Stream(session, url, ask("beta", {"tokens": 3}))
        await warm.ended()
        assert warm.text == "word " * 3, "warm models serve on"
        await asyncio.to_thread(lmx.up)
        for name in ("alpha", "beta"):
            after = await asyncio.to_thread(lmx.wait_state, name, "ready")
            assert after["pid"] == before[name]["pid"]
            assert after["instance"] == before[name]["instance"]
        assert lmx.status()["router"]["pid"] == router
        await stream.ended()
        assert (stream.text, stream.errors) == ("word " * 200, [])
        late = Stream(session, url, ask("alpha", {"tokens": 3}))
        await late.ended()
        assert late.text == "word " * 3
    assert workers(lmx) == held, "no second copy"
    assert lmx.url == url
    # What was adopted is watched like a child: it comes back when it dies.
    os.kill(before["alpha"]["pid"], signal.SIGKILL)
    wait_until(
        lambda: lmx.worker("alpha")["pid"] not in (None, before["alpha"]["pid"]), "a new alpha"
    )
    os.kill(router, signal.SIGKILL)
    wait_until(lambda: lmx.status()["router"]["pid"] not in (None, router), "a new router")
    assert lmx.url == url, "any port means: the same one again"


async def test_a_killed_router_is_back_and_what_it_left_is_cancelled(lmx: Rig) -> None:
    before = lmx.wait_state("alpha", "ready")
    url = lmx.url
    old = lmx.status()["router"]
    seen = len(lmx.log_events("worker-alpha", "stream.cancelled"))
    async with http() as session:
        lost = Stream(session, url, ask("alpha", {"tokens": 100_000, "step_s": 0.02}))
        await lost.has_text(50)
        os.kill(old["pid"], signal.SIGKILL)
        killed_s = time.monotonic()
        # A connection made meanwhile waits in the listening socket instead of failing.
        again = Stream(session, url, ask("alpha", {"tokens": 3}))
        await again.ended()
        assert (again.status, again.text) == (200, "word " * 3)
        print(f"answered {time.monotonic() - killed_s:.2f} s after the kill")
        await lost.ended()
        assert lost.broken
    wait_until(lambda: lmx.worker("alpha")["requests_active"] == 0, "the lost row is free")
    (cancelled,) = lmx.log_events("worker-alpha", "stream.cancelled")[seen:]
    assert cancelled["where"] == "decode"
    after = lmx.worker("alpha")
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])
    assert lmx.status()["router"]["restarts"] == old["restarts"] + 1


async def test_clients_of_a_router_that_hangs_get_an_error_before_it_is_ended(lmx: Rig) -> None:
    lmx.wait_state("alpha", "ready")
    url, router = lmx.url, lmx.status()["router"]["pid"]
    async with http() as session:
        lost = Stream(session, url, ask("alpha", {"tokens": 100_000, "step_s": 0.02}))
        await lost.has_text(20)
        os.kill(router, signal.SIGSTOP)
        await lost.ended()
        assert [error["code"] for error in lost.errors] == ["router_hung"]
        assert not lost.broken
        again = Stream(session, url, ask("alpha", {"tokens": 3}))
        await again.ended()
        assert (again.status, again.text) == (200, "word " * 3)
    wait_until(lambda: lmx.status()["router"]["pid"] not in (None, router), "a new router")


def forked(lmx: Rig) -> list[psutil.Process]:
    return [p for p in lmx.processes() if "time.sleep(9999)" in " ".join(command_of(p))]


@pytest.mark.parametrize("how", ["crash", "dead supervisor"])
def test_what_a_worker_forked_ends_with_it(how: str, lmx: Rig) -> None:
    lmx.ask(LoadModel("forking"))
    worker = lmx.wait_state("forking", "ready")["pid"]
    children = forked(lmx)
    assert len(children) == 2
    if how == "crash":
        os.kill(worker, signal.SIGKILL)
    else:
        assert lmx.supervisor is not None
        lmx.supervisor.kill()
        lmx.supervisor.wait()
        os.kill(worker, signal.SIGKILL)
        lmx.up()
    wait_until(lambda: not any(child.is_running() for child in children), "they are gone")
    if how != "dead supervisor":
        lmx.wait_state("forking", "ready")
    lmx.ask(UnloadModel("forking"))
    wait_until(lambda: not forked(lmx), "those of the next worker too")


async def test_a_prompt_that_hangs_its_worker_is_not_tried_on_the_next_one(lmx: Rig) -> None:
    """What waits behind it is: it has done nothing."""
    first = lmx.wait_state("strict", "ready")
    async with http() as session:
        body = ask("strict", {"encode_s": 600}) | {"stream": False}
        hanging = asyncio.ensure_future(session.post(f"{lmx.url}/chat/completions", json=body))
        await asyncio.to_thread(
            wait_until, lambda: lmx.worker("strict")["requests_queued"] == 1, "it is being prepared"
        )
        behind = Stream(session, lmx.url, ask("strict", {"tokens": 3}))
        async with await hanging as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (500, "worker_hung")
            assert response.headers["X-Should-Retry"] == "false"
        await behind.ended()
        assert (behind.text, behind.errors) == ("word word word ", [])
    second = await asyncio.to_thread(lmx.wait_state, "strict", "ready")
    assert second["pid"] != first["pid"]
    assert second["restarts"] == first["restarts"] + 1
