"""Puts the checks of ``doctor`` together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.errors import OperationError
from lmx.supervisor.cli.doctor.lines import Line
from lmx.supervisor.cli.doctor.mac import check_mac
from lmx.supervisor.cli.doctor.machine import check_machine
from lmx.supervisor.cli.doctor.setup import check_setup, model_folders
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.config.load import load_config
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


def examine(system: System, home: Home, config_path: Path | None) -> Examination:
    """Check the machine and the installation."""
    name = "macOS" if system.platform == "darwin" else "Linux"
    version = ".".join(map(str, system.python()))
    title = (
        f"lmx {system.version('lmx') or '?'}, {name} {system.release()} {system.machine()}, "
        f"Python {version}"
    )
    running = supervisor_runs(home)
    try:
        config = load_config(config_path, system.environment)
    except OperationError:
        config = None  # A line says so.
    folders = [home.path, _INSTALLED, *([] if config is None else model_folders(config))]
    lines = check_machine(system, home)
    if system.platform == "darwin":
        lines += check_mac(system, home, config or Config(), folders, running=running)
    lines += check_setup(system, home, config_path, config, running=running)
    return Examination(title, lines, folders)
