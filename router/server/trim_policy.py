"""Decides when to give freed memory back to the system. Pure.

The output that slow readers left unread, and the objects made of large bodies, are freed with their
requests; but the allocator keeps that memory (64 to 900 MiB were seen) until it is asked to release
it.
"""

from typing import Final

SLACK_BYTES: Final = 32 * 2**20
"""A growth of at most this much since the process began is ignored."""

_WORTH_BYTES: Final = 16 * 2**20
FIRST_WAIT_S: Final = 2.0
LONGEST_WAIT_S: Final = 30.0


class TrimPolicy:
    """Decides when a trim is due: while the process is larger than it was at its beginning. While
    trims bring little, the pauses between them grow."""

    def __init__(self, memory_bytes: int) -> None:
        self._base_bytes = memory_bytes
        self._wait_s = FIRST_WAIT_S
        self._not_before_s = 0.0

    def is_due(self, memory_bytes: int, now_s: float) -> bool:
        """Return whether to trim now."""
        return memory_bytes > self._base_bytes + SLACK_BYTES and now_s >= self._not_before_s

    def trimmed(self, given_back_bytes: int, now_s: float) -> None:
        """Note a trim, and how much it gave back. The number is negative if more was allocated
        meanwhile."""
        worth_it = given_back_bytes >= _WORTH_BYTES
        self._wait_s = FIRST_WAIT_S if worth_it else min(2 * self._wait_s, LONGEST_WAIT_S)
        self._not_before_s = now_s + self._wait_s
