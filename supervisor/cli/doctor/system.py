"""What ``doctor`` asks of the system. Tests put another one in its place."""

import ctypes.util
import errno
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

from lmx.protocol.host.memory import sysctl_number
from lmx.supervisor.config.schema import ServerConfig
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.energy.source import find_source
from lmx.supervisor.memory.system import read_memory
from lmx.supervisor.memory.working_set import read_working_set
from lmx.supervisor.sockets.listening import bind

_COMMAND_S: Final = 10.0


class System:
    """Reads one machine. No method raises because of what it reads."""

    platform: str = sys.platform

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment of this process."""
        return os.environ

    def python(self) -> tuple[int, int, int]:
        """Return the version of Python."""
        return sys.version_info[0], sys.version_info[1], sys.version_info[2]

    def machine(self) -> str:
        """Return the architecture, as this process sees it."""
        return platform.machine()

    def release(self) -> str:
        """Return the version of macOS, or of the kernel."""
        return platform.mac_ver()[0] or platform.release()

    def sysctl(self, name: str) -> int | None:
        """Return a number of macOS's kernel."""
        return sysctl_number(name)

    def run(self, *command: str, limit_s: float = _COMMAND_S) -> str | None:
        """Return what a command prints; None if it is not there, fails or takes too long."""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit_s, check=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        return done.stdout

    def requirements(self) -> Sequence[str]:
        """Return what the installed lmx requires; nothing if it is not installed."""
        try:
            return metadata.requires("lmx") or []
        except metadata.PackageNotFoundError:
            return []

    def version(self, package: str) -> str | None:
        """Return the version of an installed package."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def library(self, name: str) -> str | None:
        """Return the file of a shared library."""
        return ctypes.util.find_library(name)

    def free_bytes(self, folder: Path) -> int | None:
        """Return how much of the disk of a folder is free, or of the one that it would be on."""
        for place in (folder, *folder.parents):
            try:
                return shutil.disk_usage(place).free
            except FileNotFoundError:
                continue
            except OSError:
                return None
        return None

    def port_taken(self, server: ServerConfig) -> bool:
        """Return whether another program listens there."""
        try:
            bind(server, 0).close()
        except OSError as error:
            return error.errno == errno.EADDRINUSE
        return False

    def memory(self) -> MemoryReading | None:
        """Return the machine's memory."""
        try:
            return read_memory()
        except OSError:
            return None

    def energy(self) -> tuple[bool, str]:
        """Return whether the machine's energy can be measured, and by what, or why not."""
        source, described = find_source(self.platform, self.environment)
        return source is not None, described

    def other_available_bytes(self) -> int:
        """Return what psutil calls available, for comparison."""
        return int(psutil.virtual_memory().available)

    def working_set(self) -> int | None:
        """Return how many bytes the GPU may have; None if it is no Mac."""
        return read_working_set()

    def files(self, folder: Path, pattern: str, newer_than_s: float) -> list[Path]:
        """Return the files of a folder that were changed within this many seconds."""
        since_s = time.time() - newer_than_s
        try:
            return [path for path in folder.glob(pattern) if path.stat().st_mtime >= since_s]
        except OSError:
            return []

    def text(self, path: Path, most_bytes: int) -> str:
        """Return the beginning of a file; nothing if it can't be read."""
        try:
            with path.open("rb") as file:
                return file.read(most_bytes).decode(errors="replace")
        except OSError:
            return ""

    def refused(self, folder: Path) -> bool:
        """Return whether the system does not let this process look into a folder that is there."""
        try:
            next(folder.iterdir(), None)
        except PermissionError:
            return True
        except OSError:
            return False
        return False
