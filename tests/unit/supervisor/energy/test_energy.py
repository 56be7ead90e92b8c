"""What is read of the machine's energy, on a false Linux machine and with a false macmon, and how
it is divided among models."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.messages.status import WorkerFigures
from lmx.supervisor.decisions.energy import computed_share, divided
from lmx.supervisor.decisions.lifecycle import adopted
from lmx.supervisor.decisions.worker import Limits, Worker
from lmx.supervisor.energy.macmon import Macmon
from lmx.supervisor.energy.meter import EnergyMeter
from lmx.supervisor.energy.rapl import Rapl, RaplUnreadable
from lmx.supervisor.energy.source import find_source
from tests.support.fakes.macmon import WATTS, fake_macmon
from tests.support.rigs.rig import wait_until

LIMITS = Limits(10, 20, 5, 30, 8, 3, 2)
RANGE_UJ = 1_000_000_000

# A false powercap tree.


class Tree:
    """Two packages: the first with its cores and memory, and what counts the same once more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for zone, name in (
            ("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:0:1", "dram"),
            ("intel-rapl:1", "package-1"), ("intel-rapl:2", "psys"),
            ("intel-rapl-mmio:0", "package-0"),
        ):  # fmt: skip
            place = folder / zone
            place.mkdir()
            (place / "name").write_text(f"{name}\n")
            (place / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            self.set(zone, 900_000_000)

    def set(self, zone: str, microjoules: int) -> None:
        (self.folder / zone / "energy_uj").write_text(f"{microjoules}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def joules(rapl: Rapl) -> float:
    found = rapl.read(7.0, wanted=True)
    assert found is not None
    assert found[0] == 7.0
    return found[1]


def test_packages_and_memory_are_added_and_their_parts_are_not(tree: Tree) -> None:
    rapl = Rapl.find(tree.folder)
    assert rapl is not None
    assert joules(rapl) == 0
    for zone in ("intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"):
        tree.set(zone, 990_000_000)
    assert joules(rapl) == 0
    tree.set("intel-rapl:0", 930_000_000)
    tree.set("intel-rapl:0:1", 905_000_000)
    tree.set("intel-rapl:1", 910_000_000)
    assert joules(rapl) == pytest.approx(45)


def test_a_counter_that_begins_again_loses_nothing(tree: Tree) -> None:
    rapl = Rapl.find(tree.folder)
    assert rapl is not None
    for microjoules, total in ((999_000_000, 99), (20_000_000, 120), (10_000_000, 1110)):
        tree.set("intel-rapl:0", microjoules)
        assert joules(rapl) == pytest.approx(total)


def test_where_there_is_nothing_to_read_there_is_no_source(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"PATH": str(tmp_path)}
    monkeypatch.setattr("lmx.supervisor.energy.source._MORE_FOLDERS", ())
    source, why = find_source("linux", nothing, tmp_path / "none")
    assert (source, why[:23]) == (None, "this machine has no RAP")
    assert find_source("darwin", nothing, tmp_path / "none") == (None, "macmon is not installed")
    found, what = find_source("linux", nothing, tree.folder)
    assert (isinstance(found, Rapl), what) == (True, "RAPL")

    def refuse(path: Path, *_: Any, **__: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    original = Path.read_text
    monkeypatch.setattr(Path, "read_text", refuse)  # root may read everything
    with pytest.raises(RaplUnreadable):
        Rapl.find(tree.folder)
    source, why = find_source("linux", nothing, tree.folder)
    assert (source, why) == (None, f"only root may read {tree.folder}/intel-rapl:0/energy_uj")
    fake_macmon(tmp_path)
    found, what = find_source("darwin", nothing, tree.folder)
    assert (isinstance(found, Macmon), what) == (True, f"macmon ({tmp_path}/macmon)")


def test_counters_that_vanish_say_nothing(tree: Tree) -> None:
    rapl = Rapl.find(tree.folder)
    assert rapl is not None
    (tree.folder / "intel-rapl:1" / "energy_uj").unlink()
    assert rapl.read(0.0, wanted=True) is None


# A false macmon.


Start = Callable[..., Macmon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Macmon] = []

    def begin(code: str | None = None) -> Macmon:
        program = fake_macmon(tmp_path) if code is None else fake_macmon(tmp_path, code)
        made.append(Macmon(str(program)))
        return made[-1]

    yield begin
    for one in made:
        one.close()


Reading = tuple[float, float] | None


def reads_until(macmon: Macmon, condition: Callable[[Reading], bool]) -> Reading:
    """Read, with a clock that stands still, until the condition holds."""
    deadline_s = time.monotonic() + 90
    while not condition(found := macmon.read(0.0, wanted=True)):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return found


def line(at: str, **watts: float) -> str:
    """Code that prints a line about the time until ``at``, in seconds after eight."""
    said = {"timestamp": f"2026-11-27T08:00:{at}+00:00", "sys_power": 99.0, **watts}
    return f"print({json.dumps(said)!r}, flush=True)\n"


def test_its_lines_are_added_up(start: Start) -> None:
    wait = "import time; time.sleep(600)"
    code = (
        line("01.000000", cpu_power=1.0, gpu_power=2.0, ane_power=0.5, ram_power=0.5)
        + line("03.000000", cpu_power=1.0, gpu_power=9.0)
        + "print('nonsense')\nprint('[]')\nprint('{\"timestamp\": 5}', flush=True)\n"
        + line("40.000000", cpu_power=3.0)
        + line("59.000000", cpu_power=100.0)  # Nobody knows what was in between.
        + wait
    )
    macmon = start(code)
    assert macmon.read(0.0, wanted=False) is None, "it does not run before somebody computes"
    all_of_it = pytest.approx((4.0, 27.0))
    assert reads_until(macmon, lambda found: found is not None and found[1] >= 27) == all_of_it
    assert macmon.read(10.0, wanted=False) == all_of_it
    process = macmon._process
    assert process is not None
    assert macmon.read(60.0, wanted=False) is None
    assert process.wait(90) is not None, "it ends a minute after it was needed last"


@pytest.mark.parametrize(
    ("code", "at_s"),
    [
        ("", 0.0),
        ("import time; time.sleep(600)", 15.0),
        ("import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)", 15.0),
        ("print('x' * 300_000, flush=True)\nimport time; time.sleep(600)", 0.0),
    ],
    ids=["dies", "hangs", "hangs and ignores SIGTERM", "a line without an end"],
)
def test_one_that_is_broken_is_ended_and_tried_again_later(
    start: Start, tmp_path: Path, code: str, at_s: float
) -> None:
    macmon = start(code)
    macmon.read(0.0, wanted=True)
    process = macmon._process
    assert process is not None
    deadline_s = time.monotonic() + 90
    while macmon._process is not None:
        took_s = time.process_time()
        assert macmon.read(at_s, wanted=True) is None
        assert time.process_time() - took_s < 0.5, "nothing waits for it"
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert process.wait(90) is not None
    assert macmon.read(at_s + 59, wanted=True) is None
    assert macmon._process is None
    fake_macmon(tmp_path)
    macmon.read(at_s + 60, wanted=True)
    assert macmon._process is not None
    wait_until(lambda: macmon.read(at_s + 60, wanted=True), "it is read")


def test_one_that_can_t_be_started_is_tried_again_later(tmp_path: Path) -> None:
    macmon = Macmon(str(tmp_path / "gone"))
    assert macmon.read(0.0, wanted=True) is None
    assert macmon._not_before_s == 60.0


def test_it_gets_none_of_the_supervisor_s_secrets(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMX_SECURITY_API_KEYS", "secret")
    seen = tmp_path / "seen"
    macmon = start(f"import os; open({str(seen)!r}, 'w').write(repr(dict(os.environ)))")
    macmon.read(0.0, wanted=True)
    reads_until(macmon, lambda _: macmon._process is None)
    assert "secret" not in seen.read_text()
    assert os.environ["PATH"] in seen.read_text()


# Who has taken it.


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({}, {}),
        ({"a": 1.0}, {"a": 60.0}),
        ({"a": 0.25}, {"a": 15.0}),
        ({"a": 1.0, "b": 1.0}, {"a": 30.0, "b": 30.0}),
        ({"a": 1.0, "b": 0.5}, {"a": 40.0, "b": 20.0}),
        ({"a": 0.5, "b": 0.25, "c": 0.0}, {"a": 30.0, "b": 15.0, "c": 0.0}),
    ],
)
def test_joules_are_divided_by_the_time_of_computing(
    shares: dict[str, float], expected: dict[str, float]
) -> None:
    assert divided(60.0, shares) == pytest.approx(expected)


def test_a_share_is_never_below_nothing_or_above_all() -> None:
    assert computed_share((1.0, 5.0), (2.0, 5.5)) == 0.5
    assert computed_share((1.0, 5.0), (2.0, 9.0)) == 1.0
    assert computed_share((1.0, 5.0), (2.0, 4.9)) == 0.0, "the sum of a running step may sink"
    assert computed_share((1.0, 5.0), (1.0, 6.0)) == 0.0


class Machine:
    """A source and workers that a test sets."""

    name = "a test"

    def __init__(self, *names: str) -> None:
        self.workers = [adopted(name, name, 1, LIMITS, 0.0) for name in names]
        self.models = set(names)
        self.total: float | None = 1000.0
        self.counted_s: float | None = None
        self.wanted: list[bool] = []
        self.closed = False
        self.meter = EnergyMeter(self, self.running, self.models.__contains__)

    def running(self) -> Sequence[Worker]:
        return self.workers

    def read(self, now_s: float, *, wanted: bool) -> tuple[float, float] | None:
        self.wanted.append(wanted)
        counted_s = now_s if self.counted_s is None else self.counted_s
        return None if self.total is None else (counted_s, self.total)

    def close(self) -> None:
        self.closed = True

    def second(self, now_s: float, joules: float, **computed_s: float) -> None:
        """Let the machine take so many joules until then, and workers send a beat."""
        if self.total is not None:
            self.total += joules
        self.workers = [
            replace(
                worker, beat_at_s=now_s, rows=1,
                figures=WorkerFigures(compute_s_total=computed_s[worker.instance]),
            ) if worker.instance in computed_s else worker
            for worker in self.workers
        ]  # fmt: skip
        self.meter.tick(now_s, 0.0)


def test_models_have_what_was_taken_while_they_computed() -> None:
    machine = Machine("a", "b")
    meter = machine.meter
    assert meter.energy(0.0) is None
    meter.tick(1.0, 0.0)
    assert machine.wanted == [False], "an idle machine needs no program that costs something"
    machine.second(2.0, 10.0, a=0.0, b=0.0)
    machine.second(3.0, 30.0, a=1.0, b=0.0)
    meter.tick(3.05, 0.0)
    assert machine.wanted == [False, True, True], "once a second"
    energy = meter.energy(3.0)
    assert energy is not None
    assert (energy.joules, energy.watts, energy.by_model) == (40.0, 30.0, {"a": 30.0, "b": 0.0})
    assert meter.computing_watts(3.0) == 30.0
    machine.second(4.0, 40.0, a=2.0, b=1.0)
    assert meter.energy(4.0).by_model == {"a": 50.0, "b": 20.0}  # type: ignore[union-attr]
    assert meter.computing_watts(4.0) == 25.0
    # A beat that is late is replaced by the one before, for a moment.
    machine.second(5.0, 40.0, b=2.0)
    assert meter.energy(5.0).by_model == {"a": 70.0, "b": 40.0}  # type: ignore[union-attr]
    machine.second(9.0, 40.0, b=2.0)
    assert meter.energy(9.0).by_model == {"a": 70.0, "b": 40.0}  # type: ignore[union-attr]
    assert meter.computing_watts(64.0) is not None
    assert meter.computing_watts(65.0) is None, "it was measured too long ago"
    assert meter.energy(14.0).watts is None  # type: ignore[union-attr]
    machine.models.discard("b")
    machine.workers = machine.workers[:1]
    machine.second(10.0, 40.0, a=2.0)
    assert meter.energy(10.0).by_model == {"a": 70.0}  # type: ignore[union-attr]
    meter.close()
    assert machine.closed


def test_what_nobody_saw_counts_for_nobody() -> None:
    machine = Machine("a")
    machine.second(1.0, 0.0, a=0.0)
    machine.second(2.0, 50.0, a=1.0)
    machine.total = None
    machine.second(3.0, 0.0, a=2.0)
    machine.total = 5000.0
    machine.second(4.0, 0.0, a=3.0)
    machine.second(5.0, 50.0, a=4.0)
    machine.second(100.0, 9999.0, a=5.0)
    energy = machine.meter.energy(100.0)
    assert energy is not None
    assert (energy.joules, energy.by_model, energy.watts) == (100.0, {"a": 100.0}, None)
    machine.total += 77.0
    machine.meter.tick(102.0, 3.0)  # This process was not running.
    assert machine.meter.energy(102.0).joules == 100.0  # type: ignore[union-attr]


def test_a_source_that_prints_nothing_and_then_twice_has_one_power() -> None:
    machine = Machine("a")
    machine.counted_s = 1.0
    machine.second(1.0, 0.0, a=0.0)
    seen = []
    for now_s, counted_s, joules in ((2.0, 2.0, 20.0), (3.0, 2.0, 0.0), (4.0, 4.0, 40.0)):
        machine.counted_s = counted_s
        machine.second(now_s, joules, a=now_s - 1.0)
        energy = machine.meter.energy(now_s)
        assert energy is not None
        seen.append((energy.watts, energy.joules))
    assert seen == [(20.0, 20.0), (20.0, 20.0), (20.0, 60.0)]
    assert machine.meter.computing_watts(4.0) == 20.0


def test_without_a_source_there_is_nothing() -> None:
    meter = EnergyMeter(None, list, bool)
    meter.tick(1.0, 0.0)
    assert (meter.energy(1.0), meter.computing_watts(1.0)) == (None, None)
    meter.close()


def test_a_chip_s_power_through_macmon(start: Start) -> None:
    macmon, machine = start(), Machine("a")
    meter = EnergyMeter(macmon, machine.running, machine.models.__contains__)
    machine.workers = [replace(machine.workers[0], rows=1)]
    deadline_s, now_s = time.monotonic() + 90, 0.0
    while (energy := meter.energy(now_s)) is None or not energy.joules:
        assert time.monotonic() < deadline_s
        now_s += 1.0  # Each tick is a reading, however fast the clock runs.
        meter.tick(now_s, 0.0)
        time.sleep(0.1)
    assert energy.joules < WATTS * 90
