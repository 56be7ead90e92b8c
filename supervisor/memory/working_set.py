"""Reads how much memory the GPU of a Mac may have."""

import functools
import subprocess
import sys
from typing import Final

import psutil

from lmx.protocol.host.memory import sysctl_number
from lmx.supervisor.decisions.working_set import working_set_bytes

LIMIT_NAME: Final = "iogpu.wired_limit_mb"
"""What a person has set with ``sudo sysctl``; 0: the system's own figure holds."""

_ASK: Final = (
    "import mlx.core as mx; print(int(mx.device_info()['max_recommended_working_set_size']))"
)
_ASK_TIMEOUT_S: Final = 60.0


def read_working_set() -> int | None:
    """Return how many bytes the GPU may have; None on a machine that is no Mac.

    The GPU is asked in a process of its own, because neither MLX nor a driver belongs into the
    process that asks. It takes about a second; what it said is kept as long as this process lives
    and the limit stays the same.
    """
    if sys.platform != "darwin":
        return None
    limit_mb = sysctl_number(LIMIT_NAME) or 0
    return working_set_bytes(psutil.virtual_memory().total, _reported_bytes(limit_mb), limit_mb)


@functools.cache
def _reported_bytes(_limit_mb: int) -> int | None:
    """Return what the GPU says with that limit; None if it does not say it."""
    command = [sys.executable, "-P", "-c", _ASK]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_ASK_TIMEOUT_S, check=True, text=True
        )
        return int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
