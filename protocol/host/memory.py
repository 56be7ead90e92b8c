"""Giving freed heap memory back to the system, where the allocator keeps it.

What macOS counts a process's memory at. Standard library alone; does nothing elsewhere.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h
_MAPPED_FROM_BYTES: Final = 1024**2


def map_large_blocks() -> None:
    """Have glibc's allocator give every block from 1 MiB on back to the system once it is
    freed; does nothing elsewhere. To be called before the threads start.

    Left alone it moves that limit up to 32 MiB by itself, and what is freed below it stays in
    holes of the heap: a worker whose mlx counted 565 MiB had 880 MiB resident, and 720 MiB
    with this, no slower (mlx keeps the buffers that it uses again).
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


def trim_heap() -> None:
    """Return what glibc's allocator holds of freed memory; does nothing elsewhere.

    It keeps freed blocks for each thread's arena: a worker that had answered a few prompts of
    thousands of tokens held 1.3 GB for good, and the supervisor counts that against the
    budget; a router 80 MB after one body of 16 MB. Takes milliseconds to tenths of a second:
    for pauses, and after something large.
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


def mac_footprint(pid: int) -> tuple[int, int] | None:
    """Return a process's footprint, which has Metal's buffers in it as the resident set has not,
    and its maximum, in bytes; None where the system doesn't tell, or the process is gone."""
    call = getattr(ctypes.CDLL(None), "proc_pid_rusage", None)
    if call is None:
        return None
    info = _RusageInfoV4()
    if call(pid, _RUSAGE_INFO_V4, ctypes.byref(info)) != 0:
        return None
    return int(info.phys_footprint), int(info.lifetime_max_phys_footprint)
