"""The energy counters of Intel's and AMD's processors (RAPL), as Linux shows them in files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ZONE: Final = re.compile(r"intel-rapl:\d+(:\d+)?")
"""AMD's processors have this name too. `intel-rapl-mmio` counts the same joules once more."""

_MICRO: Final = 1e-6


class RaplUnreadable(Exception):
    """The machine has counters that this user may not read. Its text says so, for people."""


@dataclass(slots=True)
class _Zone:
    """A counter of microjoules, which begins again at 0 after ``range_uj``."""

    file: Path
    range_uj: int
    last_uj: int
    total_uj: int = 0

    def read(self) -> int:
        """Return the microjoules since the first reading. Between two readings the counter may
        begin again once."""
        now_uj = int(self.file.read_text())
        step_uj = now_uj - self.last_uj
        self.total_uj += step_uj if step_uj >= 0 else step_uj + self.range_uj
        self.last_uj = now_uj
        return self.total_uj


class Rapl:
    """The counters of all processor packages, and of the memory where it has its own."""

    name = "RAPL"

    def __init__(self, zones: Sequence[_Zone]) -> None:
        self._zones = zones

    @classmethod
    def find(cls, powercap: Path) -> "Rapl | None":
        """Return the machine's counters; None if it has none. Raises :class:`RaplUnreadable`."""
        zones: list[_Zone] = []
        try:
            folders = sorted(one for one in powercap.iterdir() if _ZONE.fullmatch(one.name))
        except OSError:
            return None
        for folder in folders:
            file = folder / "energy_uj"
            try:
                name = (folder / "name").read_text().strip()
                if not name.startswith("package") and name != "dram":
                    continue  # It is a part of a package, or contains them.
                range_uj = int((folder / "max_energy_range_uj").read_text())
                zones.append(_Zone(file, range_uj, int(file.read_text())))
            except PermissionError as error:
                raise RaplUnreadable(f"only root may read {file}") from error
            except (OSError, ValueError):
                continue
        return cls(zones) if zones else None

    def read(self, now_s: float, *, wanted: bool) -> tuple[float, float] | None:
        """See :class:`lmx.supervisor.energy.source.Source`. The files are the kernel's memory: a
        reading takes microseconds."""
        try:
            return now_s, sum(zone.read() for zone in self._zones) * _MICRO
        except (OSError, ValueError):
            return None  # The driver was unloaded, or the right to read it was taken away.

    def close(self) -> None:
        """See :class:`lmx.supervisor.energy.source.Source`."""
