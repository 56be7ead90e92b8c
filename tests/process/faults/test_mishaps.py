"""What must not happen to the others when one thing is wrong: bad models, lost records, odd
messages, closed terminals, ill-timed commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from lmx.protocol.messages.control import WorkerHello
from lmx.protocol.states import WorkerState
from lmx.protocol.wire.codec import encode
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.protocol.wire.sockets import Role, open_socket
from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.long

NEEDS_DEV_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
ONE = {"models": [scripted("alpha")]}


@pytest.fixture(scope="module")
def running() -> Iterator[Rig]:
    """One that the tests share which leave it running."""
    with rig(ONE) as lmx:
        yield lmx


def kill_supervisor(lmx: Rig) -> None:
    """End the supervisor as a crash would."""
    assert lmx.supervisor is not None
    lmx.supervisor.kill()
    lmx.supervisor.wait()


@pytest.fixture(scope="module")
def pair() -> Iterator[Rig]:
    """One with two models, which the tests leave as it was, but for the last one."""
    with rig({"models": [scripted("alpha"), scripted("beta")]}) as lmx:
        yield lmx


WITH_BRACKETS = "bad [/INST] in list[str] [bold"


@pytest.fixture(scope="module")
def beside_bad_models() -> Iterator[Rig]:
    """A good model, a file that no converter reads, and one whose load fails."""
    cut = {"id": "cut", "source": "./cut.gguf", "preload": False}
    bracketed = scripted("bracketed", preload=False, options={"load_error": WITH_BRACKETS})
    # Each try of the file starts the converter, which takes seconds.
    restart = {"max_failures": 1, "backoff_base_s": 0.1, "backoff_max_s": 0.2}
    with closing(Rig({"models": [scripted("alpha"), cut, bracketed], "restart": restart})) as lmx:
        (lmx.root / "cut.gguf").write_bytes(b"GGUF" + b"\0" * 100)
        lmx.up()
        lmx.wait_state("alpha", "ready")
        yield lmx


def test_odd_messages_do_not_end_the_supervisor(running: Rig) -> None:
    lmx = running
    before = lmx.wait_state("alpha", "ready")
    context = zmq.Context()
    socket = open_socket(context, Role.CONTROL_CLIENT)
    socket.connect(RunDirectory(lmx.home / "run").control)
    assert socket.poll(30_000, zmq.POLLOUT)
    for pid in (-1, 0, 2**40, os.getpid()):
        hello = WorkerHello("0badbad0", "alpha", pid, WorkerState.READY)
        socket.send(encode(hello))
    for frame in (b"", b"\x00" * 50, os.urandom(500), encode(hello)[:-3]):
        socket.send(frame)
    after = lmx.worker("alpha")
    context.destroy(linger=0)
    assert (after["state"], after["pid"]) == ("ready", before["pid"])
    # They came over another connection than the question, which may be answered first.
    wait_until(lambda: lmx.log_events("supervisor", "control.bad_frame"), "it is logged")


async def test_lost_records_are_made_up_for(running: Rig) -> None:
    """A supervisor that died between starting a process and writing it down."""
    lmx = running
    before = lmx.wait_state("alpha", "ready")
    url, router = lmx.url, lmx.status()["router"]["pid"]
    kill_supervisor(lmx)
    (lmx.home / "state" / "router.json").unlink()
    for record in (lmx.home / "state" / "workers").iterdir():
        record.unlink()
    config = json.loads(json.dumps({**ONE, "server": {"port": int(url.split(":")[2][:-3])}}))
    lmx.configure(config)
    lmx.up()
    after = lmx.wait_state("alpha", "ready")
    assert (after["pid"], after["instance"]) == (before["pid"], before["instance"])
    assert (lmx.status()["router"]["pid"], lmx.url) == (router, url)
    async with http() as session:
        stream = Stream(session, url, ask("alpha", {"tokens": 3}))
        await stream.ended()
        assert stream.text == "word " * 3
    assert len(lmx.lasting()) == 3


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=NEEDS_DEV_FULL)])
def test_an_output_that_nobody_takes_any_more_leaves_nothing_behind(full: bool) -> None:
    with closing(Rig(ONE)) as lmx:
        reader, writer = os.pipe()
        if full:
            os.close(writer)
            writer = os.open("/dev/full", os.O_WRONLY)
        lmx.supervisor = subprocess.Popen(
            [sys.executable, "-m", "lmx.supervisor", "up", "--config", str(lmx.config_path)],
            stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, env=lmx.environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(writer)
        lmx.wait_serving()
        os.close(reader)
        lmx.wait_state("alpha", "ready")
        assert lmx.stop(signal.SIGTERM) == 0
        assert lmx.processes() == []


async def test_unload_returns_though_requests_keep_coming(running: Rig) -> None:
    lmx = running
    first = lmx.wait_state("alpha", "ready")["pid"]
    async with http() as session:
        url = lmx.url
        early = Stream(session, url, ask("alpha", {"tokens": 600, "step_s": 0.02}))
        await early.has_text(20)
        unloading = asyncio.create_task(asyncio.to_thread(lmx.cli, "unload", "alpha"))
        await asyncio.to_thread(lmx.wait_state, "alpha", "draining")
        late = Stream(session, url, ask("alpha", {"tokens": 3}))
        done = await unloading
        assert (done.returncode, f"pid {first} is gone" in done.stdout) == (0, True)
        await asyncio.gather(early.ended(), late.ended())
    assert (early.text, early.errors) == ("word " * 600, [])
    assert (late.text, late.errors) == ("word " * 3, [])
    assert lmx.wait_state("alpha", "ready")["pid"] != first


@pytest.fixture(scope="module")
def slow() -> Iterator[Rig]:
    """One whose model takes long to load, which no test waits for."""
    config = {"models": [scripted("slow", preload=False, options={"load_s": 100})]}
    with rig({**config, "timing": {"load_stall_timeout_s": 30}}) as lmx:
        yield lmx


async def test_unload_is_not_undone_by_a_request_that_waited(slow: Rig) -> None:
    lmx = slow
    spawned = len(lmx.log_events("supervisor", "worker.spawned"))
    async with http() as session:
        # Not a stream: that would have begun by now where the command takes long to start.
        waiting = asyncio.create_task(whole(session, lmx.url, "slow", {"tokens": 3}))
        await asyncio.to_thread(lmx.wait_state, "slow", "loading")
        done = await asyncio.to_thread(lmx.cli, "unload", "slow")
        assert (done.returncode, "again" in done.stdout) == (0, False)
        status, error = await waiting
    assert (status, error["code"]) == (503, "model_unloaded")
    assert lmx.worker("slow")["state"] == "cold"
    assert len(lmx.log_events("supervisor", "worker.spawned")) - spawned == 1


async def test_a_source_that_keeps_failing_is_quarantined(beside_bad_models: Rig) -> None:
    lmx = beside_bad_models
    codes = []
    async with http() as session:
        url = f"{lmx.url}/chat/completions"
        for _ in range(4):
            async with session.post(url, json=ask("cut", "hi", stream=False)) as response:
                codes.append((response.status, (await response.json())["error"]["code"]))
    assert {status for status, _ in codes} == {503}
    assert codes[-1][1] == "model_quarantined"
    fetches = lmx.log_events("supervisor", "model.fetching")
    assert [event["model"] for event in fetches] == ["cut", "cut"]


def test_a_home_that_can_not_be_used_is_said_so() -> None:
    with closing(Rig(ONE)) as lmx:
        blocked = lmx.root / "file"
        blocked.touch()
        lmx.home, home = blocked / "home", lmx.home
        done = lmx.cli("up", "--config", str(lmx.config_path))
        lmx.home = home
        assert (done.returncode, done.stderr.count("\n")) == (4, 1)
        assert str(blocked) in done.stderr
        lmx.home.chmod(0o777)
        done = lmx.cli("up", "--config", str(lmx.config_path))
        assert (done.returncode, "other users" in done.stderr) == (4, True)


async def test_a_habitual_hangup_signal_costs_nobody_a_stream(running: Rig) -> None:
    lmx = running
    before = lmx.wait_state("alpha", "ready")
    router = lmx.status()["router"]["pid"]
    for pid in (before["pid"], router):
        os.kill(pid, signal.SIGHUP)
    async with http() as session:
        assert (await whole(session, lmx.url, "alpha", {"tokens": 1}))[0] == 200
    assert lmx.worker("alpha")["pid"] == before["pid"]
    assert lmx.status()["router"]["pid"] == router


def test_a_load_that_somebody_else_undoes_returns(slow: Rig) -> None:
    lmx = slow
    command = [sys.executable, "-m", "lmx.supervisor", "load", "slow"]
    loading = subprocess.Popen(
        command, env=lmx.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lmx.wait_state("slow", "loading")
    assert lmx.cli("unload", "slow").returncode == 0
    _, errors = loading.communicate(timeout=90)
    assert (loading.returncode, "unloaded meanwhile" in errors) == (1, True)


def test_stopping_ends_a_fetch_too(smollm2_gguf: Path) -> None:
    with closing(Rig({"models": [{"id": "imported", "source": str(smollm2_gguf)}]})) as lmx:
        lmx.up()
        lmx.wait_state("imported", "fetching")
        fetches = lmx.running("lmx.supervisor.fetch.main")
        assert len(fetches) == 1
        assert lmx.stop() == 0
        assert lmx.processes() == []
        assert list((lmx.home / "models").glob("*/config.json")) == []


def test_nothing_is_imported_from_the_working_directory() -> None:
    lmx = Rig(ONE)
    try:
        cwd: Path = lmx.root / "cwd"
        for module in ("psutil.py", "structlog.py", "orjson.py", "msgpack.py"):
            (cwd / module).write_text("raise SystemExit('imported from the working directory')")
        done = lmx.cli("start", "--config", str(lmx.config_path))
        # `python -m` of the test itself looks there; what it starts must not.
        assert "imported from the working directory" in done.stderr
        script = Path(sys.executable).with_name("lmx")
        started = subprocess.run(
            [script, "start", "--config", str(lmx.config_path)],
            env=lmx.environment, cwd=cwd, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert started.returncode == 0, started.stderr

        def ready() -> bool:
            found = subprocess.run(
                [script, "status", "--json"],
                env=lmx.environment, cwd=cwd, capture_output=True, check=True,
            )  # fmt: skip
            return bool(json.loads(found.stdout)["workers"][0]["state"] == "ready")

        wait_until(ready, "alpha is ready")
        subprocess.run([script, "stop"], env=lmx.environment, cwd=cwd, check=True)
    finally:
        for path in (lmx.root / "cwd").glob("*.py"):
            path.unlink()
        lmx.close()


def test_a_problem_with_brackets_is_shown_as_it_is(beside_bad_models: Rig) -> None:
    lmx = beside_bad_models
    assert lmx.cli("load", "bracketed").returncode == 1
    lmx.wait_state("bracketed", "quarantined")
    done = lmx.cli("status")
    assert (done.returncode, WITH_BRACKETS in done.stdout) == (0, True)
    wait_until(lambda: WITH_BRACKETS in lmx.output.read_text(), "up shows it too")


def test_a_drain_survives_the_supervisors_death(pair: Rig) -> None:
    lmx = pair
    for name in ("alpha", "beta"):
        lmx.wait_state(name, "ready")
    assert lmx.cli("drain", "alpha").returncode == 0
    kill_supervisor(lmx)
    lmx.up()
    assert lmx.wait_state("beta", "ready")["state"] == "ready"
    assert lmx.worker("alpha")["state"] == "drained"
    assert lmx.cli("load", "alpha").returncode == 0
    kill_supervisor(lmx)
    lmx.up()
    lmx.wait_state("alpha", "ready")


def test_what_has_no_place_any_more_is_ended(pair: Rig) -> None:
    """The router's address and the models have changed while no supervisor ran."""
    lmx = pair
    old = {name: lmx.wait_state(name, "ready")["pid"] for name in ("alpha", "beta")}
    router = lmx.status()["router"]["pid"]
    kill_supervisor(lmx)
    lmx.configure({"models": [scripted("beta")], "server": {"host": "localhost"}})
    lmx.up()
    assert lmx.wait_state("beta", "ready")["pid"] == old["beta"]
    assert lmx.status()["router"]["pid"] != router
    assert {process.pid for process in lmx.processes()}.isdisjoint({old["alpha"], router})
