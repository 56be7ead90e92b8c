"""Divides the machine's energy among the models that computed. Pure.

The rule: of an interval's joules each worker has the part of the interval in which its engine
computed; where several computed at the same time, they share in proportion to these parts. What
nobody computed in belongs to no model. So a model's joules include what the machine needs anyway
while that model computes, and what other programs need meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Energy:
    """What the machine has taken since lmx was started."""

    joules: float
    watts: float | None
    """In the last second; None while the source does not say it."""
    by_model: dict[str, float] = field(default_factory=dict)
    """The joules of each model that has computed, by model id."""


def divided(joules: float, shares: Mapping[str, float]) -> dict[str, float]:
    """Return how many of an interval's joules each worker has. ``shares`` says in which part of the
    interval, from 0 to 1, each one's engine computed."""
    per_share = joules / max(1.0, sum(shares.values()))
    return {name: per_share * share for name, share in shares.items()}


def watts_each(watts: float, shares: Mapping[str, float]) -> float:
    """Return how many joules of the machine an engine has for each second that it computes, while
    the machine takes ``watts``."""
    return watts / max(1.0, sum(shares.values()))


def computed_share(before: tuple[float, float], now: tuple[float, float]) -> float:
    """Return the part of the time between two heartbeats of a worker in which its engine computed.
    Each of both says when it came, and how many seconds the engine had computed until then."""
    passed_s = now[0] - before[0]
    return min(1.0, max(0.0, (now[1] - before[1]) / passed_s)) if passed_s > 0 else 0.0
