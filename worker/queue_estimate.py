"""When a full queue may have room again: the Retry-After of a refusal. Pure."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 0.2  # of the latest stream in the running mean
_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 60.0


class QueueEstimate:
    """A running mean of how long streams hold a row. A hint: it knows nothing of lengths."""

    __slots__ = ("_mean_s",)

    def __init__(self) -> None:
        self._mean_s = 0.0

    def ended(self, held_s: float) -> None:
        """A stream ended after holding its row for ``held_s``."""
        self._mean_s += (held_s - self._mean_s) * (_WEIGHT if self._mean_s else 1.0)

    def retry_after_s(self, rows: int) -> float:
        """Return when one of ``rows`` that run now is likely to end: 1 to 60 s. Those that could
        run are more, where memory for their caches is short."""
        return min(_LONGEST_S, max(_SHORTEST_S, self._mean_s / max(1, rows)))
