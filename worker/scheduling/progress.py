"""Measures how long work in flight made no progress: so a hang differs from a long step."""

from collections.abc import Sequence


class ProgressClock:
    """Counts work in flight and remembers when it last advanced. Times are seconds of any one
    clock.

    ``begin`` and ``end`` belong to one thread; ``advance`` may be called on another one, because it
    is a single store. It can be read at any time, even while the working thread is stuck.
    """

    def __init__(self) -> None:
        self._in_flight = 0
        self._mark_s = 0.0

    def begin(self, now: float) -> None:
        """Count one more piece of work; the first one after a pause starts the clock."""
        if self._in_flight == 0:
            self._mark_s = now
        self._in_flight += 1

    def advance(self, now: float) -> None:
        """Note that the work made progress."""
        self._mark_s = now

    def end(self) -> None:
        """Count one piece of work less."""
        self._in_flight -= 1

    @property
    def in_flight(self) -> int:
        """How many pieces of work have begun and not ended."""
        return self._in_flight

    def stalled_for_s(self, now: float) -> float:
        """Return the age of the last progress; 0 while nothing is in flight."""
        return max(0.0, now - self._mark_s) if self._in_flight else 0.0


class InFlight:
    """The work of several clocks together. It can be read at any time, as they can."""

    def __init__(self, *clocks: ProgressClock, limited: Sequence[ProgressClock] = ()) -> None:
        """The work of the ``limited`` ones counts, but can't stall: it has a deadline of its own,
        and somebody who keeps to it."""
        self._clocks = clocks
        self._limited = limited
        self.twice = 0
        """How many of them two clocks count: one waits for what another thread does for it. It
        belongs to one thread."""

    @property
    def count(self) -> int:
        """How many pieces of work have begun and not ended."""
        return sum(clock.in_flight for clock in (*self._clocks, *self._limited)) - self.twice

    def stalled_for_s(self, now: float) -> float:
        """Return for how long there was no progress, for the clock with the longest such time."""
        return max(clock.stalled_for_s(now) for clock in self._clocks)
