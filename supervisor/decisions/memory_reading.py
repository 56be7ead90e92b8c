"""The memory of the machine as it was read at one moment. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """A limit of memory, and what is left below it."""

    total_bytes: int
    available_bytes: int

    @property
    def used_share(self) -> float:
        """What is taken of it, from 0 to 1."""
        return 1.0 - self.available_bytes / self.total_bytes if self.total_bytes > 0 else 1.0


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The machine's memory at one moment."""

    total_bytes: int
    """The least of what the machine and the cgroups around this process have."""

    available_bytes: int
    """The least of what the machine and the cgroups around this process have available."""

    wired_bytes: int | None = None
    """Memory that does not end with a process by itself; None if it is unknown. On macOS it is what
    is wired, above all the buffers of the GPU. On Linux it is what is neither a process's own page
    nor cache: drivers, the kernel, shared memory."""

    fullest_share: float = 0.0
    """How much is taken, from 0 to 1, of the fullest of machine and cgroups. The two figures above
    would hide it if they came from different ones."""

    @property
    def used_bytes(self) -> int:
        """What is not available."""
        return max(0, self.total_bytes - self.available_bytes)

    @property
    def used_share(self) -> float:
        """What is taken, from 0 to 1, wherever it is tightest."""
        here = Room(self.total_bytes, self.available_bytes).used_share
        return max(here, self.fullest_share)
