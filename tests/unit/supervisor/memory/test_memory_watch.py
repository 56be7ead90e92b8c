"""The memory watch: a machine of numbers, a core that remembers what it was told."""

import signal
from dataclasses import replace
from typing import Any

import pytest

from lmx.protocol.messages.control import Pressure
from lmx.protocol.messages.status import ReturnedMemory, WorkerFigures
from lmx.protocol.states import MemoryPressure, WorkerState
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.lifecycle import spawned
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.decisions.reclaim import DEADLINE_S
from lmx.supervisor.decisions.worker import Limits, Worker
from lmx.supervisor.memory.system import Footprint
from lmx.supervisor.memory.watch import MemoryWatch, OomEvidence

GIB = 1024**3
NONE, SOFT, HARD = MemoryPressure.NONE, MemoryPressure.SOFT, MemoryPressure.HARD
LIMITS = Limits(10, 20, 5, 30, 8, 3, 2)
TOTAL = 64 * GIB


class Machine:
    """Workers that hold what they say, other programs, and the core's side of the contract."""

    def __init__(self) -> None:
        self.ledger = Ledger(48 * GIB)
        self.workers: list[Worker] = []
        self.unread: set[str] = set()
        self.others = 8 * GIB
        self.leaked = 0
        self.wired: int | None = None
        self.gpu = False
        self.readable = True
        self.hidden = False
        self.reads = 0
        self.kernel_kills = 0
        self.levels: list[MemoryPressure] = []
        self.killed: list[tuple[str, str]] = []
        self.settled: list[tuple[str, int]] = []
        self.returned: dict[str, ReturnedMemory] = {}
        self.sent: list[tuple[str, MemoryPressure]] = []
        self.notes: list[tuple[str, str | None, str, dict[str, Any]]] = []
        self.now_s = 0.0
        self.watch = MemoryWatch(
            self, Settings(Config()), self.send, self, self.read, self.footprint,
            OomEvidence(lambda: self.watch.pressure, lambda: self.kernel_kills, counted=True),
        )  # fmt: skip

    def is_unread(self, instance: str) -> bool:
        return instance in self.unread

    def set_pressure(self, level: MemoryPressure, now_s: float) -> None:
        self.levels.append(level)

    def kill_for_memory(self, instance: str, detail: str, now_s: float) -> None:
        self.killed.append((instance, detail))

    def memory_settled(
        self,
        instance: str,
        model_id: str | None,
        missing_bytes: int,
        now_s: float,
        memory: ReturnedMemory | None = None,
    ) -> None:
        self.settled.append((instance, missing_bytes))
        if memory is not None:
            self.returned[instance] = memory
        self.ledger.settle(instance, missing_bytes)

    def send(self, worker: Worker, message: Any) -> None:
        assert isinstance(message, Pressure)
        self.sent.append((worker.instance, message.level))

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        self.notes.append((name, model_id, detail, data))

    def noted(self, name: str) -> list[str]:
        return [detail for noted, _, detail, _ in self.notes if noted == name]

    def read(self) -> MemoryReading:
        self.reads += 1
        if not self.readable:
            raise OSError(24, "Too many open files")
        held = sum(worker.figures.memory_bytes for worker in self.workers)
        return MemoryReading(TOTAL, TOTAL - self.others - self.leaked - held, self.wired)

    def footprint(self, pid: int) -> Footprint | None:
        if self.hidden:
            return None
        held = next(one.figures.memory_bytes for one in self.workers if one.pid == pid)
        return Footprint(held, held if self.gpu else 0)

    def start(
        self, name: str, held: int, reserved: int, *, rows: int = 0, adopted: bool = False
    ) -> None:
        self.ledger.adopt(name, reserved)
        worker = spawned(name, f"model-{name}", 100 + len(self.workers), LIMITS, 0.0)
        self.workers.append(
            replace(
                worker,
                state=WorkerState.READY,
                figures=WorkerFigures(memory_bytes=held),
                rows=rows,
                adopted=adopted,
            )
        )

    def change(self, name: str, **changes: Any) -> None:
        self.workers = [
            replace(one, **changes) if one.instance == name else one for one in self.workers
        ]

    def grow(self, name: str, held: int) -> None:
        """As the core takes a beat: the ledger follows."""
        self.change(name, figures=WorkerFigures(memory_bytes=held))
        self.ledger.raise_to(name, held)

    def exit(self, name: str, leaked: int = 0) -> None:
        worker = next(one for one in self.workers if one.instance == name)
        self.workers.remove(worker)
        self.leaked += leaked
        self.watch.left(worker, self.ledger.exited(name), self.now_s)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.watch.tick(self.now_s)
            self.now_s += 0.1


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_the_machine_is_read_twice_a_second_while_a_model_computes(machine: Machine) -> None:
    machine.start("a", GIB, GIB)
    machine.run(10)
    assert 5 <= machine.reads <= 6
    assert machine.watch.quiet_until_s() == pytest.approx(machine.now_s, abs=2.0)
    machine.change("a", rows=1)
    before = machine.reads
    machine.run(10)
    assert 18 <= machine.reads - before <= 21


