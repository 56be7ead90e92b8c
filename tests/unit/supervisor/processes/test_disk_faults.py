"""A disk that fails at any time, at any file: what becomes of models does not hang on it."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.host.logs import LogFile
from lmx.protocol.host.regular_file import IrregularFileError, TooLargeError, read_regular
from lmx.protocol.messages import control
from lmx.protocol.messages.peers import PeerList
from lmx.protocol.states import SlotState, WorkerState
from lmx.protocol.wire.endpoints import new_instance_id
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.core import Core
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.events import EventLog
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.processes import launcher, workers
from lmx.supervisor.processes.child import open_log
from lmx.supervisor.processes.spare import SpareWorker
from lmx.supervisor.state.files import Holds, StateFiles
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records, SupervisorLock
from tests.support.fakes.fake_actions import FakeActions
from tests.support.rigs.budgets import examples
from tests.support.rigs.core_rig import make_config

_CHANGES = ("open", "unlink", "replace", "rename", "mkdir", "pwrite", "ftruncate")


class _Disk:
    """While ``faults`` says so the next change of a file raises."""

    def __init__(self) -> None:
        self.faults: Iterator[bool] = iter(())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in _CHANGES:
                patch.setattr(os, name, self._failing(getattr(os, name)))
            yield

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            if next(self.faults, False):
                raise OSError(30, "Read-only file system")
            return real(*args, **kwargs)

        return change


class _Workers(workers.WorkerProcesses):
    """With the disk of a real one; which models there are, and what they need, is the fake's."""

    local_path = FakeActions.local_path
    inspect = FakeActions.inspect
    plan_memory = FakeActions.plan_memory

    def signal(self, worker: Any, number: int) -> None:
        pass


class _Lmx:
    """A core over real files of a home, with processes that are numbers."""

    def __init__(self, folder: Path, disk: _Disk, patch: pytest.MonkeyPatch) -> None:
        self.home = Home(folder)
        self.home.prepare()
        self.disk = disk
        self.events = EventLog("epoch")
        files = StateFiles.of(self.home, self.events, lambda _text: None)
        self.retry, self.records = files.disk, files.records
        self.now_s = 0.0
        pids = iter(range(1000, 10_000))
        patch.setattr(
            launcher, "start_child", lambda *_args, **_kw: SimpleNamespace(pid=next(pids))
        )
        nobody: Any = Mock(spec=["watch", "send", "publish", "end"])
        ledger = Ledger(1000)
        in_effect = Settings(make_config({"a": 100, "b": 100}))
        starts = launcher.Launcher(self.home, nobody, lambda _text: None)
        self.actions = _Workers(
            in_effect, self.home, starts, SpareWorker(starts, self.home, lambda: "auto"), nobody,
            nobody, nobody, nobody, files, Measured.load(self.home.measured), ledger, self.events,
            lambda *_: None, self._left, PeerList,
        )  # fmt: skip
        fake = FakeActions({"a": 100, "b": 100})
        for name in (
            "needs",
            "kinds",
            "estimate_error",
            "working",
            "remote",
            "facts",
            "inspected",
            "unread",
        ):
            setattr(self.actions, name, getattr(fake, name))
        self.core = Core(in_effect, ledger, self.actions, "epoch")

    def _left(self, worker: Any, _held_bytes: int) -> None:
        self.core.ledger.settle(worker.instance, 0)

    def do(self, what: str, name: str) -> None:
        slot = self.core.slots[name]
        self.now_s += 1.0
        operator, worker = self.core.operator, slot.worker
        match what:
            case "load":
                operator.load(name, self.now_s)
            case "unload":
                operator.take(name, events.Unloaded(), self.now_s)
            case "hold":
                operator.take(name, events.Held(), self.now_s)
            case "reset":
                operator.take(name, events.Reset(), self.now_s)
            case "pin":
                operator.pin(name, not slot.pinned, self.now_s)
            case "kill" if worker is not None:
                operator.kill(name, self.now_s)
            case "restart" if worker is not None:
                operator.take(name, events.ReloadOrdered("by an operator"), self.now_s)
            case "up" if worker is not None and worker.state is WorkerState.STARTING:
                self.bring_up(name)
            case "exit" if worker is not None:
                self.core.worker_exited(worker.instance, -9, self.now_s)
        self.core.flush(self.now_s)
        self.core.tick(self.now_s, 0.0)
        self.retry.tick(self.now_s, 0.0)

    def bring_up(self, name: str) -> None:
        worker = self.core.slots[name].worker
        assert worker is not None
        hello = control.WorkerHello(worker.instance, name, worker.pid, WorkerState.STARTING)
        self.core.worker_reported(worker.instance, hello, self.now_s)
        loaded = control.Loaded(worker.instance, 100, 2048, 0.1)
        self.core.worker_reported(worker.instance, loaded, self.now_s)


