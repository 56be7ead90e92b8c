"""A supervisor that says nothing: stopped, hung, dead. What runs goes on, and can be ended."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psutil
import pytest

from lmx.protocol.errors import OperationError
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home
from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until

pytestmark = pytest.mark.long

TWO = {"models": [scripted("alpha"), scripted("beta")]}
LEFT_ALONE = {**TWO, "timing": {"beat_timeout_s": 600, "stall_timeout_s": 600}}
"""Nobody looks after a supervisor that is silent for less than that."""


def supervisor_of(lmx: Rig) -> int:
    assert lmx.supervisor is not None
    return lmx.supervisor.pid


def reaped(lmx: Rig) -> None:
    """Take note of the end of the supervisor that the rig started."""
    assert lmx.supervisor is not None
    lmx.supervisor.wait(180)
    lmx.supervisor = None


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    with rig(LEFT_ALONE) as lmx:
        yield lmx


@pytest.fixture
def left_alone(shared: Rig) -> Rig:
    """The one of two tests, started again if the other has ended it."""
    if shared.supervisor is None:
        shared.up()
    return shared


async def test_kill_works_while_the_supervisor_is_stopped(left_alone: Rig) -> None:
    lmx = left_alone
    first = lmx.wait_state("alpha", "ready")
    beta = lmx.wait_state("beta", "ready")
    async with http() as session:
        hung = Stream(session, lmx.url, ask("alpha", {"tokens": 50, "hang_at": 5}))
        await hung.has_text(25)
        os.kill(supervisor_of(lmx), signal.SIGSTOP)
        done = lmx.cli("kill", "alpha")
        assert (done.returncode, done.stderr) == (0, "")
        for words in ("does not answer: it is stopped", f"pid {first['pid']}", "starts it again"):
            assert words in done.stdout
        assert (
            not psutil.pid_exists(first["pid"])
            or psutil.Process(first["pid"]).status() == psutil.STATUS_ZOMBIE
        )
        assert psutil.pid_exists(beta["pid"])
        unknown = lmx.cli("kill", "gamma")
        assert (unknown.returncode, f"beta (pid {beta['pid']})" in unknown.stderr) == (1, True)
        os.kill(supervisor_of(lmx), signal.SIGCONT)
        again = lmx.wait_state("alpha", "ready")
        assert again["pid"] != first["pid"]
        await hung.ended()
        assert len(hung.errors) == 1


def test_stop_leaves_nothing_behind_of_what_is_stopped(left_alone: Rig) -> None:
    lmx = left_alone
    for name in ("alpha", "beta"):
        os.kill(lmx.wait_state(name, "ready")["pid"], signal.SIGSTOP)
    router = lmx.status()["router"]["pid"]
    for pid in (router, supervisor_of(lmx)):
        os.kill(pid, signal.SIGSTOP)
    done = lmx.cli("stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert "does not answer: it is stopped" in done.stdout
    reaped(lmx)
    assert lmx.processes() == []


def test_kill_and_stop_work_while_there_is_no_supervisor() -> None:
    with rig(TWO) as lmx:
        first = lmx.wait_state("alpha", "ready")
        beta = lmx.wait_state("beta", "ready")["pid"]
        os.kill(supervisor_of(lmx), signal.SIGKILL)
        reaped(lmx)
        status = lmx.cli("status")
        assert (status.returncode, "still serves" in status.stderr) == (3, True)
        for record in (lmx.home / "state" / "workers").iterdir():
            record.unlink()  # lost: the process is found all the same
        done = lmx.cli("kill", "alpha")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Nobody starts it again" in done.stdout
        assert first["pid"] not in [process.pid for process in lmx.processes()]
        os.kill(beta, signal.SIGSTOP)
        done = lmx.cli("stop")
        assert (done.returncode, done.stderr) == (0, "")
        assert lmx.processes() == []
        assert "still serves" not in lmx.cli("status").stderr


def test_stop_ends_one_that_is_just_starting() -> None:
    with closing(Rig(TWO)) as lmx:
        lmx.up(wait=False)
        wait_until(lambda: (lmx.home / "lock").exists(), "it holds the lock")
        done = lmx.cli("stop")
        assert done.returncode == 0, done.stderr
        reaped(lmx)
        assert lmx.processes() == []


@contextmanager
def kept_stopped(pid: int) -> Iterator[None]:
    """Have a process be stopped again whenever it is woken, until it is gone."""
    over = threading.Event()

    def stop_again() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    thread = threading.Thread(target=stop_again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def supervisor_pid(lmx: Rig) -> int | None:
    """The pid of the supervisor that answers, None if none does."""
    with contextlib.suppress(OperationError), ControlClient(Home(lmx.home), 1.0) as client:
        return client.status().supervisor.pid
    return None


def other_supervisor(lmx: Rig, pid: int) -> int:
    """Wait for a supervisor that is another one; returns its pid."""

    def other() -> int | None:
        found = supervisor_pid(lmx)
        return found if found not in (None, pid) else None

    new: int = wait_until(other, "another supervisor answers", 300)
    return new


async def test_a_supervisor_is_woken_or_replaced_and_adopts_what_runs() -> None:
    with closing(Rig({"models": [scripted("alpha"), scripted("beta")]})) as lmx:
        done = lmx.cli("start", "--config", str(lmx.config_path))
        assert done.returncode == 0, done.stderr
        pids = {name: lmx.wait_state(name, "ready")["pid"] for name in ("alpha", "beta")}
        url, router = lmx.url, lmx.status()["router"]["pid"]
        first = lmx.status()["supervisor"]["pid"]
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: supervisor_pid(lmx) == first, "it was woken", 300)
        async with http() as session:
            stream = Stream(session, url, ask("alpha", {"tokens": 2000, "step_s": 0.02}))
            await stream.has_text(50)
            with kept_stopped(first):
                second = await asyncio.to_thread(other_supervisor, lmx, first)
            os.kill(second, signal.SIGKILL)
            third = await asyncio.to_thread(other_supervisor, lmx, second)
            for name, pid in pids.items():
                assert lmx.wait_state(name, "ready")["pid"] == pid
            assert (lmx.status()["router"]["pid"], lmx.url) == (router, url)
            (event,) = lmx.events("supervisor.took_over")
            assert "died" in event.detail
            assert stream.errors == []
            await stream.hang_up()
        # It is no stray: `stop` ends it as any other, and nobody brings it back.
        os.kill(third, signal.SIGKILL)
        assert lmx.cli("stop").returncode == 0
        wait_until(lambda: lmx.lasting() == [], "all have ended")
        # What read the models' files for it ends by itself, once it runs.
        wait_until(lambda: not lmx.processes(), "its readers have ended too", 90)
        assert supervisor_pid(lmx) is None
