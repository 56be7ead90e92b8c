"""Giving freed heap memory back to the system, where the allocator keeps it."""

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
