"""A Mac, as far as ``doctor`` asks it, and a Linux machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmx.supervisor.cli.doctor.lines import Line
from lmx.supervisor.cli.doctor.system import System
from lmx.supervisor.config.schema import ServerConfig
from lmx.supervisor.decisions.memory_reading import KernelPressure, MemoryReading

GIB = 1024**3
PMSET = "Active Profiles:\nBattery Power\t-1\nAC Power\t-1*\nCurrently in use:\n sleep\t\t10\n"


class Mac(System):
    """A Mac on which all is well."""

    platform = "darwin"

    def __init__(self, home: Path, **changes: Any) -> None:
        self.home = home
        self.changes = changes
        self.asked: list[tuple[str, ...]] = []

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HOME": str(self.home), **self.changes.get("environment", {})}

    def python(self) -> tuple[int, int, int]:
        return 3, 13, 1

    def machine(self) -> str:
        return "arm64"

    def release(self) -> str:
        return "26.1"

    def sysctl(self, name: str) -> int | None:
        numbers = {
            "kern.ipc.somaxconn": 1024,
            "iogpu.wired_limit_mb": 0,
            "kern.memorystatus_level": 71,
        }
        return numbers.get(name)

    def run(self, *command: str, limit_s: float = 10.0) -> str | None:
        self.asked.append(command)
        return {
            "/usr/bin/pmset": PMSET.replace("10", "0"),
            "/usr/bin/id": "501\n",
            "/usr/bin/tmutil": "[Excluded]    /Users/me/.lmx/models\n",
            "/usr/libexec/ApplicationFirewall/socketfilterfw": "Firewall is off. (State = 0)",
        }.get(command[0])

    def energy(self) -> tuple[bool, str]:
        return True, "macmon (/opt/homebrew/bin/macmon)"

    def requirements(self) -> Sequence[str]:
        return ["mlx==0.32.4; sys_platform == 'darwin'", "mlx[cpu]==9; sys_platform == 'linux'"]

    def version(self, package: str) -> str | None:
        return {"mlx": "0.32.4", "mlx-vlm": "0.7.10", "lmx": "0.1.0"}.get(package)

    def free_bytes(self, folder: Path) -> int | None:
        return 100 * GIB

    def port_taken(self, server: ServerConfig) -> bool:
        return False

    def memory(self) -> MemoryReading | None:
        return MemoryReading(64 * GIB, 40 * GIB, 3 * GIB, kernel_pressure=KernelPressure.NORMAL)

    def working_set(self) -> int | None:
        return 48 * GIB

    def other_available_bytes(self) -> int:
        return 12 * GIB

    def files(self, folder: Path, pattern: str, newer_than_s: float) -> list[Path]:
        found: list[Path] = self.changes.get(pattern, [])
        return found

    def text(self, path: Path, most_bytes: int) -> str:
        return "panic(cpu 4): completeMemory() prepare count underflow @IOGPUMemory.cpp:550"


class Linux(Mac):
    platform = "linux"

    def library(self, name: str) -> str | None:
        return "libopenblas.so.0"


def line_of(lines: Sequence[Line], name: str) -> Line:
    return next(line for line in lines if line.name == name)
