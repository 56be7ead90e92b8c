"""What routers have counted, so that it outlives each of them: from a router to the supervisor,
which adds up what the others have and had, and back. See PROTOCOL.md, "Counts"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lmx.protocol.wire.codec import message


@dataclass(frozen=True, slots=True)
class Tally:
    """Counters of one model, or with the name ``""`` of what is no model's. ``values`` has one
    for each of ``counters``; each only grows. ``used_at_s`` (Unix time) and ``tokens_per_s`` are
    of its last request."""

    name: str
    counters: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    used_at_s: float | None = None
    tokens_per_s: float | None = None

    def by_name(self) -> dict[str, float]:
        """Return the counters by their names."""
        return dict(zip(self.counters, self.values, strict=False))


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """What one asker has used of its limits: requests and tokens of the last minute, as they
    counted ``age_s`` ago, and requests that are under way."""

    asker: str
    requests: float = 0.0
    tokens: float = 0.0
    running: int = 0
    age_s: float = 0.0


@message
@dataclass(frozen=True, slots=True)
class ReportCounts:
    """Question of a router: keep all that I have counted since I started, and tell me what others
    have. Reply: CountsKept.

    ``fresh``: no reply has come yet. ``seen`` is the last reply's revision; 0 to a supervisor that
    has not replied yet, which gets ``ended`` and ``since_s`` as its predecessor had told them.
    """

    pid: int
    tallies: tuple[Tally, ...]
    usage: tuple[KeyUsage, ...]
    fresh: bool = False
    seen: int = 0
    ended: tuple[Tally, ...] = ()
    since_s: float | None = None


@message
@dataclass(frozen=True, slots=True)
class CountsKept:
    """Reply: ``ended`` is what routers that have ended had counted, None where the asker has seen
    this ``revision`` of it; ``others`` what other routers have until now. ``elsewhere``: requests
    that those have under way. ``inherited``: for a fresh router, what was used of the limits.
    ``since_s``: Unix time since which all this is counted: lmx's start."""

    revision: int
    since_s: float
    ended: tuple[Tally, ...] | None = None
    others: tuple[Tally, ...] = ()
    elsewhere: tuple[KeyUsage, ...] = ()
    inherited: tuple[KeyUsage, ...] = ()


def added(*groups: Iterable[Tally]) -> tuple[Tally, ...]:
    """Return the sums of the counters, by name."""
    return _joined(groups, lambda one, other: one + other)


def greatest(*groups: Iterable[Tally]) -> tuple[Tally, ...]:
    """Return the greatest value of each counter, by name: of two accounts of the same counters
    the later one."""
    return _joined(groups, max)


def _joined(
    groups: Sequence[Iterable[Tally]], join: Callable[[float, float], float]
) -> tuple[Tally, ...]:
    counters: dict[str, dict[str, float]] = {}
    latest: dict[str, Tally] = {}
    for group in groups:
        for tally in group:
            known = counters.setdefault(tally.name, {})
            for name, value in tally.by_name().items():
                known[name] = join(known[name], value) if name in known else value
            last = latest.get(tally.name)
            if last is None or (tally.used_at_s or 0.0) >= (last.used_at_s or 0.0):
                latest[tally.name] = tally
    return tuple(
        Tally(
            name,
            tuple(values),
            tuple(values.values()),
            latest[name].used_at_s,
            latest[name].tokens_per_s,
        )
        for name, values in counters.items()
    )
