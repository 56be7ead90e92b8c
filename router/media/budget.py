"""Limits the memory of all media that the router holds, from their first byte until a worker has
them. Used from one event loop only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.messages.media import MediaItem


class MediaBudget:
    """Counts the bytes of all requests' media."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0

    @contextmanager
    def share(self) -> Iterator[MediaShare]:
        """Hold one request's media within the block, or until :meth:`MediaShare.release`."""
        share = MediaShare(self)
        try:
            yield share
        finally:
            share.release()

    def reserve(self, size_bytes: int) -> None:
        """Count this many bytes more. Raises QUEUE_FULL if they exceed the limit."""
        if self.held_bytes + size_bytes > self._most_bytes:
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"The images, sounds and videos of requests take {self._most_bytes} bytes, as many "
                "as lmx holds at a time (media.max_held_bytes): try again in a few seconds.",
                retry_after_s=2.0,
            )
        self.held_bytes += size_bytes


class MediaShare:
    """The part of the budget that one request takes."""

    def __init__(self, budget: MediaBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Count this many bytes more for the request. Raises QUEUE_FULL."""
        self._budget.reserve(size_bytes)
        self._held_bytes += size_bytes

    def release(self) -> None:
        """Count nothing for the request any more. Idempotent."""
        self._budget.held_bytes -= self._held_bytes
        self._held_bytes = 0


@dataclass(slots=True, eq=False)
class HeldMedia:
    """The media of one request, in the order of the request. It is passed on as a whole: who kept
    ``blobs`` itself would hold the bytes after they are counted as released."""

    items: tuple[MediaItem, ...]
    blobs: tuple[bytes, ...]
    share: MediaShare

    def release(self) -> None:
        """Hold the bytes no longer: a worker has them."""
        self.blobs = ()
        self.share.release()
