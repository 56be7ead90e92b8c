"""Reads how much memory the machine has, how much of it is left, and what one process holds, on
Linux and macOS.

A cgroup with a memory limit (a container, a systemd unit) counts as a smaller machine, because its
processes are killed at that limit.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from lmx.protocol.host.memory import mac_footprint
from lmx.supervisor.decisions.memory_reading import Capacity, MemoryReading
from lmx.supervisor.memory.mac import read_mac_memory

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")

_UNLIMITED_BYTES: Final = 1 << 60
"""cgroup v1 has no word for "no limit", only a number beyond every machine."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory that one process holds."""

    held_bytes: int
    """What would come back if the process ended."""
    wired_bytes: int
    """How much of it the machine may count as wired."""


def read_memory() -> MemoryReading:
    """Read the memory of the machine and of the cgroups of this process. This takes a millisecond
    or two."""
    if sys.platform == "darwin":
        return read_mac_memory()
    memory = psutil.virtual_memory()
    kept_bytes = kept_by_cpus_bytes(PROC)
    wired_bytes = unowned_bytes(PROC, kept_bytes)
    available_bytes = min(memory.total, memory.available + kept_bytes)
    capacities = [Capacity(memory.total, available_bytes), *cgroup_capacities(PROC, CGROUPS)]
    return MemoryReading(
        min(capacity.total_bytes for capacity in capacities),
        min(capacity.available_bytes for capacity in capacities),
        wired_bytes,
        max(capacity.used_share for capacity in capacities),
    )


def cgroup_capacities(proc: Path, cgroups: Path) -> list[Capacity]:
    """Return the limit of each cgroup around this process that has one, innermost first.

    Pages of files do not count as taken, because the system drops them before it kills a process.
    Its own figure "available" does the same. If they counted, every start that reads weights would
    look like a shortage.
    """
    found = map(_capacity, memory_cgroups(proc, cgroups))
    return [capacity for capacity in found if capacity is not None]


def memory_cgroups(proc: Path, cgroups: Path) -> list[Path]:
    """Return the folders of this process's cgroups that count memory, innermost first.

    In a container the path in ``/proc`` may be that of the host, of which only the mounted end
    exists here. Folders that do not exist are skipped.
    """
    try:
        text = (proc / "self" / "cgroup").read_text()
    except OSError:
        return []
    found: list[Path] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.extend(_upwards(cgroups / "memory", path))
        elif controllers == "":
            found.extend(_upwards(cgroups, path))
    return found


def read_footprint(pid: int) -> Footprint | None:
    """Return what a process holds, None if it is gone or can't be read.

    On macOS this is its physical footprint with the buffers of the GPU, any of which may be wired.
    On Linux it is its own pages and shared memory; pages of files are available to others while it
    runs.
    """
    if sys.platform == "darwin":
        found = mac_footprint(pid)
        return None if found is None else Footprint(found[0], found[0])
    return linux_footprint(PROC, pid)


def linux_footprint(proc: Path, pid: int) -> Footprint | None:
    """Return what ``/proc/PID/status`` says, None for a process that has ended."""
    try:
        sizes = _sizes(proc / str(pid) / "status")
    except (FileNotFoundError, ProcessLookupError):
        return None
    own_bytes, shared_bytes = sizes.get("RssAnon"), sizes.get("RssShmem", 0)
    return None if own_bytes is None else Footprint(own_bytes + shared_bytes, shared_bytes)


def unowned_bytes(proc: Path, kept_bytes: int) -> int | None:
    """Return how much memory of a Linux machine is taken that is neither a process's own page nor a
    file's.

    If memory of an ended process stays taken, it must be there. What other programs allocate is
    not.
    """
    sizes = _sizes(proc / "meminfo")
    names = ("MemTotal", "MemFree", "Buffers", "Cached", "Shmem", "SReclaimable", "AnonPages")
    if any(name not in sizes for name in names):
        return None
    total, free, buffers, cached, shared, slab, own = (sizes[name] for name in names)
    return total - free - kept_bytes - buffers - (cached - shared) - slab - own


def kept_by_cpus_bytes(proc: Path) -> int:
    """Return the free pages that each CPU keeps for itself, in bytes. Linux counts them neither as
    free nor as available, but takes them back before memory runs short.

    Two CPUs kept 1.2 GiB right after a process of 1.5 GiB had ended (Linux 6.18).
    """
    try:
        lines = (proc / "zoneinfo").read_text().splitlines()
    except (FileNotFoundError, PermissionError):
        return 0
    words = (line.split() for line in lines)
    pages = sum(int(pair[1]) for pair in words if len(pair) == 2 and pair[0] == "count:")
    return pages * os.sysconf("SC_PAGE_SIZE")


def counters(path: Path) -> dict[str, int]:
    """Return the ``name number`` lines of a file below /proc or a cgroup, none if there is no such
    file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _sizes(path: Path) -> dict[str, int]:
    """Return the ``Name: number kB`` lines of a file below /proc, in bytes."""
    words = (line.split() for line in path.read_text().splitlines())
    return {
        one[0].rstrip(":"): int(one[1]) * 1024 for one in words if len(one) == 3 and one[2] == "kB"
    }


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    folder = mount / path.lstrip("/")
    # A process that was moved out of the mounted part has a path that begins with "/..".
    while ".." not in folder.parts:
        if folder.is_dir():
            yield folder
        if folder == mount:
            return
        folder = folder.parent


def _capacity(folder: Path) -> Capacity | None:
    limit_bytes = _number(folder, "memory.max", "memory.limit_in_bytes")
    if limit_bytes is None or limit_bytes >= _UNLIMITED_BYTES:
        return None
    taken_bytes = _number(folder, "memory.current", "memory.usage_in_bytes")
    if taken_bytes is None:
        return None
    stat = counters(folder / "memory.stat")
    files_bytes = sum(
        stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file")
    )
    return Capacity(limit_bytes, min(limit_bytes, max(0, limit_bytes - taken_bytes + files_bytes)))


def _number(folder: Path, *names: str) -> int | None:
    """Return the number in the first of the files that exists, None for the "max" of cgroup v2."""
    for name in names:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
