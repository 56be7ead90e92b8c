"""The memory of a Mac: the layout of what its kernel tells, readings of real Macs, and a simulated
one on which programs come, go, compress, unwire and leak."""

import ctypes
import errno
import os
import resource
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.host import memory as host_memory
from lmx.protocol.host.memory import sysctl_number
from lmx.protocol.states import MemoryPressure
from lmx.supervisor.cli.command import Exit, for_launchd
from lmx.supervisor.decisions.memory_reading import (
    KernelPressure,
    MacPages,
    MemoryReading,
    mac_reading,
)
from lmx.supervisor.decisions.pressure import Lines, WorkerMemory, reason, wanted_level
from lmx.supervisor.decisions.reclaim import (
    DEADLINE_S,
    Balance,
    ExitedWorker,
    deadline_s,
    judge,
    threshold_bytes,
)
from lmx.supervisor.decisions.working_set import working_set_bytes
from lmx.supervisor.memory import inspect_main, mac, working_set
from lmx.supervisor.memory.inspect_main import privacy_hint
from lmx.supervisor.memory.system import Footprint
from lmx.supervisor.memory.watch import balance_of
from lmx.supervisor.processes.hang_detection import LATE_S

GIB = 1024**3
MIB = 1024**2
PAGE = 16_384
NONE, SOFT, HARD = MemoryPressure.NONE, MemoryPressure.SOFT, MemoryPressure.HARD
LINES = Lines(0.92, 0.97, 1000 * GIB)
NORMAL, WARNING, CRITICAL = KernelPressure


@pytest.mark.parametrize(
    ("layout", "size", "offsets"),
    [
        (mac.VmStatistics64, 152, {
            "free_count": 0, "active_count": 4, "inactive_count": 8, "wire_count": 12,
            "zero_fill_count": 16, "purges": 80, "purgeable_count": 88, "speculative_count": 92,
            "decompressions": 96, "swapouts": 120, "compressor_page_count": 128,
            "throttled_count": 132, "external_page_count": 136, "internal_page_count": 140,
            "total_uncompressed_pages_in_compressor": 144,
        }),
        (host_memory._RusageInfoV4, 296, {
            "uuid": 0, "user_time": 16, "wired_size": 56, "phys_footprint": 72,
            "proc_exit_abstime": 88, "lifetime_max_phys_footprint": 240, "runnable_time": 288,
        }),
    ],
    ids=["<mach/vm_statistics.h>, revision 2", "<sys/resource.h>"],
)  # fmt: skip
def test_a_layout_is_the_kernels(
    layout: type[ctypes.Structure], size: int, offsets: dict[str, int]
) -> None:
    """The offsets are those of xnu's headers."""
    assert {name: getattr(layout, name).offset for name in offsets} == offsets
    assert ctypes.sizeof(layout) == size


class Library:
    """The C library of a Mac, as far as it is asked."""

    asked = 0
    """How often it was asked for its statistics of memory."""

    def __init__(self, numbers: dict[str, tuple[int, int]], status: int = 0) -> None:
        self.numbers = numbers
        self.status = status

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: None, length: Any) -> int:
        found = self.numbers.get(name.decode())
        if found is None:
            return -1
        number, taken = found
        ctypes.memmove(ctypes.addressof(value._obj), number.to_bytes(taken, "little"), taken)
        size._obj.value = taken
        return 0

    def mach_host_self(self) -> int:
        return 7

    def host_statistics64(self, host: int, flavor: int, found: Any, count: Any) -> int:
        assert (host, flavor, count._obj.value) == (7, 4, 38)
        Library.asked += 1
        found._obj.wire_count, found._obj.internal_page_count = 100, 200
        found._obj.purgeable_count, found._obj.compressor_page_count = 50, 25
        found._obj.total_uncompressed_pages_in_compressor = 75
        return self.status

    def proc_pid_rusage(self, pid: int, flavor: int, found: Any) -> int:
        found._obj.phys_footprint, found._obj.lifetime_max_phys_footprint = 5, 9
        found._obj.proc_exit_abstime = 1 if pid == 2 else 0
        return 0


def library(
    monkeypatch: pytest.MonkeyPatch, status: int = 0, /, **numbers: tuple[int, int]
) -> None:
    named = {name.replace("__", "."): number for name, number in numbers.items()}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(named, status))
    Library.asked = 0
    mac._host_port.cache_clear()


def test_numbers_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sysctl_number("kern.maxfilesperproc") is None or sys.platform == "darwin"
    library(monkeypatch, small=(4, 4), large=(1 << 40, 8), text=(1, 1))
    assert host_memory.sysctl_number("small") == 4
    assert host_memory.sysctl_number("large") == 1 << 40
    assert host_memory.sysctl_number("text") is None
    assert host_memory.sysctl_number("none") is None


