"""What ``doctor`` checks of every machine: Python, the packages, BLAS, files, memory and disks."""

import re
from collections.abc import Sequence
from typing import Final

from lmx.protocol.host.limits import open_files_limit, raise_file_limit
from lmx.supervisor.cli.doctor.lines import INSTALL_AGAIN, Line, Verdict
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.decisions.memory_reading import KernelPressure, MemoryReading
from lmx.supervisor.memory.fetched import hub_cache
from lmx.supervisor.state.home import Home

FIRST_PYTHON: Final = (3, 11)
BEYOND_PYTHON: Final = (3, 15)

_PINNED: Final = re.compile(r"^([\w.-]+)(?:\[[\w,-]*\])?==([\w.]+)(?:\s*;\s*(.*))?$")
_FEW_FILES: Final = 2048
_GIB: Final = 1024**3
_LITTLE_BYTES: Final = 20 * _GIB
_NOTHING_BYTES: Final = 2 * _GIB
_NOTED_SHARE: Final = 0.9
_FREE_SOME: Final = "lmx list, then lmx rm MODEL"


def check_machine(system: System, home: Home) -> list[Line]:
    """Return the findings."""
    lines = [check_python(system.python()), check_packages(system)]
    if system.platform == "linux":
        lines.append(check_blas(system.library("openblas")))
    raise_file_limit()
    lines.append(check_files(open_files_limit(), system.platform))
    lines.append(check_memory(system.memory()))
    lines += check_disks(system, home)
    lines.append(check_energy(*system.energy(), system.platform))
    return lines


def check_python(version: tuple[int, int, int]) -> Line:
    """Judge the version of Python."""
    fits = FIRST_PYTHON <= version[:2] < BEYOND_PYTHON
    return Line(
        "python",
        "3.11 to 3.14",
        ".".join(map(str, version)),
        Verdict.OK if fits else Verdict.BAD,
        "" if fits else "install lmx with another Python",
    )


def check_packages(system: System) -> Line:
    """Judge whether the packages that lmx reaches deep into are those that it was written for."""
    wrong = []
    for name, version in pinned(system.requirements(), system.platform):
        found = system.version(name)
        if found != version:
            wrong.append(f"{name} {found or 'is missing'} instead of {version}")
    if not system.requirements():
        return Line("packages", "as pinned", "lmx is not installed", Verdict.WARNING, INSTALL_AGAIN)
    if wrong:
        return Line("packages", "as pinned", ", ".join(wrong), Verdict.BAD, INSTALL_AGAIN)
    engine = f"mlx {system.version('mlx')}, mlx-vlm {system.version('mlx-vlm')}"
    return Line("packages", "as pinned", engine, Verdict.OK)


def pinned(requirements: Sequence[str], platform: str) -> list[tuple[str, str]]:
    """Return the packages, with their versions, that are pinned exactly for a platform."""
    found = []
    for requirement in requirements:
        match = _PINNED.match(requirement)
        if match is None:
            continue
        name, version, marker = match.groups()
        if marker and ("extra" in marker or platform not in marker):
            continue
        found.append((name, version))
    return found


def check_blas(library: str | None) -> Line:
    """Judge the BLAS that mlx computes with on a CPU."""
    if library is not None:
        return Line("blas", "OpenBLAS", library, Verdict.OK)
    return Line(
        "blas",
        "OpenBLAS",
        "none: prompts are read about ten times slower",
        Verdict.WARNING,
        "apt-get install libopenblas0-pthread",
    )


def check_files(limit: int, platform: str) -> Line:
    """Judge how many files a process may open: each connection takes one."""
    few = limit < _FEW_FILES
    fix = (
        "sudo launchctl limit maxfiles 65536"
        if platform == "darwin"
        else "ulimit -n 65536, or LimitNOFILE=65536 in the unit"
    )
    return Line(
        "files",
        f"{_FEW_FILES} or more open at a time",
        f"{limit} open at a time",
        Verdict.WARNING if few else Verdict.OK,
        fix if few else "",
    )


def check_memory(reading: MemoryReading | None) -> Line:
    """Judge how full the memory is now."""
    assumption = "enough is left"
    if reading is None:
        return Line("memory", assumption, "it can't be read", Verdict.BAD)
    measured = f"{format_bytes(reading.used_bytes)} of {format_bytes(reading.total_bytes)} in use"
    full = reading.used_share >= _NOTED_SHARE
    if reading.kernel_pressure is not None:
        measured += f", pressure {reading.kernel_pressure.name.lower()}"
        full = reading.kernel_pressure is not KernelPressure.NORMAL
    return Line(
        "memory",
        assumption,
        measured,
        Verdict.WARNING if full else Verdict.OK,
        "close other programs, or lower memory.budget_bytes" if full else "",
    )


def check_energy(found: bool, measured: str, platform: str) -> Line:
    """Say what the machine's energy is measured by, or why it is not."""
    fix = "brew install macmon" if platform == "darwin" and not found else ""
    verdict = Verdict.OK if found else Verdict.NOTE
    return Line("energy", "can be measured, if that is wanted", measured, verdict, fix)


def check_disks(system: System, home: Home) -> list[Line]:
    """Judge the room for models and logs."""
    places = {"home": home.path, "hub cache": hub_cache(system.environment)}
    lines = []
    for name, place in places.items():
        free_bytes = system.free_bytes(place)
        if free_bytes is None:
            lines.append(Line("disk", "can be read", f"{place} can't be", Verdict.BAD))
            continue
        verdict = Verdict.OK
        if free_bytes < _LITTLE_BYTES:
            verdict = Verdict.WARNING
        if free_bytes < _NOTHING_BYTES:
            verdict = Verdict.BAD
        lines.append(
            Line(
                "disk",
                f"{format_bytes(_LITTLE_BYTES)} free for the {name}",
                f"{format_bytes(free_bytes)} free at {place}",
                verdict,
                "" if verdict is Verdict.OK else _FREE_SOME,
            )
        )
    return lines
