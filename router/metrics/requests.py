"""Counts the requests of this router, on top of what earlier routers have counted.

Everything is taken from a request's outcome at its end, so no token costs anything. The buckets are
those of Prometheus' histograms, at a fraction of the cost of a client library.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from itertools import accumulate
from typing import Final

from prometheus_client.utils import floatToGoString

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.counts import Tally
from lmx.protocol.messages.keys import ApiKey, KeyScope
from lmx.protocol.messages.status import ModelStatus
from lmx.protocol.states import FinishReason
from lmx.router.http.endpoint import Endpoint
from lmx.router.http.outcome import CLIENT_LEFT, Outcome
from lmx.router.metrics.measures import GAPS, HISTOGRAMS, MEASURES


class Histogram:
    """Buckets with fixed, inclusive upper bounds, and one for all values above them.

    ``bounds`` are ascending and finite. It is not made for several threads: one thread adds, and
    others get a :meth:`copy`.
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
        """Add values; none of them may be NaN."""
        bounds, counts = self._bounds, self._counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bounds as Prometheus writes them, each with the number of values that
        are not above it. The last is ``+Inf``."""
        return list(zip(_names(tuple(self._bounds)), accumulate(self._counts), strict=True))

    def counts(self) -> dict[str, float]:
        """Return how many values are in each bucket that is not empty, by its upper bound."""
        named = zip(_names(tuple(self._bounds)), self._counts, strict=True)
        return {name: float(count) for name, count in named if count}

    def begin_with(self, counts: Mapping[str, float], total: float) -> None:
        """Add the values of another histogram with these bounds. Values in buckets that this one
        lacks are counted in its last bucket."""
        at = {name: index for index, name in enumerate(_names(tuple(self._bounds)))}
        for name, count in counts.items():
            self._counts[at.get(name, -1)] += int(count)
        self._sum += total

    def plus(self, other: Histogram) -> Histogram:
        """Return both together. They must have the same bounds."""
        joined = Histogram(self._bounds)
        joined._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        joined._sum = self._sum + other._sum
        return joined

    def copy(self) -> Histogram:
        """Return a copy for another thread."""
        copied = Histogram(self._bounds)
        copied._counts, copied._sum = self._counts.copy(), self._sum
        return copied


@cache
def _names(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(floatToGoString, bounds), "+Inf")


NONE: Final = "_none"
"""The model of requests that named no existing model, and the route of requests to a path or with a
method that does not exist. No model can have this id."""

OTHER: Final = "other"
"""All keys that have no name of their own in the metrics."""

_MOST_KEYS: Final = 50
"""So many keys are named: more would be too many series."""

ABORTED: Final = "abort"
"""vLLM's reason for a request whose client has left."""

REASONS: Final = (*(reason.value for reason in FinishReason), ABORTED)
_CODES: Final = frozenset(code.value for code in ErrorCode)
_BY_WEIGHT: Final = (FinishReason.LENGTH, FinishReason.TOOL_CALLS, FinishReason.STOP)
"""If the answers of one request ended for several reasons, the first of these counts."""

_TOKENS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens")
_OF_KEY: Final = ("requests", "prompt_tokens", "completion_tokens")


@dataclass(slots=True)
class Totals:
    """The requests of all models, including models that are gone, and requests to none."""

    requests: int = 0
    errors: int = 0
    streams: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    batch_lines_completed: int = 0
    batch_lines_failed: int = 0

    def plus(self, other: Totals) -> Totals:
        """Return both together."""
        return Totals(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(Totals))
        )


_LATEST: Final = 100


