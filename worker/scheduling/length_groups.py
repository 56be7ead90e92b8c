"""Which rows decode together: rows of like length. Pure.

The engine keeps one array for all rows that decode together, as long as the longest of them. A row
that is much shorter than another one would take the memory of the longer one, and its time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

_MOST_TIMES: Final = 2
_MOST_MORE_TOKENS: Final = 2048
"""Below this, reading the model's weights twice costs more than the padding does."""


class RowLength(NamedTuple):
    """How long a row is, as far as it is known."""

    least_tokens: int
    """It has so many."""
    most_tokens: int
    """It has no more than these."""
    counted_tokens: int
    """It is to have room for so many."""


def are_alike(shortest_tokens: int, longest_tokens: int) -> bool:
    """Return whether rows of these lengths may decode together."""
    return longest_tokens <= _most_alike(shortest_tokens)


def padded_tokens(rows: Sequence[RowLength]) -> list[int]:
    """Return for each row how long the array may be that it is in: as long as the longest row that
    it may decode together with.

    Which rows do depends on the order in which they came. Rows that decode together stay as much
    longer than one another as they are, so they are alike for as long as they do.
    """
    ranked = sorted(rows, key=lambda row: row.least_tokens)
    lengths = [row.least_tokens for row in ranked]
    longest = list(accumulate((row.counted_tokens for row in ranked), max))
    return [longest[bisect_right(lengths, _most_alike(row.most_tokens)) - 1] for row in rows]


def _most_alike(shortest_tokens: int) -> int:
    return _MOST_TIMES * shortest_tokens + _MOST_MORE_TOKENS