_STEPS = ("load", "unload", "hold", "reset", "pin", "kill", "restart", "up", "exit", "exit")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(_STEPS), st.sampled_from("ab")), max_size=15),
    st.lists(st.booleans(), max_size=60),
)
def test_any_file_may_fail_at_any_time_and_nothing_is_stuck(
    steps: list[tuple[str, str]], faults: list[bool]
) -> None:
    disk = _Disk()
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        disk.in_place(),
    ):
        lmx = _Lmx(Path(folder) / "home", disk, patch)
        disk.faults = iter(faults)
        for what, name in steps:
            lmx.do(what, name)
        # The disk is well again: every model can be had, and its process be killed.
        disk.faults = iter(())
        lmx.now_s += 1000.0
        for name in ("a", "b"):
            slots = lmx.core.slots
            lmx.do("exit", name)
            lmx.do("load", name)
            if slots[name].worker is None:  # it was in backoff
                lmx.do("load", name)
            assert (slots[name].state, slots[name].worker is not None) == (SlotState.OCCUPIED, True)
            lmx.do("up", name)
            assert slots[name].ready_worker is not None
            lmx.do("kill", name)
            lmx.do("exit", name)
            assert slots[name].worker is not None, "it is started again"
        lmx.retry.tick(float("inf"), 0.0)
        alive = {w.instance for w in lmx.core.workers}
        assert {record.token for record in lmx.records.workers()} == alive
        assert Holds(lmx.home.holds).load() == frozenset()


def test_an_exit_on_a_read_only_disk_is_an_exit(tmp_path: Path) -> None:
    disk = _Disk()
    with pytest.MonkeyPatch.context() as patch, disk.in_place():
        lmx = _Lmx(tmp_path / "home", disk, patch)
        lmx.do("load", "a")
        lmx.do("up", "a")
        socket_path = lmx.home.run.worker_socket(lmx.core.workers[0].instance)
        socket_path.touch()
        disk.faults = iter(lambda: True, False)
        lmx.core.worker_exited(lmx.core.workers[0].instance, -9, lmx.now_s)
        assert (lmx.core.slots["a"].worker, lmx.core.slots["a"].state) != (None, SlotState.OCCUPIED)
        reported = [event.name for event in lmx.events.after(0, 100).events]
        assert "disk.failed" in reported
        disk.faults = iter(())
        lmx.retry.tick(float("inf"), 0.0)
        reported = [event.name for event in lmx.events.after(0, 100).events]
        assert "disk.recovered" in reported
        assert not socket_path.exists()


def test_a_record_that_can_not_be_read_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_path: Path, _most_bytes: int) -> bytes:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr("lmx.supervisor.state.state_file.read_regular", fails)
    workers = tmp_path / "workers"
    workers.mkdir()
    record = workers / f"{new_instance_id()}.json"
    record.write_text("{}")
    assert Records(tmp_path).workers() == []
    assert record.exists()


def test_a_full_disk_keeps_nobody_from_the_lock(tmp_path: Path) -> None:
    disk = _Disk()
    with disk.in_place():
        (tmp_path / "lock").touch()
        lock = SupervisorLock(tmp_path / "lock")
        disk.faults = iter([False, True])
        lock.acquire()
        os.close(lock.descriptor)
        disk.faults = iter([True, False, True])
        lock.acquire()
        os.close(lock.descriptor)


def test_what_operators_drained_outlives_a_supervisor() -> None:
    actions = FakeActions({"a": 100, "b": 100})
    in_effect = Settings(make_config(actions.needs))
    core = Core(in_effect, Ledger(1000), actions, "one")
    core.operator.take("a", events.Held(), 1.0)
    core.flush(1.0)
    assert actions.held == frozenset({"a"})
    core.drain(True, 0.0)
    assert actions.held == frozenset({"a", "*"})
    after = Core(in_effect, Ledger(1000), FakeActions(actions.needs), "two", {}, actions.held or ())
    after.preload(2.0)
    assert after.drained
    assert after.snapshot(2.0).drained
    assert after.slots["a"].state is SlotState.HELD
    assert after.slots["b"].worker is not None
    after.operator.load("a", 3.0)
    after.flush(3.0)
    assert after.slots["a"].worker is not None


def test_a_worker_that_was_to_be_drained_is_drained_by_the_next_supervisor() -> None:
    actions = FakeActions({"a": 100})
    core = Core(Settings(make_config(actions.needs)), Ledger(1000), actions, "two", {}, {"a"})
    assert core.adopt("0123", "a", 4711, 100, 1.0)
    assert actions.sent == [("0123", control.Drain(False))]
    core.worker_reported("0123", control.Drained("0123"), 2.0)
    core.worker_exited("0123", 0, 3.0)
    assert core.slots["a"].state is SlotState.HELD


def test_a_log_that_can_not_be_opened_keeps_no_process_from_starting(tmp_path: Path) -> None:
    descriptor = open_log(tmp_path / "gone" / "worker.log")
    try:
        assert os.write(descriptor, b"to nobody") == len(b"to nobody")
    finally:
        os.close(descriptor)
    (tmp_path / "file").touch()
    before = os.fstat(1)
    LogFile(tmp_path / "file" / "worker.log", 1000, 1).attach()
    assert os.fstat(1).st_ino == before.st_ino


def test_whatever_is_wrong_with_a_file_whoever_reads_it_expects_it(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    for name, error in (("large", TooLargeError), ("pipe", IrregularFileError), ("no", OSError)):
        with pytest.raises(error) as caught:
            read_regular(tmp_path / name, 4)
        assert isinstance(caught.value, OSError)
