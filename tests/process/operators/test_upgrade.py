"""Router and supervisor are replaced by others while all goes on: streams, workers, the port."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until

pytestmark = pytest.mark.long

ONE = {"models": [scripted("alpha")]}
TWO = {"models": [scripted("alpha"), scripted("beta"), scripted("gamma")]}


def zombies_of(pid: int) -> list[int]:
    """Return the children that have ended and that nobody took note of."""
    children = psutil.Process(pid).children()
    return [child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE]


def retired(lmx: Rig, pid: int) -> Any:
    """Whether a router that was replaced is gone."""
    return lmx.status()["router"]["retiring"] == 0 and not psutil.pid_exists(pid)


async def restarted(lmx: Rig, *arguments: str) -> str:
    """Run ``restart`` while streams are read; returns what it prints."""
    done = await asyncio.to_thread(lmx.cli, "restart", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def one() -> Iterator[Rig]:
    with rig(ONE) as lmx:
        yield lmx


async def test_no_request_is_lost_while_routers_come_and_go(one: Rig) -> None:
    lmx = one
    worker = lmx.wait_state("alpha", "ready")
    url, old = lmx.url, lmx.status()["router"]["pid"]
    answered: list[int | None] = []

    async def ask_on(restarting: asyncio.Task[str]) -> None:
        async with http() as session:
            while not restarting.done() or len(answered) < 8:
                stream = Stream(session, url, ask("alpha", {"tokens": 3}))
                await stream.ended()
                assert (stream.text, stream.broken) == ("word " * 3, False)
                answered.append(stream.status)
                # Some tens of each client are enough, and leave the processor to the new router.
                await asyncio.sleep(0.02)

    async with http() as session:
        running = Stream(session, url, ask("alpha", {"tokens": 100_000, "step_s": 0.02}))
        await running.has_text(20)
        restarting = asyncio.create_task(restarted(lmx, "--router"))
        await asyncio.gather(*(ask_on(restarting) for _ in range(4)))
        status = lmx.status()["router"]
        assert str(status["pid"]) in await restarting
        assert (status["pid"] != old, status["retiring"], lmx.url) == (True, 1, url)
        await running.has_text(len(running.text) + 20)
        assert not running.errors
        await running.hang_up()
    assert len(answered) >= 8
    assert set(answered) == {200}
    wait_until(lambda: retired(lmx, old), "the old router is gone")
    assert lmx.worker("alpha")["pid"] == worker["pid"]
    assert status["restarts"] == 0


async def test_streams_of_a_retiring_router_end_with_the_drain_timeout() -> None:
    config = {**ONE, "timing": {"drain_timeout_s": 1.5, "shutdown_grace_s": 1}}
    with rig(config) as lmx:
        lmx.wait_state("alpha", "ready")
        old = lmx.status()["router"]["pid"]
        async with http() as session:
            running = Stream(session, lmx.url, ask("alpha", {"tokens": 3000, "step_s": 0.02}))
            await running.has_text(20)
            await restarted(lmx, "--router")
            await running.ended()
        assert [error["code"] for error in running.errors] == ["shutting_down"]
        wait_until(lambda: retired(lmx, old), "the old router is gone")


async def test_a_new_supervisor_takes_over_in_the_same_process() -> None:
    """With a stream through a router that retires: it is no stranger to the new supervisor."""
    with rig(TWO) as lmx:
        worker = lmx.wait_state("alpha", "ready")
        for command in (("unload", "beta"), ("drain", "gamma")):
            assert lmx.cli(*command).returncode == 0
        before, old_router = lmx.status(), lmx.status()["router"]["pid"]
        assert lmx.supervisor is not None
        async with http() as session:
            running = Stream(session, lmx.url, ask("alpha", {"tokens": 500, "step_s": 0.02}))
            await running.has_text(20)
            await restarted(lmx, "--router")
            router = lmx.status()["router"]
            await restarted(lmx, "--supervisor")
            after = lmx.status()
            assert after["supervisor"]["pid"] == before["supervisor"]["pid"] == lmx.supervisor.pid
            assert after["supervisor"]["epoch"] != before["supervisor"]["epoch"]
            assert (after["router"]["pid"], after["router"]["port"]) == (
                router["pid"],
                router["port"],
            )
            await running.ended()
        assert (running.text, running.errors) == ("word " * 500, [])
        wait_until(lambda: retired(lmx, old_router), "the old router is gone")
        states = {line["model"]: (line["state"], line["pid"]) for line in lmx.status()["workers"]}
        assert states == {
            "alpha": ("ready", worker["pid"]),
            "beta": ("cold", None),
            "gamma": ("drained", None),
        }
        # Children that an earlier program started are reaped all the same, with their status.
        os.kill(worker["pid"], signal.SIGKILL)
        wait_until(lambda: lmx.worker("alpha")["last_exit"], "its end was seen")
        assert lmx.worker("alpha")["last_exit"]["cause"] == "signal"
        assert lmx.wait_state("alpha", "ready")["pid"] != worker["pid"]
        # The listening socket came along, and so did the lock.
        await restarted(lmx, "--router")
        wait_until(lambda: retired(lmx, router["pid"]), "the second router is gone")
        assert lmx.status()["router"]["port"] == router["port"]
        assert lmx.status()["router"]["restarts"] == 0
        again = lmx.cli("up", "--config", str(lmx.config_path))
        assert (again.returncode, str(lmx.supervisor.pid) in again.stderr) == (5, True)
        pid = lmx.supervisor.pid
        wait_until(lambda: zombies_of(pid) == [], "no zombie stays")


def test_a_program_that_can_not_start_replaces_nobody(one: Rig) -> None:
    lmx = one
    lmx.wait_state("alpha", "ready")
    epoch = lmx.status()["supervisor"]["epoch"]
    good = lmx.config_path.read_text()
    lmx.config_path.write_text("server: {port: nine}")
    done = lmx.cli("restart", "--supervisor")
    assert (done.returncode, "server.port" in done.stderr) == (4, True)
    assert "term_grace_s: 3.0" in good
    lmx.config_path.write_text(good.replace("term_grace_s: 3.0", "term_grace_s: 2.5"))
    done = lmx.cli("restart", "--supervisor")
    assert done.returncode == 4
    assert "has changed (timing)" in done.stderr
    assert lmx.status()["supervisor"]["epoch"] == epoch
    lmx.config_path.write_text(good)


def test_a_stop_that_comes_while_it_is_replaced_is_heeded(one: Rig) -> None:
    # The last of those that share it.
    lmx = one
    lmx.wait_state("alpha", "ready")
    assert lmx.supervisor is not None

    def logged(name: str) -> list[Any]:
        return lmx.log_events("supervisor", f"supervisor.{name}")

    before = logged("replacing")
    command = [sys.executable, "-m", "lmx.supervisor", "restart", "--supervisor"]
    restarting = subprocess.Popen(
        command, env=lmx.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: len(logged("replacing")) > len(before), "it begins")
        assert lmx.stop(signal.SIGTERM) == 0
        assert len(logged("ready")) == 2
    finally:
        restarting.kill()
        restarting.wait()
