"""Puts the checks of ``doctor`` together, and those of ``--bench`` and ``--sleep``, which measure:
speed, memory that comes back, pauses, processes, a sleep. Nothing of lmx must be busy meanwhile."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.supervisor.cli.doctor.device import decoding, held_memory, long_kernel
from lmx.supervisor.cli.doctor.lines import Line, Verdict
from lmx.supervisor.cli.doctor.mac import check_launchd, check_mac
from lmx.supervisor.cli.doctor.machine import check_machine
from lmx.supervisor.cli.doctor.processes import try_processes
from lmx.supervisor.cli.doctor.setup import check_setup, model_folders
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.config.schema import Config
from lmx.supervisor.sockets.client import supervisor_runs
from lmx.supervisor.state.home import Home

_INSTALLED: Final = Path(__file__).resolve().parents[3]
"""The checkout, or the folder of installed packages."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found without measuring anything."""

    title: str
    """What machine this is, in a line."""
    lines: list[Line]
    folders: list[Path]
    """The folders that lmx needs: its home, its own code, the models that are not in its home."""


def examine(
    system: System, home: Home, config_path: Path | None, config: Config | None
) -> Examination:
    """Check the machine and the installation. ``config`` is None if it is not valid."""
    name = "macOS" if system.platform == "darwin" else "Linux"
    version = ".".join(map(str, system.python()))
    title = (
        f"lmx {system.version('lmx') or '?'}, {name} {system.release()} {system.machine()}, "
        f"Python {version}"
    )
    running = supervisor_runs(home)
    folders = [home.path, _INSTALLED, *([] if config is None else model_folders(config))]
    lines = check_machine(system, home)
    if system.platform == "darwin":
        lines += check_mac(system, home, config or Config(), folders, running=running)
    lines += check_setup(system, home, config_path, config, running=running)
    return Examination(title, lines, folders)


_SLEEP_S: Final = 60.0
_KERNEL_S: Final = 3.0


def measure(system: System, folders: Sequence[Path]) -> list[Line]:
    """Return what was measured. It takes some seconds, and two minutes on a Mac. ``folders`` are
    those that lmx needs."""
    if system.platform != "darwin":
        return [*try_processes(), *held_memory(256, gpu=False), *decoding(1024, 8, 1.0)]
    return [
        *try_processes(),
        check_launchd(system, folders),
        *held_memory(2048, gpu=True),
        *decoding(4096, 32, 2.0),
        long_kernel(_KERNEL_S),
    ]


def sleep_once() -> Line:
    """Put this Mac to sleep, and say whether the clock that deadlines use stood still. Somebody
    must wake it."""
    assumption = "the clock of deadlines stands still while the Mac sleeps"
    if sys.platform != "darwin":
        return Line("clock", assumption, "this is no Mac", Verdict.NOTE)
    monotonic_s, wall_s = time.monotonic(), time.time()
    subprocess.run(["/usr/bin/pmset", "sleepnow"], check=False, capture_output=True)
    while time.time() - wall_s < _SLEEP_S and time.monotonic() - monotonic_s < _SLEEP_S:
        time.sleep(1.0)
    slept_s = (time.time() - wall_s) - (time.monotonic() - monotonic_s)
    return Line(
        "clock",
        assumption,
        f"it slept for about {slept_s:.0f} s",
        Verdict.OK if slept_s > 1 else Verdict.WARNING,
    )
