"""Reads the memory of a Mac as its kernel counts it.

psutil's "available" is no measure of a shortage there: it is the inactive and the free pages, and
macOS keeps half of all pages inactive whether it needs them or not. With its default budget used,
and nothing else running, a Mac of 32 GB would always have looked 92 % full.
"""

import ctypes
import functools
import os
from typing import Final

from lmx.protocol.host.memory import sysctl_number
from lmx.supervisor.decisions.memory_reading import (
    KernelPressure,
    MacPages,
    MemoryReading,
    mac_reading,
)

_HOST_VM_INFO64: Final = 4
_TOTAL: Final = "hw.memsize"
_PRESSURE: Final = "kern.memorystatus_vm_pressure_level"


class VmStatistics64(ctypes.Structure):
    """``struct vm_statistics64`` of macOS's <mach/vm_statistics.h>. The counts are pages."""

    _fields_ = (
        *(
            (name, ctypes.c_uint32)
            for name in ("free_count", "active_count", "inactive_count", "wire_count")
        ),
        *(
            (name, ctypes.c_uint64)
            for name in (
                *("zero_fill_count", "reactivations", "pageins", "pageouts", "faults"),
                *("cow_faults", "lookups", "hits", "purges"),
            )
        ),
        *((name, ctypes.c_uint32) for name in ("purgeable_count", "speculative_count")),
        *(
            (name, ctypes.c_uint64)
            for name in ("decompressions", "compressions", "swapins", "swapouts")
        ),
        *(
            (name, ctypes.c_uint32)
            for name in (
                *("compressor_page_count", "throttled_count"),
                *("external_page_count", "internal_page_count"),
            )
        ),
        ("total_uncompressed_pages_in_compressor", ctypes.c_uint64),
    )


def read_mac_memory() -> MemoryReading:
    """Read the memory of this Mac. Raises ``OSError`` when the kernel does not answer.

    The kernel answers a few questions for its statistics a second, so that one is asked: psutil
    would ask another one for the total alone.
    """
    total_bytes = sysctl_number(_TOTAL)
    if total_bytes is None:
        raise OSError(f"{_TOTAL} can't be read")
    pages = mac_pages(_read_statistics())
    return mac_reading(
        total_bytes, os.sysconf("SC_PAGE_SIZE"), pages, kernel_pressure(sysctl_number(_PRESSURE))
    )


def mac_pages(found: VmStatistics64) -> MacPages:
    return MacPages(
        wired=found.wire_count,
        internal=found.internal_page_count,
        purgeable=found.purgeable_count,
        compressor=found.compressor_page_count,
        uncompressed=found.total_uncompressed_pages_in_compressor,
    )


def kernel_pressure(number: int | None) -> KernelPressure | None:
    """Return the kernel's level of memory pressure; None: it reported no known level."""
    return KernelPressure(number) if number in set(KernelPressure) else None


def _read_statistics() -> VmStatistics64:
    found = VmStatistics64()
    # The kernel counts in numbers of four bytes.
    count = ctypes.c_uint32(ctypes.sizeof(found) // 4)
    library = ctypes.CDLL(None)
    status = library.host_statistics64(
        _host_port(), _HOST_VM_INFO64, ctypes.byref(found), ctypes.byref(count)
    )
    if status != 0:
        raise OSError(f"host_statistics64 failed with status {status}")
    return found


@functools.cache
def _host_port() -> int:
    """Return this process's right to ask the kernel. Each call of the system's function would make
    another one."""
    return int(ctypes.CDLL(None).mach_host_self())
