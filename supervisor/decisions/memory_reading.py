"""What was read of the machine's memory at one moment: values. Pure."""

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
    """The machine's memory at one moment.

    ``total_bytes`` and ``available_bytes`` are the least of what the machine and the cgroups
    around this process allow. ``wired_bytes``: what does not end with a process by itself: on
    macOS what is wired, a GPU's buffers above all; on Linux what is neither a process's own page
    nor cache (drivers, the kernel, shared memory); None: unknown. ``fullest_share``: what is
    taken of the fullest of machine and cgroups, which ``available_bytes`` of one and
    ``total_bytes`` of another would hide.
    """

    total_bytes: int
    available_bytes: int
    wired_bytes: int | None = None
    fullest_share: float = 0.0

    @property
    def used_bytes(self) -> int:
        """What is not available."""
        return max(0, self.total_bytes - self.available_bytes)

    @property
    def used_share(self) -> float:
        """What is taken, from 0 to 1, wherever it is tightest."""
        here = Room(self.total_bytes, self.available_bytes).used_share
        return max(here, self.fullest_share)
