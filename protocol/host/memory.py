"""Gives freed heap memory back to the system where glibc's allocator keeps it, and reads the memory
of a process and the numbers of the kernel as macOS has them. It needs only the standard library. On
other systems the functions do nothing.
"""

import ctypes
import sys
from typing import Final

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_MAPPED_FROM_BYTES: Final = 1024**2
_KEPT_BYTES: Final = 2 * _MAPPED_FROM_BYTES
"""How much free memory each arena of the allocator keeps at its end: as glibc does by itself, twice
the other limit. With the 128 KiB that it keeps otherwise, decoding of 32 rows of a tiny model was 4
to 10 % slower, with twice as many page faults."""


def map_large_blocks() -> None:
    """Make glibc's allocator give every block of 1 MiB or more back to the system once it is freed.
    Does nothing elsewhere. It must be called before threads start.

    By itself the allocator moves that limit up to 32 MiB, and what is freed below it stays in holes
    of the heap: a worker whose mlx counted 565 MiB had 880 MiB resident. With this it had 720 MiB
    and was no slower, because mlx keeps the buffers that it uses again.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        # Setting one limit fixes the other at its default.
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def trim_heap() -> None:
    """Give the freed memory that glibc's allocator holds back to the system. Does nothing
    elsewhere.

    The allocator keeps freed blocks in the arena of each thread. A worker that had answered a few
    prompts of thousands of tokens held 1.3 GB for ever, which the supervisor counts against the
    budget, and a router held 80 MB after one body of 16 MB. This takes milliseconds to tenths of a
    second, so that it is for pauses, and for the time after something large.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)


_RUSAGE_INFO_V4: Final = 4


class _RusageInfoV4(ctypes.Structure):
    """``struct rusage_info_v4`` of macOS's <sys/resource.h>."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        *(
            (name, ctypes.c_uint64)
            for name in (
                *("user_time", "system_time", "pkg_idle_wkups", "interrupt_wkups", "pageins"),
                *("wired_size", "resident_size", "phys_footprint", "proc_start_abstime"),
                *("proc_exit_abstime", "child_user_time", "child_system_time"),
                *("child_pkg_idle_wkups", "child_interrupt_wkups", "child_pageins"),
                *("child_elapsed_abstime", "diskio_bytesread", "diskio_byteswritten"),
                *("cpu_time_qos_default", "cpu_time_qos_maintenance", "cpu_time_qos_background"),
                *("cpu_time_qos_utility", "cpu_time_qos_legacy", "cpu_time_qos_user_initiated"),
                *("cpu_time_qos_user_interactive", "billed_system_time", "serviced_system_time"),
                *("logical_writes", "lifetime_max_phys_footprint", "instructions", "cycles"),
                *("billed_energy", "serviced_energy", "interval_max_phys_footprint"),
                *("runnable_time",),
            )
        ),
    )


def mac_usage(pid: int) -> _RusageInfoV4 | None:
    """Return what a process uses of a Mac. None if the system does not say it or the process is
    gone."""
    call = getattr(ctypes.CDLL(None), "proc_pid_rusage", None)
    if call is None:
        return None
    info = _RusageInfoV4()
    if call(pid, _RUSAGE_INFO_V4, ctypes.byref(info)) != 0:
        return None
    if info.proc_exit_abstime != 0:  # A zombie, of which the system still knows what it had.
        return None
    return info


def mac_footprint(pid: int) -> tuple[int, int] | None:
    """Return a process's footprint and its maximum, in bytes. Unlike the resident set, the
    footprint includes Metal's buffers. Returns None as :func:`mac_usage` does."""
    info = mac_usage(pid)
    if info is None:
        return None
    return int(info.phys_footprint), int(info.lifetime_max_phys_footprint)


def sysctl_number(name: str) -> int | None:
    """Return a number such as ``kern.maxfilesperproc``, or None where the name does not exist, as
    on Linux."""
    call = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if call is None:
        return None
    value = ctypes.c_uint64(0)  # Numbers of four bytes fill the lower half, as Macs count.
    size = ctypes.c_size_t(ctypes.sizeof(value))
    found = call(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    if found != 0 or size.value not in (4, 8):
        return None
    return value.value
