"""Puts the checks of ``doctor`` together."""

from __future__ import annotations

from pathlib import Path

from lmx.protocol.errors import OperationError
from lmx.supervisor.cli.doctor.lines import Line
from lmx.supervisor.cli.doctor.mac import check_mac
from lmx.supervisor.cli.doctor.machine import check_machine
from lmx.supervisor.cli.doctor.setup import check_setup
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.config.load import load_config
from lmx.supervisor.sockets.client import supervisor_runs
from lmx.supervisor.state.home import Home


def examine(system: System, home: Home, config_path: Path | None) -> tuple[str, list[Line]]:
    """Return what machine this is, in a line, and the findings."""
    name = "macOS" if system.platform == "darwin" else "Linux"
    version = ".".join(map(str, system.python()))
    title = (
        f"lmx {system.version('lmx') or '?'}, {name} {system.release()} {system.machine()}, "
        f"Python {version}"
    )
    running = supervisor_runs(home)
    lines = check_machine(system, home)
    if system.platform == "darwin":
        try:
            config = load_config(config_path, system.environment)
        except OperationError:
            config = None  # Another line says so.
        lines += check_mac(system, home, config, running=running)
    return title, lines + check_setup(system, home, config_path, running=running)
