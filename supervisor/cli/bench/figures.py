"""What the requests of `lmx bench` come to: percentiles, rates, medians with their ranges. Pure."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

PERCENTILES: Final = (50, 95, 99)
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times are in seconds."""

    kind: str
    sent_s: float
    """Since the phase began, as ``ended_s``."""
    ended_s: float
    first_s: float | None = None
    """From sending the request to the first text; None if none came."""
    gaps_s: tuple[float, ...] = ()
    """Between two pieces of text."""
    prompt_tokens: int = 0
    """0 if the server did not count them."""
    cached_tokens: int = 0
    answer_tokens: int = 0
    is_counted: bool = False
    """Whether the tokens are counted by the server (usage); else they are pieces of text."""
    hung_up: bool = False
    """The client closed the connection, as it was to."""
    error: str = ""
    """What went wrong, in a few words without names or addresses."""


@dataclass(frozen=True, slots=True)
class Run:
    """A phase that a server was asked in one round."""

    samples: tuple[Sample, ...]
    cpu_s: float | None = None
    """Processor time of the server's processes; None if they are not known."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of several rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the spread; None of no values."""
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of all values of all rounds, in seconds, and the medians of the rounds."""

    p50: float
    p95: float
    p99: float
    of_rounds: Spread
    """The spread of the rounds' own medians."""

    @classmethod
    def of(cls, rounds: Sequence[Sequence[float]]) -> "Percentiles | None":
        """Return the percentiles; None of no values."""
        values = sorted(value for one in rounds for value in one)
        medians = Spread.of([statistics.median(one) for one in rounds if one])
        if medians is None:
            return None
        p50, p95, p99 = (percentile(values, each) for each in PERCENTILES)
        return cls(p50, p95, p99, medians)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, between two of them in proportion. Raises
    :class:`ValueError` of no values."""
    if not values:
        raise ValueError("no values")
    place = (len(values) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Figures:
    """What the requests of one kind, or all of a phase, came to."""

    kind: str
    requests: int
    errors: Mapping[str, int]
    prompt_tokens: float
    """The mean of the requests whose tokens the server has counted; 0 if it counts none."""
    cached_tokens: float
    tokens_per_s: Spread | None
    """Tokens of answers, from the first request's start to the last one's end."""
    first_token_s: Percentiles | None
    next_token_s: Percentiles | None
    """Between two pieces of text, which are tokens unless the server joins them."""
    cpu_ms_per_token: Spread | None = None
    memory_bytes: float | None = None
    """At the end of the phase, the most in any round."""
    not_counted: int = 0
    """Answers whose tokens the server did not count: their pieces are counted instead."""


def figures_of(runs: Sequence[Run]) -> list[Figures]:
    """Return the figures of a phase that a server was asked in several rounds: of all its requests
    first, and of each kind if there are several."""
    kinds = list(dict.fromkeys(sample.kind for run in runs for sample in run.samples))
    whole = _figures(kinds[0] if len(kinds) == 1 else ALL, [run.samples for run in runs])
    cpu = [cost for run in runs if (cost := _cpu_ms_per_token(run)) is not None]
    memory = [run.memory_bytes for run in runs if run.memory_bytes is not None]
    found = [
        replace(whole, cpu_ms_per_token=Spread.of(cpu), memory_bytes=max(memory, default=None))
    ]
    if len(kinds) > 1:
        for kind in kinds:
            of_kind = [[one for one in run.samples if one.kind == kind] for run in runs]
            found.append(_figures(kind, of_kind))
    return found


def _figures(kind: str, rounds: Sequence[Sequence[Sample]]) -> Figures:
    samples = [sample for one in rounds for sample in one]
    good = [sample for sample in samples if not sample.error]
    # Who hangs up does not learn how many tokens there were.
    known = [sample for sample in good if sample.prompt_tokens]
    rates = [rate for one in rounds if (rate := _tokens_per_s(one)) is not None]
    return Figures(
        kind=kind,
        requests=len(samples),
        errors=dict(Counter(sample.error for sample in samples if sample.error)),
        prompt_tokens=_mean([one.prompt_tokens for one in known]),
        cached_tokens=_mean([one.cached_tokens for one in known]),
        tokens_per_s=Spread.of(rates),
        first_token_s=Percentiles.of(
            [[s.first_s for s in one if s.first_s is not None and not s.error] for one in rounds]
        ),
        next_token_s=Percentiles.of(
            [[gap for s in one if not s.error for gap in s.gaps_s] for one in rounds]
        ),
        not_counted=sum(
            not one.is_counted for one in good if one.answer_tokens and not one.hung_up
        ),
    )


def _tokens_per_s(samples: Sequence[Sample]) -> float | None:
    tokens = sum(sample.answer_tokens for sample in samples)
    if not tokens:
        return None
    took_s = max(one.ended_s for one in samples) - min(one.sent_s for one in samples)
    return tokens / took_s if took_s > 0 else None


def _cpu_ms_per_token(run: Run) -> float | None:
    tokens = sum(sample.answer_tokens for sample in run.samples)
    return None if run.cpu_s is None or not tokens else 1000 * run.cpu_s / tokens


def _mean(values: Sequence[int]) -> float:
    return statistics.fmean(values) if values else 0.0
