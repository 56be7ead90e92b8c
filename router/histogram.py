"""Values counted in buckets, as Prometheus' histograms are, at a fraction of a client's cost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate

from prometheus_client.utils import floatToGoString


class Histogram:
    """Buckets with fixed upper bounds, each inclusive, and one for what is above them all.

    ``bounds`` are ascending and finite. Not for several threads: one adds, and others get a
    :meth:`copy`.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self._counts)

    @property
    def total(self) -> float:
        """The sum of all values."""
        return self._sum

    def add(self, values: Iterable[float]) -> None:
        """Add values, of which none is NaN."""
        bounds, counts = self._bounds, self._counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bounds as Prometheus writes them, each with the number of values that
        are not above it; the last is ``+Inf``."""
        return list(zip(_names(tuple(self._bounds)), accumulate(self._counts), strict=True))

    def counts(self) -> dict[str, float]:
        """Return how many values are in each bucket that has some, by its upper bound."""
        named = zip(_names(tuple(self._bounds)), self._counts, strict=True)
        return {name: float(count) for name, count in named if count}

    def begin_with(self, counts: Mapping[str, float], total: float) -> None:
        """Add what another one with these bounds had; buckets that this one lacks count with its
        last."""
        at = {name: index for index, name in enumerate(_names(tuple(self._bounds)))}
        for name, count in counts.items():
            self._counts[at.get(name, -1)] += int(count)
        self._sum += total

    def plus(self, other: Histogram) -> Histogram:
        """Return both together; they have the same bounds."""
        joined = Histogram(self._bounds)
        joined._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        joined._sum = self._sum + other._sum
        return joined

    def copy(self) -> Histogram:
        """Return what it is now, for another thread."""
        copied = Histogram(self._bounds)
        copied._counts, copied._sum = self._counts.copy(), self._sum
        return copied


@cache
def _names(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(floatToGoString, bounds), "+Inf")
