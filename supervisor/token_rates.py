"""Tokens per second of each model, from totals that are read again and again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

_READINGS: Final = 4
"""Totals come with beats, as often as they are read here: one difference alone would be now
none and now that of two beats."""


class TokenRates:
    """Rates over the last few readings. A new worker counts from 0 again: its rate begins
    anew."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[tuple[float, int]]] = {}

    def take(self, workers: Iterable[dict[str, Any]], now_s: float) -> None:
        """Take the models' lines of one status."""
        readings: dict[str, deque[tuple[float, int]]] = {}
        for worker in workers:
            if (instance := worker["instance"]) is not None:
                kept = self._readings.get(instance, deque(maxlen=_READINGS))
                kept.append((now_s, worker["tokens_total"]))
                readings[instance] = kept
        self._readings = readings

    def of(self, instance: str | None) -> float | None:
        """Return a worker's tokens per second; None before there are two readings."""
        kept = self._readings.get(instance) if instance is not None else None
        if kept is None or len(kept) < 2:
            return None
        (first_s, first), (last_s, last) = kept[0], kept[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None
