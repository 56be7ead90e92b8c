"""lmx as scripts use it: exit codes, JSON, start and stop, logs, nothing left."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from lmx.protocol.messages.control import LoadModel, UnloadModel
from tests.support.rigs.rig import Rig, rig, scripted, wait_until

ONE = {"models": [scripted("alpha", aliases=["al/ias"])]}


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    """The one of most tests here."""
    with rig(ONE) as lmx:
        yield lmx


@pytest.fixture
def running(shared: Rig) -> Rig:
    """The shared one with its model loaded, started again after a test that ended it."""
    if shared.supervisor is None:
        shared.up()
    shared.wait_state("alpha", "ready")
    return shared


def test_a_second_interrupt_ends_at_once_even_what_hangs() -> None:
    config = {**ONE, "timing": {"term_grace_s": 600, "shutdown_grace_s": 600}}
    with rig(config) as lmx:
        worker = lmx.wait_state("alpha", "ready")
        psutil.Process(worker["pid"]).suspend()
        assert lmx.supervisor is not None
        lmx.supervisor.send_signal(signal.SIGINT)
        wait_until(lambda: lmx.log_events("supervisor", "supervisor.stopping"), "it stops")
        assert lmx.stop() == 0, "long before the ten minutes that it may take"


def test_status_is_json_for_scripts_and_a_table_for_people(running: Rig) -> None:
    lmx = running
    status = lmx.status()
    assert set(status) == {"supervisor", "router", "workers"}
    (worker,) = status["workers"]
    assert (worker["model"], worker["state"]) == ("alpha", "ready")
    assert worker["memory_bytes"] > 0
    assert psutil.pid_exists(worker["pid"])
    table = lmx.cli("status").stdout
    for word in ("alpha", "ready", str(worker["pid"]), status["router"]["url"]):
        assert word in table


def test_exit_codes_and_messages(running: Rig) -> None:
    lmx = running
    again = lmx.cli("up", "--config", str(lmx.config_path))
    assert (again.returncode, "running already" in again.stderr) == (5, True)
    for command in ("load", "unload", "kill", "restart"):
        unknown = lmx.cli(command, "nobody")
        assert unknown.returncode == 1
        assert "no model is named 'nobody'; known: alpha" in unknown.stderr
    assert lmx.cli("load", "al/ias").returncode == 0
    # Its memory is measured twice a second, and what came back is known only then.
    wait_until(lambda: lmx.worker("alpha")["memory_bytes"] > 0, "a beat")
    back = re.compile(r"; (\d+ MiB came back in [\d.]+ s)$")
    unloaded = lmx.cli("unload", "alpha")
    assert (unloaded.returncode, bool(back.search(unloaded.stdout.strip()))) == (0, True)
    killed = lmx.cli("kill", "alpha")
    assert (killed.returncode, "no worker process" in killed.stderr) == (1, True)
    assert lmx.cli("load", "alpha").returncode == 0
    first = lmx.worker("alpha")["pid"]
    assert lmx.cli("restart", "alpha").returncode == 0
    second = lmx.wait_state("alpha", "ready")["pid"]
    assert second != first
    wait_until(lambda: lmx.worker("alpha")["memory_bytes"] > 0, "a beat")
    killed = lmx.cli("kill", "alpha")
    said = back.search(killed.stdout.strip())
    assert (killed.returncode, said is not None) == (0, True), killed.stdout
    assert said is not None
    assert said[1] in [event.detail for event in lmx.events("memory.returned")]
    lmx.wait_state("alpha", "ready")


def test_start_and_stop_in_the_background() -> None:
    with closing(Rig(ONE)) as lmx:
        done = lmx.cli("start", "--config", str(lmx.config_path))
        assert done.returncode == 0, done.stderr
        status = lmx.status()
        assert status["router"]["url"] in done.stdout
        lmx.wait_state("alpha", "ready")
        assert lmx.cli("start", "--config", str(lmx.config_path)).returncode == 5
        stopped = lmx.cli("stop")
        assert stopped.returncode == 0
        assert str(status["supervisor"]["pid"]) in stopped.stdout
        assert lmx.processes() == []
        assert lmx.log_events("supervisor", "supervisor.stopped")


def test_a_port_that_is_taken_is_said_in_a_line_and_is_no_invalid_configuration() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with closing(Rig({**ONE, "server": {"port": port}})) as lmx:
            for command in ("start", "serve"):
                done = lmx.cli(command, "--config", str(lmx.config_path))
                assert done.returncode == 1
                (line,) = done.stderr.splitlines()
                assert f"can't listen on port {port} of 127.0.0.1: another program" in line
                assert "--port" in line


def test_logs_of_each_process_and_following_them(running: Rig) -> None:
    lmx = running
    for arguments in ([], ["--router"], ["alpha"], ["al/ias"]):
        done = lmx.cli("logs", *arguments)
        assert done.returncode == 0, done.stderr
        assert all(json.loads(line)["event"] for line in done.stdout.splitlines())
    missing = lmx.cli("logs", "nobody")
    assert (missing.returncode, "known: alpha" in missing.stderr) == (1, True)
    command = [sys.executable, "-m", "lmx.supervisor", "logs", "alpha", "-f", "-n", "1"]
    follower = subprocess.Popen(command, env=lmx.environment, stdout=subprocess.PIPE, text=True)
    try:
        assert follower.stdout is not None
        # The last line there is: from here on it follows.
        assert json.loads(follower.stdout.readline())["event"] == "worker.loaded"
        lmx.cli("restart", "alpha")
        assert json.loads(follower.stdout.readline())["process"] == "worker"
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close() if follower.stdout else None


def test_run_directory_is_private_and_sockets_go_with_their_owners(running: Rig) -> None:
    lmx = running
    worker = lmx.wait_state("alpha", "ready")
    run = lmx.home / "run"
    assert run.stat().st_mode & 0o777 == 0o700
    assert (run / f"w-{worker['instance']}").exists()
    lmx.ask(UnloadModel("alpha"))
    wait_until(lambda: not (run / f"w-{worker['instance']}").exists(), "its socket is gone")
    lmx.ask(LoadModel("alpha"))
    lmx.wait_state("alpha", "ready")


def test_supervisor_and_router_are_light(running: Rig) -> None:
    """Neither maps mlx's library, and each stays under 100 MB."""
    lmx = running
    status = lmx.status()
    for name in ("supervisor", "router"):
        process = psutil.Process(status[name]["pid"])
        if sys.platform == "linux":  # macOS tells nobody.
            mapped = {entry.path for entry in process.memory_maps()}
            heavy = ("mlx", "torch", "transformers", "tokenizers", "numpy")
            assert not [path for path in mapped if any(word in path for word in heavy)]
        assert process.memory_info().rss < 100_000_000
        print(f"{name}: {process.memory_info().rss / 1e6:.0f} MB")


