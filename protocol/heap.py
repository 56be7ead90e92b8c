"""Giving freed heap memory back to the system, where the allocator keeps it."""

from __future__ import annotations

import ctypes
import sys


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
