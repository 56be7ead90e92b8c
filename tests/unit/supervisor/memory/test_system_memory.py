"""Reading the machine's memory, its cgroups and the kernel's kills, from files made here."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.states import MemoryPressure
from lmx.supervisor.config.schema import MemoryConfig
from lmx.supervisor.decisions.ledger import budget_bytes
from lmx.supervisor.decisions.memory_reading import Capacity, MemoryReading
from lmx.supervisor.memory import system
from lmx.supervisor.memory.system import (
    Footprint,
    cgroup_capacities,
    kept_by_cpus_bytes,
    linux_footprint,
    memory_cgroups,
    read_footprint,
    read_memory,
    unowned_bytes,
)
from lmx.supervisor.memory.watch import OomEvidence, oom_kills

GIB = 1024**3
NO_LIMIT_V1 = "9223372036854771712\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class Machine:
    """A /proc and a /sys/fs/cgroup."""

    def __init__(self, path: Path) -> None:
        self.proc, self.cgroups = path / "proc", path / "cgroup"
        self.cgroups.mkdir()

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def within(self, text: str) -> None:
        self.write(self.proc / "self" / "cgroup", text)

    def cgroup(self, name: str, **files: str) -> None:
        for file, text in files.items():
            self.write(self.cgroups / name / file.replace("memory_", "memory."), text)

    def capacities(self) -> list[Capacity]:
        return cgroup_capacities(self.proc, self.cgroups)


def test_the_budget_leaves_the_reserve() -> None:
    memory = MemoryConfig()
    assert budget_bytes(memory, 64 * GIB) == 48 * GIB
    assert budget_bytes(memory, 4 * GIB) == 2 * GIB
    assert budget_bytes(memory, 1 * GIB) == 0
    assert budget_bytes(MemoryConfig(budget_bytes=60 * GIB), 64 * GIB) == 60 * GIB
    assert budget_bytes(MemoryConfig(budget_bytes=70 * GIB), 64 * GIB) == 62 * GIB


@pytest.mark.parametrize(
    ("ram", "working_set", "budget"),
    [
        (8, 5.25, 4),  # the reserve of a small Mac
        (16, 10.5, 9.5),
        (24, 16, 15),
        (32, 21, 20),
        (64, 48, 47),
        (128, 107.5, 106.5),  # macOS 26
    ],
)
def test_the_budget_of_a_mac_is_what_its_gpu_may_have(
    ram: int, working_set: float, budget: float
) -> None:
    gpu_bytes = int(working_set * GIB)
    assert budget_bytes(MemoryConfig(), ram * GIB, gpu_bytes) == int(budget * GIB)
    whole = MemoryConfig(budget_bytes=ram * GIB)
    assert budget_bytes(whole, ram * GIB, gpu_bytes) == int(budget * GIB), "never more than that"
    half = MemoryConfig(budget_fraction=0.25)
    assert budget_bytes(half, ram * GIB, gpu_bytes) == ram * GIB // 4, "what is configured counts"


@given(st.integers(0, 1 << 42), st.integers(0, 1 << 42), st.floats(0.01, 1))
def test_a_larger_machine_has_no_smaller_budget(one: int, other: int, fraction: float) -> None:
    memory = MemoryConfig(budget_fraction=fraction)
    low, high = sorted((one, other))
    assert 0 <= budget_bytes(memory, low) <= budget_bytes(memory, high) <= high


def test_this_machine_and_this_process_can_be_read() -> None:
    reading = read_memory()
    assert 0 < reading.available_bytes <= reading.total_bytes <= psutil.virtual_memory().total
    assert 0 < reading.used_share < 1
    held = read_footprint(os.getpid())
    assert held is not None
    assert 1024**2 < held.held_bytes < psutil.Process().memory_info().rss * 2


def test_the_footprint_of_a_process_that_is_gone() -> None:
    assert read_footprint(2**22 + 1) is None


def test_the_footprint_leaves_out_pages_of_files(machine: Machine) -> None:
    status = "Name:\tpython\nVmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 300 kB\n"
    machine.write(machine.proc / "7" / "status", status + "RssShmem:\t 100 kB\nThreads:\t3\n")
    assert linux_footprint(machine.proc, 7) == Footprint(600 * 1024, 100 * 1024)
    machine.write(machine.proc / "8" / "status", "Name:\tpython\nState:\tZ (zombie)\n")
    assert linux_footprint(machine.proc, 8) is None


def test_what_belongs_to_no_process(machine: Machine) -> None:
    sizes = {
        "MemTotal": 1000, "MemFree": 300, "MemAvailable": 600, "Buffers": 10, "Cached": 200,
        "Shmem": 50, "SReclaimable": 20, "AnonPages": 400,
    }  # fmt: skip
    text = "".join(f"{name}: {size:8} kB\n" for name, size in sizes.items())
    machine.write(machine.proc / "meminfo", text + "HugePages_Total:  0\n")
    kept = kept_by_cpus_bytes(machine.proc)
    assert kept == 0
    assert unowned_bytes(machine.proc, kept) == (1000 - 300 - 10 - 150 - 20 - 400) * 1024
    assert unowned_bytes(machine.proc, 1024) == (1000 - 301 - 10 - 150 - 20 - 400) * 1024
    machine.write(machine.proc / "meminfo", "MemTotal: 1000 kB\n")
    assert unowned_bytes(machine.proc, kept) is None


def test_what_each_cpu_keeps(machine: Machine) -> None:
    zones = "zone Normal\n pagesets\n cpu: 0\n count: {}\n high: 9\n cpu: 1\n count: 3\n"
    machine.write(machine.proc / "zoneinfo", zones.format(2))
    assert kept_by_cpus_bytes(machine.proc) == 5 * os.sysconf("SC_PAGE_SIZE")


def test_cgroup_v2_files_count_as_available(machine: Machine) -> None:
    machine.within("0::/system.slice/lmx.service\n")
    machine.cgroup(
        "system.slice/lmx.service",
        memory_max=f"{8 * GIB}\n",
        memory_current=f"{6 * GIB}\n",
        memory_stat=f"anon {2 * GIB}\ninactive_file {3 * GIB}\nactive_file {1 * GIB}\n",
    )
    machine.cgroup("system.slice", memory_max="max\n", memory_current=f"{20 * GIB}\n")
    assert machine.capacities() == [Capacity(8 * GIB, 6 * GIB)]


def test_every_cgroup_around_counts(machine: Machine) -> None:
    machine.within("0::/a/b\n")
    machine.cgroup("a/b", memory_max=f"{8 * GIB}", memory_current="0", memory_stat="")
    machine.cgroup("a", memory_max=f"{4 * GIB}", memory_current=f"{3 * GIB}")
    assert machine.capacities() == [Capacity(8 * GIB, 8 * GIB), Capacity(4 * GIB, 1 * GIB)]


def test_cgroup_v1_has_its_own_names(machine: Machine) -> None:
    machine.within("5:cpu,cpuacct:/x\n4:memory:/lmx\n0::/elsewhere\n")
    machine.cgroup(
        "memory/lmx",
        memory_limit_in_bytes=f"{4 * GIB}\n",
        memory_usage_in_bytes=f"{3 * GIB}\n",
        memory_stat=f"inactive_file 1\ntotal_inactive_file {1 * GIB}\ntotal_active_file 0\n",
    )
    machine.cgroup(
        "memory", memory_limit_in_bytes=NO_LIMIT_V1, memory_usage_in_bytes=f"{9 * GIB}\n"
    )
    assert machine.capacities() == [Capacity(4 * GIB, 2 * GIB)]


def test_a_path_of_the_host_falls_back_on_the_containers_own(machine: Machine) -> None:
    machine.within("0::/docker/0123\n")
    machine.cgroup(".", memory_max=f"{2 * GIB}\n", memory_current=f"{GIB}\n")
    assert machine.capacities() == [Capacity(2 * GIB, GIB)]
    machine.within("0::/../../elsewhere\n")
    assert memory_cgroups(machine.proc, machine.cgroups) == []


def test_without_cgroups_there_is_no_room_of_theirs(machine: Machine) -> None:
    assert machine.capacities() == []
    machine.within("0::/\n")
    assert machine.capacities() == []


def test_the_fullest_place_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is full, with a cgroup that is not: the mix of both would look fine."""
    full = type("Memory", (), {"total": 64 * GIB, "available": GIB, "wired": 0})
    monkeypatch.setattr(system, "kept_by_cpus_bytes", lambda _: 0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: full)
    monkeypatch.setattr(system, "cgroup_capacities", lambda *_: [Capacity(8 * GIB, 6 * GIB)])
    reading = read_memory()
    assert (reading.total_bytes, reading.available_bytes) == (8 * GIB, GIB)
    assert reading.used_bytes == 7 * GIB
    assert reading.used_share == pytest.approx(63 / 64)
    assert MemoryReading(100, 40).used_share == pytest.approx(0.6)


