"""Reads the numbers by which macOS's kernel describes itself. Needs only the standard library."""

from __future__ import annotations

import ctypes


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