def test_a_worker_that_ended_before_it_was_read_held_what_it_said(machine: Machine) -> None:
    machine.run(10)
    machine.start("a", 2 * GIB, 2 * GIB)
    machine.exit("a")
    machine.run(0.2)
    assert machine.returned["a"].returned_bytes == 2 * GIB


def test_what_is_read_of_an_idle_machine(machine: Machine) -> None:
    machine.run(10)
    assert machine.watch.reading is not None
    assert machine.watch.reading.used_bytes == 8 * GIB
    assert not machine.levels
    assert not machine.sent


def test_soft_is_sent_to_all_and_taken_back(machine: Machine) -> None:
    machine.start("a", 10 * GIB, 12 * GIB)
    machine.start("b", 10 * GIB, 12 * GIB)
    machine.change("b", state=WorkerState.LOADING)
    machine.run(1)
    machine.others = 40 * GIB
    machine.run(2)
    assert machine.watch.pressure is SOFT
    assert machine.levels == [SOFT]
    assert machine.sent == [("a", SOFT)]
    machine.change("b", state=WorkerState.READY)
    machine.run(1)
    assert machine.sent == [("a", SOFT), ("b", SOFT)]
    machine.others = 8 * GIB
    machine.run(5)
    assert machine.levels == [SOFT, NONE]
    assert machine.sent[2:] == [("a", NONE), ("b", NONE)]
    assert [data["level"] for *_, data in machine.notes] == ["soft", "none"]


def test_a_worker_of_an_earlier_supervisor_learns_that_there_is_no_pressure(
    machine: Machine,
) -> None:
    machine.start("a", GIB, 2 * GIB, adopted=True)
    machine.run(2)
    assert machine.sent == [("a", NONE)]


def test_who_takes_more_than_the_budget_is_asked_twice_and_killed(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB, rows=1)
    machine.start("b", 20 * GIB, 22 * GIB, rows=1)
    machine.run(1)
    machine.grow("b", 30 * GIB)
    machine.run(15)
    assert machine.levels == [HARD]
    assert machine.sent == [("a", SOFT), ("b", SOFT), ("b", HARD), ("b", HARD)]
    assert [instance for instance, _ in machine.killed] == ["b"]
    assert "30.0 GiB with 22.0 GiB reserved" in machine.killed[0][1]
    asked = [model for name, model, *_ in machine.notes if name == "memory.pressure" and model]
    assert asked == ["model-b", "model-b"]


def test_what_the_ledger_added_is_not_what_was_granted(machine: Machine) -> None:
    """Over its reservation, and the ledger over the budget, while the machine has room."""
    machine.start("a", 5 * GIB, 30 * GIB)
    machine.start("b", 5 * GIB, 10 * GIB)
    machine.run(1)
    machine.grow("b", 19 * GIB)
    machine.run(2.5)
    assert machine.levels == [SOFT]


def test_a_load_that_was_measured_is_granted_what_it_was_corrected_to(machine: Machine) -> None:
    machine.start("a", 5 * GIB, 30 * GIB)
    machine.start("b", 5 * GIB, 10 * GIB)
    machine.change("b", state=WorkerState.LOADING)
    machine.run(1)
    machine.change("b", state=WorkerState.READY, figures=WorkerFigures(memory_bytes=19 * GIB))
    machine.ledger.correct("b", 20 * GIB)
    machine.run(1)
    assert machine.watch.pressure is NONE


def test_an_adopted_worker_is_granted_what_it_was_planned_at_once_that_is_known(
    machine: Machine,
) -> None:
    machine.start("a", 5 * GIB, 30 * GIB)
    machine.start("b", 5 * GIB, 5 * GIB, adopted=True)
    machine.unread.add("b")
    machine.run(1)
    machine.unread.clear()
    machine.ledger.raise_to("b", 20 * GIB)
    machine.run(1)
    machine.grow("b", 19 * GIB)
    machine.run(1)
    assert machine.watch.pressure is NONE


def test_others_are_blamed_and_nobody_is_killed(machine: Machine) -> None:
    machine.start("a", 2 * GIB, 3 * GIB, rows=1)
    machine.others = 61 * GIB
    machine.run(30)
    assert machine.levels == [SOFT]
    assert not machine.killed
    assert sum("other programs fill" in detail for detail in machine.noted("memory.pressure")) == 1


