"""Reads how much memory the GPU of a Mac may have."""

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
_ASK_AGAIN_TIMEOUT_S: Final = 4.0
"""After the first question of this process. A supervisor that asks again, as for a reload, is not
silent for so long that it counts as hung."""

_reported: Final[dict[int, int | None]] = {}
"""What the GPU has said, by the limit."""


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


def _reported_bytes(limit_mb: int) -> int | None:
    """Return what the GPU says with that limit; None if it does not say it, in which case it is
    asked again the next time."""
    known = _reported.get(limit_mb)
    if known is not None:
        return known
    command = [sys.executable, "-P", "-c", _ASK]
    timeout_s = _ASK_AGAIN_TIMEOUT_S if _reported else _ASK_TIMEOUT_S
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=True, text=True
        )
        _reported[limit_mb] = int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        _reported[limit_mb] = None
    return _reported[limit_mb]
