"""When to give freed memory back to the system. Pure.

What slow readers left unread, and what was made of large bodies, is freed with their requests; the
allocator keeps it (64 to 900 MiB were seen) until it is told to let go.
"""

from __future__ import annotations

from typing import Final

SLACK_BYTES: Final = 32 * 2**20
"""So much above what the process began with is nothing to look for."""

_WORTH_BYTES: Final = 16 * 2**20
FIRST_WAIT_S: Final = 2.0
LONGEST_WAIT_S: Final = 30.0


class HeapPace:
    """Says when a trim is due: while the process is larger than it began. While trims bring
    little, the pauses between them grow."""

    def __init__(self, memory_bytes: int) -> None:
        self._base_bytes = memory_bytes
        self._wait_s = FIRST_WAIT_S
        self._not_before_s = 0.0

    def is_due(self, memory_bytes: int, now_s: float) -> bool:
        """Return whether to trim now."""
        return memory_bytes > self._base_bytes + SLACK_BYTES and now_s >= self._not_before_s

    def trimmed(self, given_back_bytes: int, now_s: float) -> None:
        """Take note of a trim, and of what it brought: less than nothing where more came in
        meanwhile."""
        worth_it = given_back_bytes >= _WORTH_BYTES
        self._wait_s = FIRST_WAIT_S if worth_it else min(2 * self._wait_s, LONGEST_WAIT_S)
        self._not_before_s = now_s + self._wait_s
