"""Limits the memory of all bodies that are being received, because clients may send them slowly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lmx.protocol.errors import ErrorCode, UnavailableError

ALWAYS_BYTES: Final = 64 * 1024
"""The part of each body that is not counted. So a request of usual size is accepted even while
large ones have taken all the room."""

MOST_BYTES: Final = 256 * 2**20
"""The limit for the rest of all bodies together."""


class BodyRoom:
    """Counts what bodies hold beyond ``ALWAYS_BYTES`` each. Used from one event loop only."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0

    @contextmanager
    def one(self) -> Iterator[BodyShare]:
        """Hold one body within the block."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.held_bytes

    def take(self, size_bytes: int) -> None:
        """Count this many bytes more. Raises QUEUE_FULL if there is no room for them."""
        if self.held_bytes + size_bytes > self._most_bytes:
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"The bodies of requests that are being sent take {self._most_bytes} bytes, as "
                "many as lmx holds at a time: try again in a few seconds.",
                retry_after_s=2.0,
            )
        self.held_bytes += size_bytes


class BodyShare:
    """The part of the room that one body takes."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self.held_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Note that the body has ``size_bytes`` now. Raises QUEUE_FULL."""
        more_bytes = max(0, size_bytes - ALWAYS_BYTES) - self.held_bytes
        if more_bytes > 0:
            self._room.take(more_bytes)
            self.held_bytes += more_bytes