@dataclass(frozen=True, slots=True)
class Ended:
    """What is kept of one of a model's latest requests."""

    at_s: float
    """When it ended, in Unix time."""
    ttft_s: float | None
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class ModelTally:
    """The requests of one model."""

    reasons: Counter[str] = field(default_factory=Counter)
    """Requests that ended well, by the reason of their end."""
    errors: Counter[str] = field(default_factory=Counter)
    """All other requests, by the code of their error."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    tokens_per_s: float | None = None
    """The speed of the last answer after its first token; of several answers to one request that
    of each. Answers of peers do not count."""
    used_at_s: float | None = None
    """When the last request ended, in Unix time."""
    latest: deque[Ended] = field(default_factory=lambda: deque(maxlen=_LATEST))
    """The latest requests of this router alone."""
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {each.name: Histogram(each.bounds) for each in HISTOGRAMS}
    )

    @property
    def requests(self) -> int:
        """All requests that have ended, whatever became of them."""
        return self.reasons.total() + self.errors.total()

    def plus(self, other: ModelTally) -> ModelTally:
        """Return both together; the last request is the later of the two."""
        last = max((self, other), key=lambda one: one.used_at_s or 0.0)
        return ModelTally(
            self.reasons + other.reasons,
            self.errors + other.errors,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            last.tokens_per_s or self.tokens_per_s or other.tokens_per_s,
            last.used_at_s,
            deque(),
            {
                name: histogram.plus(other.histograms[name])
                for name, histogram in self.histograms.items()
            },
        )


@dataclass(slots=True)
class KeyTally:
    """The requests of one key."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: KeyTally) -> KeyTally:
        """Return both together."""
        return KeyTally(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(KeyTally))
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What was counted until now, as a copy that does not change."""

    totals: Totals
    models: Mapping[str, ModelTally]
    http: Mapping[tuple[str, str, str], int]
    """All requests except polls, by method, route and class of status."""
    limited: Mapping[tuple[str, str], int]
    """The requests that a rate limit refused, by whose limit it was ("key" or "total") and its
    kind."""
    keys: Mapping[str, KeyTally]
    """By the name of the key, ``OTHER`` or ``NONE``."""
    forwarded: Mapping[tuple[str, str], int]
    """The requests that were forwarded to peers, by the peer and what became of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What the end of a request, or of a job after it, adds to all counts."""

    model: str
    """The model, or ``NONE``."""
    key: ApiKey | None
    """The key that it came with; None without a key."""
    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ttft_s: float | None = None
    gaps_s: Sequence[float] = ()


class RequestMetrics:
    """Counts requests that have ended, on top of what :meth:`begin_with` was given last. Used from
    one event loop only.

    ``changes`` grows with everything that is counted, and ``on_change`` is called for each time.
    ``model_ids`` returns the models that exist,
    None while they are not known: counts of other models are dropped, so that models that come and
    go leave nothing behind. ``spent`` is called with all that is counted of requests for models.
    ``keys`` returns the keys that there are: as few as may have names are counted by name.
    """

    def __init__(
        self,
        model_ids: Callable[[], Collection[str] | None],
        spent: Callable[[Spent], None] = lambda _: None,
        keys: Callable[[], tuple[ApiKey, ...]] = tuple,
    ) -> None:
        self._model_ids = model_ids
        self._spent = spent
        self._all_keys = keys
        self._named: tuple[tuple[ApiKey, ...], frozenset[str]] = ((), frozenset())
        """The keys that there are, and the names of those that are named."""
        self._keys: dict[str, KeyTally] = {}
        self._totals = Totals()
        self._models: dict[str, ModelTally] = {}
        self._http: Counter[tuple[str, str, str]] = Counter()
        self._limited: Counter[tuple[str, str]] = Counter()
        self._forwarded: Counter[tuple[str, str]] = Counter()
        self._earlier = Reading(Totals(), {}, {}, {}, {}, {})
        self.changes = 0
        self.on_change: Callable[[], None] = lambda: None

    def request_ended(
        self,
        outcome: Outcome,
        endpoint: Endpoint | None,
        status: int,
        duration_s: float,
        key: ApiKey | None = None,
        *,
        background: bool = False,
    ) -> None:
        """Count a request that took ``duration_s``. ``endpoint`` is None if it was for no route,
        and ``key`` without a key. Polls are not counted, and how long somebody waited is not for
        what runs in the ``background``."""
        if endpoint is not None and endpoint.quiet:
            return
        self._note_change()
        if endpoint is None:
            self._http[NONE, NONE, _status_class(status)] += 1
        else:
            self._http[endpoint.method, endpoint.path, _status_class(status)] += 1
            if endpoint.is_inference:
                self._count(outcome, status, None if background else duration_s, key)

    def batch_line_answered(self, *, ok: bool) -> None:
        """Count a line of a batch that has its result, besides the requests that it took."""
        self._note_change()
        if ok:
            self._totals.batch_lines_completed += 1
        else:
            self._totals.batch_lines_failed += 1

    def rate_limited(self, scope: str, limit: str) -> None:
        """Count a request that a limit has refused."""
        self._note_change()
        self._limited[scope, limit] += 1

    def forwarded(self, peer: str, ended: str) -> None:
        """Count a request that was forwarded to a peer and has ended, by what became of it."""
        self._note_change()
        self._forwarded[peer, ended] += 1

    def job_ended(
        self, outcome: Outcome, counted_prompt_tokens: int, key: ApiKey | None = None
    ) -> None:
        """Count the tokens of a job that continued after its request was answered with a time-out;
        of the prompt only those tokens that were not counted then. The request itself was
        counted."""
        self._note_change()
        prompt_tokens = (outcome.prompt_tokens or 0) - counted_prompt_tokens
        self._count_tokens(
            Spent(
                model=outcome.model or NONE,
                key=key,
                prompt_tokens=prompt_tokens,
                cached_tokens=outcome.cached_tokens or 0,
                completion_tokens=outcome.completion_tokens or 0,
            )
        )

    def _note_change(self) -> None:
        self.changes += 1
        self.on_change()

    def last_tokens_per_s(self, model_id: str) -> float | None:
        """Return the speed of the model's last whole answer of this machine, without its prompt: of
        this router, or else of others; None before the first one."""
        tallies = (self._models.get(model_id), self._earlier.models.get(model_id))
        return next((one.tokens_per_s for one in tallies if one and one.tokens_per_s), None)

    def latest(self, model_id: str) -> Iterable[Ended]:
        """Return the latest requests for a model that this router has answered, a hundred at most,
        the oldest first."""
        own = self._models.get(model_id)
        return () if own is None else own.latest

    def used(self, model_id: str) -> tuple[int, float | None]:
        """Return how many requests for a model have ended, and when the last one did, in Unix
        time."""
        tally = self._known(model_id)
        return tally.requests, tally.used_at_s

    def forwarded_to(self, peer: str) -> dict[str, int]:
        """Return how many requests that were forwarded to a peer have ended, by what became of
        them."""
        both = self._forwarded + Counter(self._earlier.forwarded)
        return {ended: count for (name, ended), count in both.items() if name == peer}

    def requests_of(self, model: ModelStatus) -> int:
        """Return how many requests a model has had. Its worker reports those since it was loaded
        with its beats, a second late; the router knows at once those that have ended since lmx was
        started."""
        counted, _ = self.used(model.model)
        return max(counted, model.figures.requests_total)

    def read(self) -> Reading:
        """Return all counts, with every model that exists."""
        self._forget_others()
        there = self._model_ids()
        if there is None:
            there = self._earlier.models
        names = [*self._models, *(name for name in there if name not in self._models)]
        if NONE in self._earlier.models and NONE not in names:
            names.append(NONE)
        return Reading(
            self._totals.plus(self._earlier.totals),
            {name: self._known(name) for name in names},
            dict(self._http + Counter(self._earlier.http)),
            dict(self._limited + Counter(self._earlier.limited)),
            self._read_keys(),
            dict(self._forwarded + Counter(self._earlier.forwarded)),
        )

    def tallies(self) -> tuple[Tally, ...]:
        """Return what this router has counted itself, so that it is kept when the router ends."""
        return tallies_of(
            Reading(
                self._totals,
                self._models,
                self._http,
                self._limited,
                self._keys,
                self._forwarded,
            )
        )

    def begin_with(self, earlier: Iterable[Tally]) -> None:
        """Set what other routers have counted until now, in place of what was set before."""
        self._earlier = reading_of(earlier)

    def _known(self, model_id: str) -> ModelTally:
        own, earlier = self._models.get(model_id), self._earlier.models.get(model_id)
        if own is None or earlier is None:
            return _copied(own or earlier or ModelTally())
        return earlier.plus(own)

    def _count(
        self, outcome: Outcome, status: int, duration_s: float | None, key: ApiKey | None
    ) -> None:
        code = error_of(outcome, status)
        totals, tally = self._totals, self._tally(outcome.model or NONE)
        totals.requests += 1
        totals.streams += bool(outcome.stream)
        if code is None:
            tally.reasons[reason_of(outcome)] += 1
        else:
            totals.errors += 1
            tally.errors[code] += 1
        self._count_tokens(
            Spent(
                model=outcome.model or NONE,
                key=key,
                requests=1,
                errors=int(code is not None),
                prompt_tokens=outcome.prompt_tokens or 0,
                cached_tokens=outcome.cached_tokens or 0,
                completion_tokens=outcome.completion_tokens or 0,
                ttft_s=None if duration_s is None else outcome.ttft_s,
                gaps_s=() if duration_s is None else outcome.gaps_s,
            )
        )
        tally.used_at_s = time.time()
        if duration_s is None:
            return
        tally.latest.append(
            Ended(
                tally.used_at_s,
                outcome.ttft_s,
                outcome.prompt_tokens or 0,
                outcome.cached_tokens or 0,
            )
        )
        if outcome.tokens_per_s is not None:
            tally.tokens_per_s = outcome.tokens_per_s
        tally.histograms[GAPS.name].add(outcome.gaps_s)
        for measure in MEASURES:
            if (value := measure.of(outcome, duration_s)) is not None:
                tally.histograms[measure.name].add((value,))

    def _count_tokens(self, spent: Spent) -> None:
        tally = self._tally(spent.model)
        counted: tuple[Totals | ModelTally, ...] = (self._totals, tally)
        for each in counted:
            each.prompt_tokens += spent.prompt_tokens
            each.completion_tokens += spent.completion_tokens
        tally.cached_tokens += spent.cached_tokens
        label = self._label(spent.key)  # It may make another dictionary of keys.
        of_key = self._keys.setdefault(label, KeyTally())
        of_key.requests += spent.requests
        of_key.prompt_tokens += spent.prompt_tokens
        of_key.completion_tokens += spent.completion_tokens
        self._spent(spent)

    def _label(self, key: ApiKey | None) -> str:
        if key is None:
            return NONE
        return key.shown_name if key.shown_name in self._key_names() else OTHER

    def _key_names(self) -> frozenset[str]:
        keys = self._all_keys()
        if keys is not self._named[0]:
            self._named = keys, named_keys(keys)
            # Keys that come and go leave nothing behind.
            kept = {*self._named[1], OTHER, NONE}
            self._keys = {name: tally for name, tally in self._keys.items() if name in kept}
        return self._named[1]

    def _read_keys(self) -> Mapping[str, KeyTally]:
        found: dict[str, KeyTally] = {}
        kept = {*self._key_names(), OTHER, NONE}
        for counted in (self._keys, self._earlier.keys):
            for name, tally in counted.items():
                if name in kept:
                    found[name] = tally.plus(found.get(name, KeyTally()))
        return found

    def _tally(self, model_id: str) -> ModelTally:
        found = self._models.get(model_id)
        if found is None:
            self._forget_others()
            found = self._models[model_id] = ModelTally()
        return found

    def _forget_others(self) -> None:
        known = self._model_ids()
        if known is not None:
            kept = {*known, NONE}
            self._models = {
                model_id: tally for model_id, tally in self._models.items() if model_id in kept
            }


def named_keys(keys: Iterable[ApiKey]) -> frozenset[str]:
    """Return the names of the keys that are named in the metrics: the first ones that were made.
    Pure."""
    asking = [key for key in keys if not {KeyScope.INFERENCE, KeyScope.PEER}.isdisjoint(key.scopes)]
    asking.sort(key=lambda key: key.created_at_s or 0.0)
    return frozenset(key.shown_name for key in asking[:_MOST_KEYS])


def error_of(outcome: Outcome, status: int) -> str | None:
    """Return the code of the error that a request ended with; None if it had none. A client that
    leaves is no error. A refused request has an error's status; a request that failed after its
    headers were sent has the code in its outcome."""
    if outcome.error == CLIENT_LEFT or (outcome.error is None and status < 400):
        return None
    return outcome.error if outcome.error in _CODES else ErrorCode.INTERNAL.value


def reason_of(outcome: Outcome) -> str:
    """Return why the answer of a request without an error ended, one of ``REASONS``. Answers that
    generate nothing have the reason "stop"."""
    if outcome.error == CLIENT_LEFT:
        return ABORTED
    ends = (outcome.finish_reason or "").split(",")
    return next((reason for reason in _BY_WEIGHT if reason in ends), FinishReason.STOP).value


def _status_class(status: int) -> str:
    return f"{status // 100}xx"


def _copied(tally: ModelTally) -> ModelTally:
    return replace(
        tally,
        reasons=tally.reasons.copy(),
        errors=tally.errors.copy(),
        histograms={name: histogram.copy() for name, histogram in tally.histograms.items()},
    )


# On the wire each counter has a name, `kind:...`. Names that a later release no longer knows
# are left out.


def tallies_of(reading: Reading) -> tuple[Tally, ...]:
    """Return all counts in the form in which the supervisor keeps them."""
    common = {name: float(value) for name, value in asdict(reading.totals).items() if value}
    common |= {f"http:{':'.join(key)}": float(count) for key, count in reading.http.items()}
    common |= {f"limited:{':'.join(key)}": float(count) for key, count in reading.limited.items()}
    common |= {
        f"forwarded:{ended}:{peer}": float(count)
        for (peer, ended), count in reading.forwarded.items()
    }
    for key, counted in reading.keys.items():
        common |= {
            f"key:{key}:{name}": float(value) for name, value in asdict(counted).items() if value
        }
    whole = Tally("", tuple(common), tuple(common.values()))
    return (whole, *(_model_tally(name, tally) for name, tally in reading.models.items()))


def _model_tally(name: str, tally: ModelTally) -> Tally:
    known = {field: float(getattr(tally, field)) for field in _TOKENS if getattr(tally, field)}
    known |= {f"reason:{reason}": float(count) for reason, count in tally.reasons.items()}
    known |= {f"error:{code}": float(count) for code, count in tally.errors.items()}
    for measure, histogram in tally.histograms.items():
        if histogram.count:
            known[f"sum:{measure}"] = histogram.total
            known |= {f"le:{measure}:{at}": count for at, count in histogram.counts().items()}
    return Tally(name, tuple(known), tuple(known.values()), tally.used_at_s, tally.tokens_per_s)


def reading_of(tallies: Iterable[Tally]) -> Reading:
    """Return the counts of :func:`tallies_of`, as far as this release knows them."""
    totals, models = Totals(), dict[str, ModelTally]()
    known = {each.name for each in fields(Totals)}
    http: dict[tuple[str, str, str], int] = {}
    limited: dict[tuple[str, str], int] = {}
    keys: dict[str, KeyTally] = {}
    forwarded: dict[tuple[str, str], int] = {}
    for tally in tallies:
        if tally.name:
            models[tally.name] = _read_model(tally)
            continue
        for name, value in tally.by_name().items():
            match name.split(":"):
                case [field] if field in known:
                    setattr(totals, field, int(value))
                case ["http", method, *route, status]:
                    http[method, ":".join(route), status] = int(value)
                case ["limited", scope, limit]:
                    limited[scope, limit] = int(value)
                case ["forwarded", ended, *peer]:
                    forwarded[":".join(peer), ended] = int(value)
                case ["key", *key, field] if field in _OF_KEY:
                    counted = keys.setdefault(":".join(key), KeyTally())
                    setattr(counted, field, int(value))
    return Reading(totals, models, http, limited, keys, forwarded)


def _read_model(stored: Tally) -> ModelTally:
    tally = ModelTally(used_at_s=stored.used_at_s, tokens_per_s=stored.tokens_per_s)
    values = stored.by_name()
    buckets: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        match name.split(":"):
            case [field] if field in _TOKENS:
                setattr(tally, field, int(value))
            case ["reason", reason]:
                tally.reasons[reason] = int(value)
            case ["error", code]:
                tally.errors[code] = int(value)
            case ["le", measure, bound]:
                buckets.setdefault(measure, {})[bound] = value
    for measure, counts in buckets.items():
        if measure in tally.histograms:
            tally.histograms[measure].begin_with(counts, values.get(f"sum:{measure}", 0.0))
    return tally
