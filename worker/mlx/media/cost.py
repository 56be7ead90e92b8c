"""How long computing takes, estimated from what was measured. Pure."""

from collections.abc import Collection
from typing import Final

_MOST_AT_ONCE: Final = 2.0
"""A part of several kinds that took longer than expected makes each of them this many times as dear
at most."""


class ComputingCost:
    """Seconds for each multiplication, by the kind of computing: a layer's, attention's.

    What of a part is not counted, such as norms and activations, is added to what is.
    """

    def __init__(self, first_s: float) -> None:
        """``first_s`` is what a multiplication of a kind takes that was not measured yet."""
        self._first_s = first_s
        self._measured_s: dict[str, float] = {}

    def seconds(self, kind: str, multiplications: float) -> float:
        """Return how long computing of a kind takes."""
        return self._measured_s.get(kind, self._first_s) * multiplications

    def measured(self, kind: str, multiplications: float, took_s: float) -> None:
        """Note how long computing of one kind alone took."""
        each_s = took_s / multiplications
        # A single measurement on a busy machine says little.
        known_s = self._measured_s.get(kind, each_s)
        self._measured_s[kind] = (known_s + each_s) / 2

    def exceeded(self, kinds: Collection[str], times: float) -> None:
        """Note that computing of several kinds took ``times`` what was expected, more than
        once."""
        for kind in kinds:
            known_s = self._measured_s.get(kind, self._first_s)
            self._measured_s[kind] = known_s * min(times, _MOST_AT_ONCE)