@pytest.mark.parametrize(
    "module", ["lmx.supervisor.cli.operations", "lmx.supervisor.cli.views.status"]
)
def test_a_command_does_not_wait_for_the_configurations_libraries(module: str) -> None:
    code = f"import sys, {module}\nprint({{'pydantic', 'yaml', 'aiohttp'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_path_too_long_for_sockets_is_said_so() -> None:
    with closing(Rig(ONE)) as lmx:
        environment = {**lmx.environment, "LMX_HOME": str(lmx.home / ("x" * 80))}
        done = subprocess.run(
            [sys.executable, "-m", "lmx.supervisor", "up", "--config", str(lmx.config_path)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 4
        assert "set LMX_HOME to a shorter path" in done.stderr


def test_a_signal_ends_every_process(running: Rig) -> None:
    """SIGTERM; every rig is ended with SIGINT, and fails if anything is left."""
    lmx = running
    assert len(lmx.lasting()) == 3
    assert lmx.stop(signal.SIGTERM) == 0
    assert lmx.processes() == []


def test_exit_codes_where_none_runs(shared: Rig) -> None:
    lmx = shared
    if lmx.supervisor is not None:
        lmx.stop()
    for arguments in (["status"], ["status", "--json"], ["kill", "alpha"]):
        down = lmx.cli(*arguments)
        assert (down.returncode, "is not running" in down.stderr) == (3, True)
    config = lmx.root / "wrong.yaml"
    config.write_text("server: {port: nine}")
    wrong = lmx.cli("config", "check", "--config", str(config))
    assert (wrong.returncode, "server.port" in wrong.stderr) == (4, True)
    assert lmx.cli("up", "--config", str(config)).returncode == 4
    assert lmx.cli("frobnicate").returncode == 2
