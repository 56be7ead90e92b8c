"""How the groups of rows that decode apart share the device's time. Pure.

Rows of different lengths decode in groups of their own, one after the other. The group of the
shortest rows is never slowed down by more than a half: all other groups together get a little less
than half of the time that it takes, and the time of the change to them is counted as theirs.
Without such a limit, one row with a long context would set the pace for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

_SHARE: Final = 0.45


class LaneTurns:
    """Decides which lane has its turn. It knows no clock: the caller measures. Lanes are given with
    the shortest first; a lane that is no longer given is forgotten."""

    def __init__(self) -> None:
        self._credit_s: dict[Hashable, float] = {}
        self._cost_s: dict[Hashable, float] = {}

    def next(self, lanes: Sequence[Hashable]) -> Hashable:
        """Return the lane to step: the shortest, or one whose turn has come."""
        for lane in lanes[1:]:
            if self._credit_s.get(lane, 0.0) >= self._cost_s.get(lane, 0.0):
                return lane
        return lanes[0]

    def took(self, lanes: Sequence[Hashable], lane: Hashable, took_s: float) -> None:
        """Note that a step of ``lane`` took ``took_s``."""
        known = set(lanes)
        self._cost_s = {one: cost for one, cost in self._cost_s.items() if one in known}
        self._credit_s = {one: credit for one, credit in self._credit_s.items() if one in known}
        self._cost_s[lane] = took_s
        if lane != lanes[0]:
            self._credit_s[lane] = 0.0
            return
        for other in lanes[1:]:
            credit_s = self._credit_s.get(other, 0.0) + _SHARE * took_s / len(lanes[1:])
            # Unused time is not saved up, because no row may be stopped for long.
            self._credit_s[other] = min(credit_s, self._cost_s.get(other, 0.0))
