"""Limits the memory that the contents of requests take together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lmx.protocol.errors import ErrorCode, UnavailableError


class ByteBudget:
    """Counts bytes that many requests hold. ``what`` they are, and the ``setting`` that limits
    them, are in the error. Used from one event loop only."""

    def __init__(self, most_bytes: int, what: str, setting: str = "") -> None:
        self._most_bytes = most_bytes
        self._what = what
        self._setting = f" ({setting})" if setting else ""
        self.held_bytes = 0

    @contextmanager
    def share(self, free_bytes: int = 0) -> Iterator[ByteShare]:
        """Hold what one request has within the block, or until :meth:`ByteShare.release`. Its first
        ``free_bytes`` are not counted."""
        share = ByteShare(self, free_bytes)
        try:
            yield share
        finally:
            share.release()

    def reserve(self, size_bytes: int) -> None:
        """Count this many bytes more. Raises QUEUE_FULL if they exceed the limit."""
        if self.held_bytes + size_bytes > self._most_bytes:
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"The {self._what} take {self._most_bytes} bytes, as many as lmx holds at a time"
                f"{self._setting}: try again in a few seconds.",
                retry_after_s=2.0,
            )
        self.held_bytes += size_bytes


class ByteShare:
    """The part of a budget that one request takes."""

    def __init__(self, budget: ByteBudget, free_bytes: int) -> None:
        self._budget = budget
        self._free_bytes = free_bytes
        self._held_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Count this many bytes more for the request. Raises QUEUE_FULL."""
        free_bytes = min(size_bytes, self._free_bytes)
        self._free_bytes -= free_bytes
        self._budget.reserve(size_bytes - free_bytes)
        self._held_bytes += size_bytes - free_bytes

    def release(self) -> None:
        """Count nothing for the request any more. Idempotent."""
        self._budget.held_bytes -= self._held_bytes
        self._held_bytes = 0
