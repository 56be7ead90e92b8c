"""RDMA over Thunderbolt, which macOS 26.2 has on Macs with Thunderbolt 5 once it was enabled."""

import subprocess
from collections.abc import Sequence
from typing import Final

COMMAND: Final = ("ibv_devices",)
_LIMIT_S: Final = 10.0
_PREFIX: Final = "rdma_"


def parse_devices(printed: str) -> tuple[str, ...]:
    """Return the names of the devices that ``ibv_devices`` prints, each with its GUID."""
    rows = (line.split() for line in printed.splitlines())
    return tuple(row[0] for row in rows if row and row[0].startswith(_PREFIX))


def read_devices() -> tuple[str, ...]:
    """Return the RDMA devices of this machine; none where there is no RDMA."""
    try:
        done = subprocess.run(
            COMMAND, capture_output=True, text=True, timeout=_LIMIT_S, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
    return parse_devices(done.stdout)


def missing(wanted: Sequence[str], there: Sequence[str]) -> str | None:
    """Return why a model can't be divided over these devices, for people; None: it can."""
    if not there:
        return (
            "backend: jaccl needs RDMA over Thunderbolt, and this machine has no device for it "
            "(ibv_devices): it takes Macs with Thunderbolt 5 and macOS 26.2, and `rdma_ctl enable` "
            "in macOS Recovery. Set backend to ring"
        )
    lacking = [name for name in wanted if name not in there]
    if not lacking:
        return None
    return f"rdma_devices: this machine has no {lacking[0]}, but {', '.join(there)}"