def test_memory_that_comes_back_is_free_with_the_next_reading(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.run(3)
    machine.exit("a")
    assert machine.ledger.returning_bytes == 22 * GIB
    machine.run(0.2)
    assert machine.settled == [("a", 0)]
    assert machine.ledger.free_bytes == 48 * GIB
    assert machine.returned["a"].returned_bytes == 20 * GIB
    ((name, model, detail, data),) = machine.notes
    assert (name, model, detail) == ("memory.returned", "model-a", "20.0 GiB came back in 0.0 s")
    assert (data["returned_bytes"], data["instance"]) == (20 * GIB, "a")


def test_the_time_that_memory_takes_begins_when_its_end_does(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.run(3)
    machine.change("a", stopping_at_s=machine.now_s)
    machine.run(1.5)
    machine.exit("a")
    machine.run(0.2)
    assert machine.noted("memory.returned") == ["20.0 GiB came back in 1.5 s"]


def test_memory_that_stays_away_is_reported_and_given_back_later(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.run(3)
    machine.exit("a", leaked=12 * GIB)
    machine.run(DEADLINE_S - 0.5)
    assert not machine.settled
    machine.run(1)
    assert machine.settled == [("a", 12 * GIB)]
    assert machine.ledger.missing_bytes == 12 * GIB
    assert "12.0 GiB of 20.0 GiB did not come back" in machine.noted("memory.missing")[0]
    machine.run(60)
    assert len(machine.settled) == 1
    machine.leaked = 0
    machine.run(1)
    assert machine.settled[1:] == [("a", 0)]
    assert machine.ledger.missing_bytes == 0
    reported = machine.noted("memory.returned")
    assert reported[0].startswith("8.0 GiB came back in ")
    assert reported[0].endswith(", 12.0 GiB did not")
    assert reported[1:] == ["12.0 GiB came back that had been missing"]
    machine.run(10)
    assert len(machine.settled) == 2


def test_buffers_of_a_gpu_that_stay_wired_are_missing(machine: Machine) -> None:
    machine.wired, machine.gpu = 22 * GIB, True
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.run(3)
    machine.exit("a", leaked=20 * GIB)
    machine.run(6)
    assert machine.settled == [("a", 20 * GIB)]
    assert "reboot" in machine.noted("memory.missing")[0]


@pytest.mark.parametrize("gpu", [True, False])
def test_what_other_programs_take_meanwhile_is_not_missing(machine: Machine, gpu: bool) -> None:
    machine.wired, machine.gpu = 22 * GIB, gpu
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.run(3)
    machine.exit("a")
    machine.others += 15 * GIB
    if gpu:
        machine.wired -= 20 * GIB
    machine.run(0.2)
    assert machine.settled == [("a", 0)]


def test_another_model_that_loads_meanwhile_is_no_loss(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.start("b", GIB, 24 * GIB)
    machine.run(3)
    machine.exit("a")
    machine.change("b", figures=WorkerFigures(memory_bytes=22 * GIB))
    machine.run(0.2)
    assert machine.settled == [("a", 0)]


def test_one_reading_of_a_process_half_torn_down_does_no_harm(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.run(3)
    machine.change(
        "a", figures=WorkerFigures()
    )  # its pages are counted free before its exit is told
    machine.others -= 12 * GIB
    machine.run(0.6)
    machine.others += 12 * GIB
    machine.exit("a")
    machine.run(7)
    assert machine.settled == [("a", 0)]


def test_a_process_that_cannot_be_looked_at_is_as_it_was(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.run(6)
    machine.hidden = True
    machine.run(6)
    machine.exit("a", leaked=20 * GIB)
    machine.run(6)
    assert machine.settled == [("a", 20 * GIB)]


def test_a_worker_that_was_never_seen_settles(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.exit("a", leaked=20 * GIB)
    machine.run(0.2)
    assert machine.settled == [("a", 0)]


def test_a_machine_that_cannot_be_read_keeps_nobodys_bytes(machine: Machine) -> None:
    machine.start("a", 20 * GIB, 22 * GIB)
    machine.run(3)
    machine.readable = False
    machine.exit("a", leaked=20 * GIB)
    machine.run(1)
    assert machine.settled == [("a", 0)]
    machine.readable = True
    machine.run(10)
    assert len(machine.settled) == 1


def test_the_kernels_kill_is_distinguished_from_an_operators(machine: Machine) -> None:
    machine.run(2)
    assert not machine.watch.killed_by_system(-signal.SIGKILL, machine.now_s)
    machine.kernel_kills = 1
    assert machine.watch.killed_by_system(-signal.SIGKILL, machine.now_s)
    assert not machine.watch.killed_by_system(-signal.SIGKILL, machine.now_s)
