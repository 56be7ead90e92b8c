"""The machine and the versions, as the file of `lmx bench` names them: no names, no addresses."""

import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil

_LIMIT_S: Final = 5.0


def machine_facts() -> dict[str, Any]:
    """Return what a reader of figures wants to know."""
    return {
        "system": platform.system(),
        "release": platform.release() if sys.platform == "linux" else platform.mac_ver()[0],
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load": round(psutil.getloadavg()[0], 1),
        "python": platform.python_version(),
        "lmx": version("lmx"),
    }


def _processor() -> str:
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            found = subprocess.run(
                ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True, text=True, timeout=_LIMIT_S, check=True,
            )  # fmt: skip
            return found.stdout.strip()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def model_name(model: str) -> str:
    """Return a model's name without the folder that it is in, which may name a person."""
    is_folder = model.startswith(("/", "~", ".")) or "\\" in model
    return model.rstrip("/\\").replace("\\", "/").rpartition("/")[2] if is_folder else model
