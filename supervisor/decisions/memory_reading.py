"""The memory of the machine as it was read at one moment, and how a Mac's pages become such a
reading. This module is pure."""

from dataclasses import dataclass
from enum import IntEnum


class KernelPressure(IntEnum):
    """How short of memory macOS says that it is. The values are those of its
    ``kern.memorystatus_vm_pressure_level``."""

    NORMAL = 1
    WARNING = 2
    CRITICAL = 4


@dataclass(frozen=True, slots=True)
class Capacity:
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
    kernel_pressure: KernelPressure | None = None
    """What macOS says itself. It knows what it can compress and drop, so that this counts instead
    of the share in use. None: the system does not say it, as on Linux."""
    saved_bytes: int = 0
    """What macOS saves by compressing memory. A process's footprint counts its pages in full, also
    those that are compressed."""

    @property
    def used_bytes(self) -> int:
        """What is not available."""
        return max(0, self.total_bytes - self.available_bytes)

    @property
    def used_share(self) -> float:
        """What is taken, from 0 to 1, wherever it is tightest."""
        here = Capacity(self.total_bytes, self.available_bytes).used_share
        return max(here, self.fullest_share)


@dataclass(frozen=True, slots=True)
class MacPages:
    """How many pages of a Mac's memory are what."""

    wired: int
    """Pages that stay where they are, above all the kernel's and those that the GPU uses."""
    internal: int
    """Pages of programs' own memory, that is no file's, unless they are wired or compressed."""
    purgeable: int
    """Those of them that their program lets the system drop."""
    compressor: int
    """Pages that hold compressed ones."""
    uncompressed: int
    """How many pages those were before."""


def mac_reading(
    total_bytes: int, page_bytes: int, pages: MacPages, pressure: KernelPressure | None
) -> MemoryReading:
    """Return the reading of a Mac. What is in use is what Activity Monitor shows as "Memory Used":
    programs' own memory, what is wired, and what is compressed. Pages of files are available."""
    used = pages.wired + pages.compressor + max(0, pages.internal - pages.purgeable)
    return MemoryReading(
        total_bytes,
        max(0, total_bytes - used * page_bytes),
        pages.wired * page_bytes,
        kernel_pressure=pressure,
        saved_bytes=max(0, pages.uncompressed - pages.compressor) * page_bytes,
    )
