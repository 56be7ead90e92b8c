"""How much the bodies may take that are being sent, all together: clients may send them slowly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lmx.protocol.errors import ErrorCode, UnavailableError

ALWAYS_BYTES: Final = 64 * 1024
"""Of each body. So a request of usual size is taken also while large ones have all the room."""

MOST_BYTES: Final = 256 * 2**20
"""Beyond that, of all bodies."""


class BodyRoom:
    """Counts what bodies hold beyond ``ALWAYS_BYTES`` each. Used from one event loop only."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0

    @contextmanager
    def one(self) -> Iterator[BodyShare]:
        """Within the block one body is held."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.held_bytes

    def take(self, size_bytes: int) -> None:
        """Hold so much more. Raises QUEUE_FULL where there is no room for it."""
        if self.held_bytes + size_bytes > self._most_bytes:
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"The bodies of requests that are being sent take {self._most_bytes} bytes, as "
                "many as lmx holds at a time: try again in a few seconds.",
                retry_after_s=2.0,
            )
        self.held_bytes += size_bytes


class BodyShare:
    """What one body holds of the room."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self.held_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """The body has ``size_bytes`` by now. Raises QUEUE_FULL."""
        more_bytes = max(0, size_bytes - ALWAYS_BYTES) - self.held_bytes
        if more_bytes > 0:
            self._room.take(more_bytes)
            self.held_bytes += more_bytes
