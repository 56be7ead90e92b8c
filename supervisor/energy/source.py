"""What an energy meter reads: the interface, and which source this machine has."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from lmx.supervisor.energy.macmon import Macmon
from lmx.supervisor.energy.rapl import Rapl, RaplUnreadable

POWERCAP: Final = Path("/sys/class/powercap")

_MORE_FOLDERS: Final = ("/opt/homebrew/bin", "/usr/local/bin", "/opt/local/bin")
"""Where Homebrew and MacPorts put programs; launchd has none of them in PATH."""


class Source(Protocol):
    """Counts the machine's joules. It is read once a second, and never waits."""

    name: str
    """What it is, for people."""

    def read(self, now_s: float, *, wanted: bool) -> tuple[float, float] | None:
        """Return for how many seconds it has counted since some fixed moment, and how many joules;
        None while that is unknown. A source that costs something counts only while it is
        ``wanted``."""

    def close(self) -> None:
        """End what it has started."""


def find_source(
    platform: str, environment: Mapping[str, str], powercap: Path = POWERCAP
) -> tuple[Source | None, str]:
    """Return the machine's source, and a phrase about it for people; None with the reason where
    there is no source."""
    why = "this machine has no RAPL (an Intel or AMD processor, outside of virtual machines)"
    try:
        if (rapl := Rapl.find(powercap)) is not None:
            return rapl, rapl.name
    except RaplUnreadable as error:
        why = str(error)
    path = ":".join((environment.get("PATH", ""), *_MORE_FOLDERS))
    program = shutil.which("macmon", path=path)
    if program is not None:
        return Macmon(program), f"macmon ({program})"
    return None, "macmon is not installed" if platform == "darwin" else why
