"""How many tokens a second workers make. Pure."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from lmx.protocol.messages.status import ModelStatus

_WINDOW_S: Final = 4.0
"""A rate is that of so many seconds: a worker reports once a second, and its readers look once a
second, at other times."""


class TokenRates:
    """Rates by instance, from the workers' counters. A new worker counts from 0 again, as another
    instance."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[tuple[float, int]]] = {}

    def take(self, models: Iterable[ModelStatus], now_s: float) -> None:
        """Take the figures of one status; workers that are not in it are forgotten."""
        readings: dict[str, deque[tuple[float, int]]] = {}
        for model in models:
            if model.instance is not None:
                known = readings[model.instance] = self._readings.get(model.instance, deque())
                known.append((now_s, model.figures.tokens_total))
                while len(known) > 2 and known[1][0] <= now_s - _WINDOW_S:
                    known.popleft()
        self._readings = readings

    def of(self, instance: str | None) -> float | None:
        """Return a worker's tokens a second; None before there are two readings."""
        known = self._readings.get(instance) if instance is not None else None
        if known is None:
            return None
        (first_s, first), (last_s, last) = known[0], known[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None
