"""Decides how much memory a Mac's GPU may have where it does not say it. This module is pure."""

from typing import Final

_GIB: Final = 1024**3

_SMALL_BYTES: Final = 32 * _GIB
"""macOS gives the GPU two thirds of the memory up to this size, and three quarters above it. Seen
on Macs of 8, 16 and 128 GB; with macOS 26 it is more than that on large ones."""


def working_set_bytes(total_bytes: int, reported_bytes: int | None, limit_mb: int) -> int:
    """Return how much the GPU may have of ``total_bytes``: what it said, else the limit that a
    person has set (0: none), else what macOS usually gives it."""
    if reported_bytes is not None and reported_bytes > 0:
        return min(reported_bytes, total_bytes)
    if limit_mb > 0:
        return min(limit_mb * 1024**2, total_bytes)
    return total_bytes * 2 // 3 if total_bytes <= _SMALL_BYTES else total_bytes * 3 // 4
