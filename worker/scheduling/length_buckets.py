"""Decides which rows decode together, rows of similar length, and how the buckets share the
device's time. Pure.

The engine keeps one array for all rows that decode together, as long as the longest of them. A row
that is much shorter than another one would take the memory, and the time, of the longer one.

The buckets decode one after the other. That of the shortest rows is never slowed down by more than
a half: all others together get a little less than half of the time that it takes, and the time of
the change to them is counted as theirs. Without such a limit, one row with a long context would set
the pace for all.
"""

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

_MAX_TIMES: Final = 2
_MAX_MORE_TOKENS: Final = 2048
"""Below this difference, reading the model's weights twice costs more than the padding does."""


class SequenceLength(NamedTuple):
    """How long a row is, as far as it is known."""

    min_tokens: int
    """Its length now."""
    max_tokens: int
    """The length that it can't exceed."""
    counted_tokens: int
    """The length for which memory is reserved."""


def batchable(shortest_tokens: int, longest_tokens: int) -> bool:
    """Return whether rows of these lengths may decode together."""
    return longest_tokens <= max_batchable_tokens(shortest_tokens)


def padded_tokens(rows: Sequence[SequenceLength]) -> list[int]:
    """Return for each row how long its array may be: as long as the longest row that it may decode
    together with.

    Which rows decode together depends on the order in which they came. Rows that decode together
    stay alike for as long as they do: a row that gets several tokens in a step gets no more of them
    than that allows.
    """
    ranked = sorted(rows, key=lambda row: row.min_tokens)
    lengths = [row.min_tokens for row in ranked]
    longest = list(accumulate((row.counted_tokens for row in ranked), max))
    return [
        longest[bisect_right(lengths, max_batchable_tokens(row.max_tokens)) - 1] for row in rows
    ]


def max_batchable_tokens(shortest_tokens: int) -> int:
    """Return the length of the longest row that may decode together with one of this length."""
    return _MAX_TIMES * shortest_tokens + _MAX_MORE_TOKENS


_SHARE: Final = 0.45


class BucketScheduler:
    """Decides which bucket has its turn. It has no clock: the caller measures. Buckets are given
    with the shortest first; one that is no longer given is forgotten."""

    def __init__(self) -> None:
        self._credit_s: dict[Hashable, float] = {}
        self._cost_s: dict[Hashable, float] = {}

    def next(self, buckets: Sequence[Hashable]) -> Hashable:
        """Return the bucket to step: the shortest, or one whose turn has come."""
        for bucket in buckets[1:]:
            if self._credit_s.get(bucket, 0.0) >= self._cost_s.get(bucket, 0.0):
                return bucket
        return buckets[0]

    def record(self, buckets: Sequence[Hashable], bucket: Hashable, took_s: float) -> None:
        """Note that a step of ``bucket`` took ``took_s``."""
        known = set(buckets)
        self._cost_s = {one: cost for one, cost in self._cost_s.items() if one in known}
        self._credit_s = {one: credit for one, credit in self._credit_s.items() if one in known}
        due_s, self._cost_s[bucket] = self._cost_s.get(bucket, 0.0), took_s
        if bucket != buckets[0]:
            # It had its turn for what its last step took. What is left is never enough for another
            # step at once.
            left_s = max(0.0, self._credit_s.get(bucket, 0.0) - due_s)
            self._credit_s[bucket] = left_s % took_s if took_s else 0.0
            return
        for other in buckets[1:]:
            credit_s = self._credit_s.get(other, 0.0) + _SHARE * took_s / len(buckets[1:])
            # Unused time is not saved up, because no row may be stopped for long.
            self._credit_s[other] = min(credit_s, 2 * self._cost_s.get(other, 0.0))