def test_kills_are_counted_where_the_process_is(machine: Machine) -> None:
    assert oom_kills(machine.proc, machine.cgroups) is None
    machine.write(machine.proc / "vmstat", "nr_free_pages 5\noom_kill 7\n")
    assert oom_kills(machine.proc, machine.cgroups) == 7
    machine.within("0::/lmx\n")
    machine.cgroup("lmx", memory_events="low 0\noom 3\noom_kill 2\n")
    assert oom_kills(machine.proc, machine.cgroups) == 2
    machine.within("4:memory:/lmx\n")
    machine.cgroup("memory/lmx", memory_oom_control="under_oom 0\noom_kill 4\n")
    assert oom_kills(machine.proc, machine.cgroups) == 4


class Kernel:
    def __init__(self) -> None:
        self.kills: int | None = 5
        self.pressure = MemoryPressure.NONE

    def evidence(self, counted: bool = True) -> OomEvidence:
        return OomEvidence(lambda: self.pressure, lambda: self.kills, counted=counted)


def test_one_kill_explains_one_exit() -> None:
    kernel = Kernel()
    evidence = kernel.evidence()
    evidence.tick(0.0)
    assert not evidence.explains(-signal.SIGKILL, 0.1)
    kernel.kills = 6
    assert not evidence.explains(-signal.SIGSEGV, 0.2)
    assert not evidence.explains(1, 0.2)
    assert evidence.explains(-signal.SIGKILL, 0.2)
    assert not evidence.explains(-signal.SIGKILL, 0.3)


def test_a_kill_of_long_ago_explains_nothing() -> None:
    kernel = Kernel()
    evidence = kernel.evidence()
    evidence.tick(0.0)
    kernel.kills = 6
    for now_s in range(1, 9):
        evidence.tick(float(now_s))
    assert evidence.explains(None, 9.0)
    kernel.kills = 8
    for now_s in range(10, 25):
        evidence.tick(float(now_s))
    assert not evidence.explains(-signal.SIGKILL, 25.0)


def test_nobody_counts() -> None:
    kernel = Kernel()
    kernel.kills = None
    evidence = kernel.evidence()
    evidence.tick(0.0)
    assert not evidence.explains(-signal.SIGKILL, 0.1)


def test_on_macos_the_pressure_is_the_evidence() -> None:
    kernel = Kernel()
    evidence = kernel.evidence(counted=False)
    assert not evidence.explains(-signal.SIGKILL, 0.0)
    kernel.pressure = MemoryPressure.SOFT
    assert evidence.explains(-signal.SIGKILL, 0.0)
    assert not evidence.explains(-signal.SIGABRT, 0.0)
    assert not evidence.explains(None, 0.0)
