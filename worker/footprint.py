"""How much memory this process has, now and at most, as the system counts it."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

import psutil

_KIB: Final = 1024
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


def memory_bytes(engine_bytes: int) -> int:
    """Return what the process has now. ``engine_bytes``: what the engine counts itself; on a Mac
    that is in the footprint, and stands beside the resident set where there is none."""
    if sys.platform == "darwin":
        found = _mac_footprint()
        return found[0] if found else _resident_bytes() + engine_bytes
    return max(_resident_bytes(), engine_bytes)


def peak_memory_bytes(engine_peak_bytes: int) -> int:
    """Return the most that the process ever had. It never goes down. ``engine_peak_bytes``: as
    for :func:`memory_bytes`."""
    if sys.platform == "darwin":
        found = _mac_footprint()
        return found[1] if found else _resident_bytes() + engine_peak_bytes
    peak_bytes = _linux_peak_bytes() if sys.platform == "linux" else None
    return max(peak_bytes or _resident_bytes(), engine_peak_bytes)


def parse_status(text: str, name: str) -> int | None:
    """Return a size in bytes from the text of Linux's /proc/PID/status, None if it isn't there."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            words = value.split()
            return int(words[0]) * _KIB if len(words) == 2 and words[0].isdecimal() else None
    return None


def _linux_peak_bytes() -> int | None:
    try:
        return parse_status(Path("/proc/self/status").read_text(), "VmHWM")
    except OSError:
        return None  # A sandbox without /proc.


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _mac_footprint() -> tuple[int, int] | None:
    """Return the footprint, which has Metal's buffers in it as the resident set has not, and
    its maximum; None where the system doesn't tell."""
    call = getattr(ctypes.CDLL(None), "proc_pid_rusage", None)
    if call is None:
        return None
    info = _RusageInfoV4()
    if call(os.getpid(), _RUSAGE_INFO_V4, ctypes.byref(info)) != 0:
        return None
    return int(info.phys_footprint), int(info.lifetime_max_phys_footprint)
