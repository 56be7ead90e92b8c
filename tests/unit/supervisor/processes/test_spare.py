"""A process that waits for its spec is taken, or another one is started in its place."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from lmx.protocol.messages.specs import LogSpec, WorkerSpec
from lmx.protocol.wire import codec
from lmx.supervisor.config.model import ModelConfig
from lmx.supervisor.processes import spare as module
from lmx.supervisor.processes.launcher import Exited
from lmx.supervisor.processes.spare import SpareWorker
from lmx.supervisor.state.home import Home
from tests.support.rigs.rig import wait_until

MODEL = ModelConfig(id="m", source="/models/m")
SAYS_WHAT_IT_READ = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"


class FakeLauncher:
    """Starts a process that prints its spec."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.exited: list[Exited] = []
        self.error: OSError | None = None

    def start_waiting(
        self, module: str, names: tuple[str, ...], log_path: Path, exited: Exited
    ) -> subprocess.Popen[bytes]:
        assert (module, names[:2]) == ("lmx.worker", ("--spare", "auto"))
        if self.error is not None:
            raise self.error
        child = subprocess.Popen(
            [sys.executable, "-c", SAYS_WHAT_IT_READ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.started.append(child)
        self.exited.append(exited)
        return child


class Bench:
    """A spare worker that was begun, and whose ends are reported by hand."""

    def __init__(self, folder: Path) -> None:
        self.wire = "auto"
        self.launcher = FakeLauncher()
        home = Home(folder)
        home.prepare()
        launcher: Any = self.launcher
        self.spare = SpareWorker(launcher, home, lambda: self.wire)
        self.spare.begin(0.0)
        self.ends: list[tuple[int, int | None]] = []

    @property
    def child(self) -> subprocess.Popen[bytes]:
        return self.launcher.started[-1]

    def spec(self, **changes: Any) -> WorkerSpec:
        spec = WorkerSpec(
            instance=self.spare.instance_for(MODEL), model_id="m", model_path="/models/m",
            run_dir="/run", log=LogSpec("/log"), engine=MODEL.engine, engine_options={},
            memory_limit_bytes=1, max_rows=1, max_queue=1,
        )  # fmt: skip
        return replace(spec, **changes)

    def take(self, spec: WorkerSpec) -> int | None:
        return self.spare.take(spec, lambda pid, status: self.ends.append((pid, status)))

    def report(self, child: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a process, and report it as the exit watch does."""
        self.launcher.exited[self.launcher.started.index(child)](child.pid, child.wait(90))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for child in made.launcher.started:
        child.kill()
        child.wait(90)
        assert child.stdout is not None
        child.stdout.close()


def test_a_load_takes_it_and_is_told_of_its_end(bench: Bench) -> None:
    spec = bench.spec()
    child = bench.child
    assert bench.take(spec) == child.pid
    assert bench.spare.pid is None
    assert bench.take(spec) is None
    assert child.stdout is not None
    assert codec.decode(child.stdout.read()).message == spec
    bench.report(child)
    assert bench.ends == [(child.pid, 0)]
    assert bench.spare.ended == 0


def test_models_with_other_engines_and_ranks_do_not_take_it(bench: Bench) -> None:
    taken = bench.spare.instance_for(MODEL)
    for other in (
        MODEL.model_copy(update={"engine": "other:create"}),
        MODEL.model_copy(update={"ranks": 2}),
    ):
        assert bench.spare.instance_for(other) != taken
    assert bench.take(bench.spec(instance="another")) is None
    assert bench.spare.pid == bench.child.pid


def _signal(bench: Bench, number: int, status: str) -> None:
    """Send a signal to it, and wait until it is so. Its end is not reported yet."""
    os.kill(bench.child.pid, number)
    process = psutil.Process(bench.child.pid)
    wait_until(lambda: process.status() == status, f"it is {status}")


@pytest.mark.parametrize(
    "harm",
    [
        lambda bench: _signal(bench, signal.SIGSTOP, psutil.STATUS_STOPPED),
        lambda bench: _signal(bench, signal.SIGKILL, psutil.STATUS_ZOMBIE),
        lambda bench: setattr(bench, "wire", "never"),
    ],
    ids=["it is stopped", "it has ended", "another wire is configured"],
)
def test_one_that_cannot_serve_is_ended_and_nobody_else_notices(bench: Bench, harm: Any) -> None:
    spec, child = bench.spec(), bench.child
    harm(bench)
    assert bench.take(spec) is None
    assert bench.spare.pid is None
    bench.report(child)
    assert (bench.ends, bench.spare.ended) == ([], 0)


def test_packages_that_changed_make_it_outdated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = bench.spec()
    assert not bench.spare.is_outdated()
    monkeypatch.setattr(module, "_packages", lambda: [tmp_path])
    assert bench.spare.is_outdated()
    assert bench.take(spec) is None
    bench.report(bench.child)


def test_a_spec_that_a_pipe_does_not_take_starts_another_process(bench: Bench) -> None:
    assert bench.take(bench.spec(chat_template="x" * 2**20)) is None
    bench.report(bench.child)
    assert bench.ends == []


def test_one_that_ends_by_itself_is_counted(bench: Bench) -> None:
    _signal(bench, signal.SIGKILL, psutil.STATUS_ZOMBIE)
    bench.report(bench.child)
    assert (bench.spare.pid, bench.spare.ended) == (None, 1)
    bench.launcher.error = OSError("no more processes")
    bench.spare.begin(5.0)
    assert (bench.spare.pid, bench.spare.ended, bench.spare.ended_at_s) == (None, 2, 5.0)


async def test_it_is_gone_when_the_supervisor_closes(bench: Bench) -> None:
    child = bench.child
    await bench.spare.close()
    # It may have seen first that nobody has anything for it any more.
    assert child.wait(90) in (0, -signal.SIGKILL)
    await bench.spare.close()
