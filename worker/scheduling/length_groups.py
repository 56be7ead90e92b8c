"""Which rows decode together: rows of like length. Pure.

The engine keeps one array for all rows that decode together, as long as the longest of them. A row
that is much shorter than another one would take the memory of the longer one, and its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_MOST_TIMES: Final = 2
_MOST_MORE_TOKENS: Final = 2048
"""Below this, reading the model's weights twice costs more than the padding does."""


def are_alike(shortest_tokens: int, longest_tokens: int) -> bool:
    """Return whether rows of these lengths may decode together."""
    return longest_tokens <= _MOST_TIMES * shortest_tokens + _MOST_MORE_TOKENS


def group_by_length(lengths_tokens: Iterable[int]) -> list[Sequence[int]]:
    """Return the lengths in groups that decode together, the longest first."""
    groups: list[list[int]] = []
    for length in sorted(lengths_tokens, reverse=True):
        if groups and are_alike(length, groups[-1][0]):
            groups[-1].append(length)
        else:
            groups.append([length])
    return list(groups)
