"""What macOS counts a process's memory at. Standard library alone; does nothing elsewhere."""

from __future__ import annotations

import ctypes
from typing import Final

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
