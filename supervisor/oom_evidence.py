"""Whether a process that was killed was killed by the system, because memory ran out."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lmx.protocol.states import MemoryPressure
from lmx.supervisor.system_memory import CGROUPS, PROC, counters, memory_cgroups

_WINDOW_S: Final = 10.0
"""To tear down a killed process of many gigabytes takes seconds."""


def oom_kills(proc: Path, cgroups: Path) -> int | None:
    """Return how many processes the kernel has killed for want of memory, where this one is:
    in its cgroup, which counts those of the whole machine's shortage too, else on the machine.

    None: nobody counts, as on macOS. In a container the machine's count has strangers' ends.
    """
    places = [
        (folder / name) for folder in memory_cgroups(proc, cgroups)[:1]
        for name in ("memory.events", "memory.oom_control")
    ]  # fmt: skip
    for path in (*places, proc / "vmstat"):
        count = counters(path).get("oom_kill")
        if count is not None:
            return count
    return None


class OomEvidence:
    """Compares the kernel's count of such kills around an exit. macOS has no count: there a
    SIGKILL that nobody sent, while memory was short, is taken for the system's.

    One kill explains one exit, and none that comes long after it.
    """

    def __init__(
        self,
        pressure: Callable[[], MemoryPressure],
        count: Callable[[], int | None] = lambda: oom_kills(PROC, CGROUPS),
        *,
        counted: bool = sys.platform == "linux",
    ) -> None:
        self._pressure = pressure
        self._count = count
        self._counted = counted
        self._seen: deque[tuple[float, int]] = deque()

    def tick(self, now_s: float) -> None:
        """Note the count of now; those of before the window are of no use any more."""
        count = self._count() if self._counted else None
        if count is not None:
            self._seen.append((now_s, count))
            while len(self._seen) > 1 and self._seen[1][0] <= now_s - _WINDOW_S:
                self._seen.popleft()

    def explains(self, status: int | None, now_s: float) -> bool:
        """Return whether an exit just now, with ``status`` as in ``Popen.returncode``, was the
        system's doing. Only SIGKILL, or a status that nobody knows, can be."""
        if status not in (None, -signal.SIGKILL):
            return False
        if not self._counted:
            return status is not None and self._pressure() is not MemoryPressure.NONE
        if not self._seen:
            return False
        before = self._seen[0][1]
        self.tick(now_s)
        if self._seen[-1][1] <= before:
            return False
        self._seen = deque((at_s, count + 1) for at_s, count in self._seen)
        return True