def test_a_mac_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"hw__memsize": (8 * GIB, 8), "kern__memorystatus_vm_pressure_level": (2, 4)}
    library(monkeypatch, **numbers)
    monkeypatch.setattr(os, "sysconf", lambda name: PAGE)
    reading = mac.read_mac_memory()
    assert reading.total_bytes == 8 * GIB
    assert Library.asked == 1, "the kernel answers few such questions a second"
    used = 100 + 25 + 200 - 50
    assert reading.used_bytes == used * PAGE
    assert (reading.wired_bytes, reading.saved_bytes) == (100 * PAGE, 50 * PAGE)
    assert reading.kernel_pressure is WARNING
    library(monkeypatch, 1, **numbers)
    with pytest.raises(OSError, match="host_statistics64"):
        mac.read_mac_memory()
    library(monkeypatch)
    with pytest.raises(OSError, match=r"hw\.memsize"):
        mac.read_mac_memory()


def test_a_zombie_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch)
    assert host_memory.mac_footprint(1) == (5, 9)
    assert host_memory.mac_footprint(2) is None


@pytest.mark.parametrize("number", [None, 0, 3, 8])
def test_an_unknown_level_is_none(number: int | None) -> None:
    assert mac.kernel_pressure(number) is None


RECORDED = {
    # A Mac of 8 GB at rest, as psutil's tests have it: "75 % in use" by psutil's measure.
    "8 GB at rest": (8 * GIB, MacPages(160_035, 210_000, 8_000, 41_000, 120_000), NORMAL),
    # 24 GB, 82 % used and 8.4 GB compressed, swap in use: Activity Monitor's graph was green.
    "24 GB, green": (24 * GIB, MacPages(230_000, 510_000, 10_000, 550_000, 1_600_000), NORMAL),
    # lmx's whole default budget in use on a Mac of 32 GB, half of the rest inactive.
    "32 GB, lmx full": (32 * GIB, MacPages(1_500_000, 250_000, 0, 10_000, 30_000), NORMAL),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_healthy_mac_is_not_short_of_memory(name: str) -> None:
    total_bytes, pages, pressure = RECORDED[name]
    reading = mac_reading(total_bytes, PAGE, pages, pressure)
    assert 0.3 < reading.used_share < 1
    assert wanted_level(reading, [], LINES) is NONE
    busy = [WorkerMemory("a", "m", 20 * GIB, 24 * GIB, busy=True)]
    assert wanted_level(reading, busy, LINES) is NONE


@pytest.mark.parametrize(
    ("pressure", "level", "minor"),
    [(NORMAL, NONE, NONE), (WARNING, SOFT, SOFT), (CRITICAL, HARD, SOFT)],
)
@given(share=st.floats(0, 1))
def test_the_kernel_says_how_short_memory_is(
    pressure: KernelPressure, level: MemoryPressure, minor: MemoryPressure, share: float
) -> None:
    """However much is in use. But nothing of lmx's ends if others fill the memory."""
    total = 32 * GIB
    reading = MemoryReading(total, int(total * share), kernel_pressure=pressure)
    mine = [WorkerMemory("a", "m", total, total, busy=True)]
    assert wanted_level(reading, mine, LINES) is level
    small = [WorkerMemory("a", "m", 0, GIB, busy=True)]
    if reading.used_bytes:
        assert wanted_level(reading, small, LINES) is minor
    assert pressure.name.lower() in reason(reading, mine, LINES)


@dataclass
class Program:
    """A program's pages."""

    wired: int = 0
    internal: int = 0
    compressed: int = 0

    @property
    def footprint(self) -> Footprint:
        held = (self.wired + self.internal + self.compressed) * PAGE
        return Footprint(held, held)


@dataclass
class Mac:
    """A machine of pages. What is compressed takes a third."""

    total: int = 64 * GIB // PAGE
    kernel: int = 3 * GIB // PAGE
    leaked: int = 0
    programs: dict[str, Program] = field(default_factory=dict)

    @property
    def reading(self) -> MemoryReading:
        each = self.programs.values()
        compressed = sum(one.compressed for one in each)
        pages = MacPages(
            self.kernel + self.leaked + sum(one.wired for one in each),
            sum(one.internal for one in each),
            0,
            -(-compressed // 3),
            compressed,
        )
        return mac_reading(self.total * PAGE, PAGE, pages, NORMAL)

    def balance(self, *workers: str) -> Balance:
        return balance_of(self.reading, {one: self.programs[one].footprint for one in workers})


sizes = st.integers(0, 6 * GIB // PAGE)


@given(
    worker=st.builds(Program, sizes, sizes, sizes),
    other=st.builds(Program, sizes, sizes, sizes),
    leaks=st.floats(0, 1),
    unwires=st.booleans(),
    compresses=st.floats(0, 1),
)
def test_every_leak_is_found_and_nothing_else(
    worker: Program, other: Program, leaks: float, unwires: bool, compresses: float
) -> None:
    machine = Mac(programs={"a": worker, "b": other})
    if unwires:  # It was idle for a second.
        worker.internal, worker.wired = worker.internal + worker.wired, 0
    before = machine.balance("a", "b")
    held = worker.footprint.held_bytes
    # While it ends, the system compresses some of another one.
    squeezed = int(other.internal * compresses)
    other.internal, other.compressed = other.internal - squeezed, other.compressed + squeezed
    del machine.programs["a"]
    machine.leaked = int(worker.wired * leaks)
    exited = ExitedWorker("a", "model", held, before, 0.0)
    [judged] = judge([exited], machine.balance("b"), DEADLINE_S + 10)
    lost = machine.leaked * PAGE
    expected = lost if lost > threshold_bytes(held) else 0
    # The compressor holds whole pages.
    assert judged.missing_bytes == pytest.approx(expected, abs=4 * PAGE)


def test_a_large_process_has_longer_to_give_its_memory_back() -> None:
    assert deadline_s(20 * GIB) == DEADLINE_S
    assert deadline_s(373 * GIB) == DEADLINE_S + 7


@pytest.mark.parametrize(
    ("total", "reported", "limit_mb", "expected"),
    [
        (16, int(10.67 * GIB), 0, int(10.67 * GIB)),
        (16, None, 0, 16 * GIB * 2 // 3),
        (32, None, 0, 32 * GIB * 2 // 3),
        (36, None, 0, 27 * GIB),
        (128, None, 122_880, 120 * GIB),
        (64, 100 * GIB, 0, 64 * GIB),
        (64, 0, 0, 48 * GIB),
    ],
)
def test_how_much_the_gpu_may_have(
    total: int, reported: int | None, limit_mb: int, expected: int
) -> None:
    assert working_set_bytes(total * GIB, reported, limit_mb) == expected


def test_the_gpu_is_asked_until_it_answers_for_each_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    numbers = {"iogpu.wired_limit_mb": 0}
    monkeypatch.setattr(working_set, "sysctl_number", numbers.get)
    monkeypatch.setattr(working_set, "_reported", {})
    asked: list[list[str]] = []
    timeouts_s: list[float] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        timeouts_s.append(options["timeout"])
        if len(asked) in (2, 3):
            raise subprocess.TimeoutExpired(command, 20)
        return subprocess.CompletedProcess(command, 0, f"{GIB}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert [working_set.read_working_set() for _ in range(2)] == [GIB, GIB]
    numbers["iogpu.wired_limit_mb"] = 512
    assert [working_set.read_working_set() for _ in range(2)] == [512 * MIB] * 2, "it is silent"
    assert max(timeouts_s[1:]) < min(LATE_S, timeouts_s[0]), "the supervisor may not seem to hang"
    assert len(asked) == 3
    working_set.read_working_set()
    assert working_set._reported == {0: GIB, 512: GIB}
    working_set.read_working_set()
    assert len(asked) == 4
    assert asked[0][0] == sys.executable


def test_elsewhere_no_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert working_set.read_working_set() is None


def test_a_folder_that_macos_keeps_closed_is_distinguished_from_one_with_wrong_rights() -> None:
    kept = PermissionError(errno.EPERM, "Operation not permitted")
    assert "System Settings" in privacy_hint(kept, "darwin")
    assert privacy_hint(kept, "linux") == ""
    assert privacy_hint(PermissionError(errno.EACCES, "Permission denied"), "darwin") == ""
    assert privacy_hint(ValueError("x"), "darwin") == ""


@pytest.mark.parametrize(("platform", "limited"), [("linux", True), ("darwin", False)])
def test_a_mac_counts_too_much_to_limit_what_is_mapped(
    monkeypatch: pytest.MonkeyPatch, platform: str, limited: bool
) -> None:
    kinds: list[int] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, _: kinds.append(kind))
    inspect_main._limit()
    assert (resource.RLIMIT_AS in kinds) is limited
    assert resource.RLIMIT_CORE in kinds


def test_launchd_is_not_asked_to_try_in_vain() -> None:
    agent = {"XPC_SERVICE_NAME": "com.lmx.supervisor"}
    assert for_launchd(Exit.ALREADY_RUNNING, agent) == (Exit.OK, 0.0)
    assert for_launchd(Exit.CONFIG_INVALID, agent) == (Exit.CONFIG_INVALID, 60.0)
    assert for_launchd(Exit.FAILED, agent) == (Exit.FAILED, 0.0)
    for environment in ({}, {"XPC_SERVICE_NAME": "0"}):
        assert for_launchd(Exit.ALREADY_RUNNING, environment) == (Exit.ALREADY_RUNNING, 0.0)
