"""How much memory this process has, now and at most, as the system counts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import psutil

from lmx.protocol.mac_footprint import mac_footprint

_KIB: Final = 1024


def memory_bytes(engine_bytes: int) -> int:
    """Return what the process has now. ``engine_bytes``: what the engine counts itself; on a Mac
    that is in the footprint, and stands beside the resident set where there is none."""
    if sys.platform == "darwin":
        found = mac_footprint(os.getpid())
        return found[0] if found else _resident_bytes() + engine_bytes
    return max(_resident_bytes(), engine_bytes)


def peak_memory_bytes(engine_peak_bytes: int) -> int:
    """Return the most that the process ever had. It never goes down. ``engine_peak_bytes``: as
    for :func:`memory_bytes`."""
    if sys.platform == "darwin":
        found = mac_footprint(os.getpid())
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
