"""What routers have counted, kept so that it outlives each router. See PROTOCOL.md, "Counts".

A router sends its counts to the supervisor, which adds up those of the others, running and ended,
and sends them back."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lmx.protocol.wire.codec import message


@dataclass(frozen=True, slots=True)
class Tally:
    """The counters of one model. The name ``""`` has the counters that belong to no model."""

    name: str
    counters: tuple[str, ...] = ()
    """The names of the counters."""
    values: tuple[float, ...] = ()
    """The value of each of ``counters``. A value only grows."""
    used_at_s: float | None = None
    """When the model's last request came, in Unix time."""
    tokens_per_s: float | None = None
    """The speed of its last request."""

    def by_name(self) -> dict[str, float]:
        """Return the counters by their names."""
        return dict(zip(self.counters, self.values, strict=False))


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """What one client (an API key or an address) has used of its rate limits."""

    asker: str
    """The client."""
    requests: float = 0.0
    """Requests of the last minute, as they counted ``age_s`` ago."""
    tokens: float = 0.0
    """Tokens of the last minute, as they counted ``age_s`` ago."""
    running: int = 0
    """Requests that are under way."""
    age_s: float = 0.0


@message
@dataclass(frozen=True, slots=True)
class ReportCounts:
    """Question of a router: keep all that I have counted since I started, and report what the
    others have counted. Reply: CountsKept."""

    pid: int
    tallies: tuple[Tally, ...]
    usage: tuple[KeyUsage, ...]
    fresh: bool = False
    """Whether this router has had no reply yet from any supervisor."""
    seen: int = 0
    """The revision of the last reply. It is 0 for a supervisor that has not replied yet."""
    ended: tuple[Tally, ...] = ()
    """For a supervisor that has not replied yet: what its predecessor replied as ``ended``."""
    since_s: float | None = None
    """For a supervisor that has not replied yet: what its predecessor replied as ``since_s``."""


@message
@dataclass(frozen=True, slots=True)
class CountsKept:
    """Reply to ReportCounts."""

    revision: int
    """The revision of ``ended``."""
    since_s: float
    """Since when all this is counted, in Unix time: the start of lmx."""
    ended: tuple[Tally, ...] | None = None
    """What routers that have ended had counted. None if the asking router has seen this
    revision."""
    others: tuple[Tally, ...] = ()
    """What the other running routers have counted until now."""
    elsewhere: tuple[KeyUsage, ...] = ()
    """The requests that the other routers have under way."""
    inherited: tuple[KeyUsage, ...] = ()
    """What clients have used of their rate limits. Only a fresh router gets it."""
    others_run: bool = False
    """Whether other routers run, which may have counts that they have not reported yet."""


def added(*groups: Iterable[Tally]) -> tuple[Tally, ...]:
    """Return the sums of the counters, by name."""
    return _joined(groups, lambda one, other: one + other)


def greatest(*groups: Iterable[Tally]) -> tuple[Tally, ...]:
    """Return the greatest value of each counter, by name. Of two accounts of the same counters
    that is the later one."""
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
