"""How much each key, and all of them together, may ask for: decided without a clock. Pure.

A limit a minute is a bucket that holds a minute's worth and fills evenly: who has been quiet may
ask for a minute's worth at once. Times are of one clock that only goes on, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.messages.counts import KeyUsage
from lmx.protocol.messages.specs import RateLimits

TOTAL: Final = ""
"""Stands for all keys together where usage is listed by who asks."""

_MINUTE_S: Final = 60.0
_BUSY_S: Final = 1.0
"""When to try again where too many run: nobody knows how long they take."""

_MOST_METERS: Final = 4096
"""Askers that are remembered; beyond it those go that have used nothing, or least."""

_SPARE_METERS: Final = 1024
"""So many new askers at least come between two looks through all meters."""

_SLACK: Final = 1e-6


class Limit(StrEnum):
    """What is limited."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENT = "concurrent_requests"


_WORDS: Final = {
    Limit.REQUESTS: "requests per minute",
    Limit.TOKENS: "tokens per minute",
    Limit.CONCURRENT: "requests at a time",
}


@dataclass(slots=True, eq=False)
class Meter:
    """What one asker, or all, have used: the numbers are those of the last minute, of which
    ``at_s`` lets some go. More tokens than the limit are a debt. ``pending``: those of the tokens
    that are an estimate for requests under way. ``elsewhere``: requests under way that another
    router answers."""

    limits: RateLimits
    at_s: float
    requests: float = 0.0
    tokens: float = 0.0
    pending: float = 0.0
    running: int = 0
    elsewhere: int = 0

    def settle(self, now_s: float) -> None:
        """Let time pass."""
        passed = max(0.0, now_s - self.at_s) / _MINUTE_S
        self.at_s = max(now_s, self.at_s)
        if self.limits.requests_per_minute is not None:
            self.requests = max(0.0, self.requests - passed * self.limits.requests_per_minute)
        if self.limits.tokens_per_minute is not None:
            self.tokens = max(0.0, self.tokens - passed * self.limits.tokens_per_minute)

    def add(self, requests: float = 0.0, tokens: float = 0.0) -> None:
        """Count what is used, or given back, of what is limited."""
        if self.limits.requests_per_minute is not None:
            self.requests = max(0.0, self.requests + requests)
        if self.limits.tokens_per_minute is not None:
            self.tokens = max(0.0, self.tokens + tokens)

    def book(self, tokens: float) -> float:
        """Count an estimate of tokens and return as much of it as was counted: no more than the
        whole limit. A client may allow an answer far more than any model gives, and that must
        not be a debt before it was used."""
        booked = min(tokens, self.limits.tokens_per_minute or 0)
        self.add(tokens=booked)
        self.pending += booked
        return booked

    @property
    def share(self) -> float:
        """How much of its limits is used, of the one that is used most; 1 is all of it."""
        return max(
            used / most if most else 0.0
            for most, used in (self.used(Limit.REQUESTS), self.used(Limit.TOKENS))
        )

    @property
    def unused(self) -> bool:
        """Whether it is as good as a new one."""
        return not (self.running or self.elsewhere or self.requests or self.tokens)

    def used(self, limit: Limit) -> tuple[int | None, float]:
        """Return a limit, None where there is none, and how much of it is used."""
        match limit:
            case Limit.REQUESTS:
                return self.limits.requests_per_minute, self.requests
            case Limit.TOKENS:
                return self.limits.tokens_per_minute, self.tokens
            case Limit.CONCURRENT:
                return self.limits.concurrent_requests, self.running + self.elsewhere

    def wait_s(self, limit: Limit, wanted: float) -> float:
        """Return how long until ``wanted`` more fit within a limit; 0: they fit now. What is more
        than the whole limit fits as soon as nothing is used."""
        most, used = self.used(limit)
        if most is None:
            return 0.0
        over = used + min(wanted, most) - most
        if over <= _SLACK:
            return 0.0
        return _BUSY_S if limit is Limit.CONCURRENT else over * _MINUTE_S / most


class Admission:
    """One request's way through the limits: :meth:`begin`, :meth:`charge` once what it asks for
    is known, :meth:`end`. ``held``: it goes on after its answer, and somebody else ends it."""

    def __init__(
        self, meters: Mapping[str, Meter], whose: str, note: Callable[[str, Limit], None]
    ) -> None:
        self.held = False
        self._meters = meters
        self._whose = whose
        self._note = note
        self._booked = dict.fromkeys(meters, 0.0)
        self._begun = False

    def begin(self, now_s: float) -> None:
        """Count the request. Raises RATE_LIMIT_EXCEEDED where it is one too many, or no token is
        left; nothing is counted then."""
        self._check(now_s, ((Limit.CONCURRENT, 1.0), (Limit.REQUESTS, 1.0), (Limit.TOKENS, 1.0)))
        for meter in self._meters.values():
            meter.add(requests=1.0)
            meter.running += 1
        self._begun = True

    def charge(self, tokens: float, now_s: float) -> None:
        """Count the tokens that it will need by an estimate. Raises RATE_LIMIT_EXCEEDED where they
        don't fit; the request is not counted then."""
        try:
            self._check(now_s, ((Limit.TOKENS, tokens),))
        except UnavailableError:
            for meter in self._meters.values():
                meter.add(requests=-1.0)
            raise
        for scope, meter in self._meters.items():
            self._booked[scope] += meter.book(tokens)

    def end(self, tokens: int, now_s: float) -> None:
        """The request is over, and took so many tokens: those that were too many are given back,
        those that were too few are taken. Idempotent."""
        if not self._begun:
            return
        self._begun = False
        for scope, meter in self._meters.items():
            meter.settle(now_s)
            meter.running -= 1
            meter.pending = max(0.0, meter.pending - self._booked[scope])
            meter.add(tokens=tokens - self._booked[scope])

    def headers(self, now_s: float) -> dict[str, str]:
        """Return what clients are told of their limits, as OpenAI's API does: of each kind that
        one of the limits of which least is left."""
        told: dict[str, str] = {}
        for meter in self._meters.values():
            meter.settle(now_s)
        for limit in (Limit.REQUESTS, Limit.TOKENS):
            known = [meter.used(limit) for meter in self._meters.values()]
            limited = [(most - used, most, used) for most, used in known if most is not None]
            if limited:
                left, most, used = min(limited)
                told[f"x-ratelimit-limit-{limit}"] = str(most)
                told[f"x-ratelimit-remaining-{limit}"] = str(max(0, math.floor(left + _SLACK)))
                told[f"x-ratelimit-reset-{limit}"] = reset_text(used * _MINUTE_S / most)
        return told

    def _check(self, now_s: float, wanted: tuple[tuple[Limit, float], ...]) -> None:
        for scope, meter in self._meters.items():
            meter.settle(now_s)
            for limit, amount in wanted:
                wait_s = meter.wait_s(limit, amount)
                if wait_s:
                    self._note("total" if scope == TOTAL else "key", limit)
                    raise self._refusal(scope, meter, limit, amount, wait_s)

    def _refusal(
        self, scope: str, meter: Meter, limit: Limit, amount: float, wait_s: float
    ) -> UnavailableError:
        most, used = meter.used(limit)
        whose = "all keys together" if scope == TOTAL else self._whose
        return UnavailableError(
            ErrorCode.RATE_LIMIT_EXCEEDED,
            f"Rate limit reached for {whose} on {_WORDS[limit]}: limit {most}, "
            f"used {math.ceil(used - _SLACK)}, requested {math.ceil(amount)}. Try again in "
            f"{reset_text(wait_s)}.",
            retry_after_s=wait_s,
        )


class RateLimiter:
    """What every asker has used. An asker is a key, or a client's address where there are no keys.

    ``per_key`` are the limits of each, but for those in ``own``; ``total`` those of all together.
    ``names`` has what people call a key. ``note`` hears of each refusal: whether a key's or the
    total limit, and which. Used from one event loop only.
    """

    def __init__(
        self,
        per_key: RateLimits,
        own: Mapping[str, RateLimits],
        total: RateLimits,
        names: Mapping[str, str],
        note: Callable[[str, Limit], None],
    ) -> None:
        self._per_key = per_key
        self._own = own
        self._total = total
        self._names = names
        self._note = note
        self._meters: dict[str, Meter] = {}
        self._full_at = _MOST_METERS
        self.changes = 0
        """Grows with each request that limits apply to: there is something new to tell."""

    def name_of(self, asker: str | None) -> str | None:
        """Return what the configuration calls a key."""
        return None if asker is None else self._names.get(asker)

    def open(self, asker: str, now_s: float) -> Admission | None:
        """Return the way through the limits for one more request; None where none apply."""
        meters = {}
        limits = self._limits(asker)
        if limits != RateLimits():
            meters[asker] = self._meter(asker, limits, now_s)
        if self._total != RateLimits():
            # Never makes room for itself, or the asker's new meter might have to go.
            meters[TOTAL] = self._meters.setdefault(TOTAL, Meter(self._total, now_s))
        if not meters:
            return None
        self.changes += 1
        name = self.name_of(asker)
        whose = f"the key {name!r}" if name else "this key or address"
        return Admission(meters, whose, self._note)

    def usage(self, now_s: float) -> dict[str, KeyUsage]:
        """Return what was used, for the router that comes after this one. Without the estimates
        for requests under way: nobody would give back there what they don't take."""
        for meter in self._meters.values():
            meter.settle(now_s)
        return {
            asker: KeyUsage(
                asker, meter.requests, max(0.0, meter.tokens - meter.pending), meter.running
            )
            for asker, meter in self._meters.items()
            if not meter.unused
        }

    def inherit(self, usage: Iterable[KeyUsage], now_s: float) -> None:
        """Take over what was used with the router before this one: once, at its beginning."""
        for used in usage:
            limits = self._limits(used.asker)
            if limits != RateLimits():
                before = Meter(limits, now_s - used.age_s)
                before.add(used.requests, used.tokens)
                before.settle(now_s)
                meter = self._meter(used.asker, limits, now_s)
                meter.settle(now_s)
                meter.add(before.requests, before.tokens)

    def note_elsewhere(self, usage: Mapping[str, KeyUsage], now_s: float) -> None:
        """Take how many requests other routers answer now."""
        for asker, meter in self._meters.items():
            meter.elsewhere = usage[asker].running if asker in usage else 0
        for asker, used in usage.items():
            limits = self._limits(asker)
            if used.running and limits != RateLimits():
                self._meter(asker, limits, now_s).elsewhere = used.running

    def _limits(self, asker: str) -> RateLimits:
        return self._total if asker == TOTAL else self._own.get(asker, self._per_key)

    def _meter(self, asker: str, limits: RateLimits, now_s: float) -> Meter:
        found = self._meters.get(asker)
        if found is None:
            if len(self._meters) >= self._full_at:
                self._make_room(now_s)
            found = self._meters[asker] = Meter(limits, now_s)
        return found

    def _make_room(self, now_s: float) -> None:
        for meter in self._meters.values():
            meter.settle(now_s)
        kept, idle = {}, []
        for asker, meter in self._meters.items():
            if asker == TOTAL or meter.running or meter.elsewhere:
                kept[asker] = meter
            elif not meter.unused:
                idle.append((asker, meter))
        idle.sort(key=lambda one: one[1].share, reverse=True)
        kept.update(idle[: max(0, _MOST_METERS - _SPARE_METERS - len(kept))])
        self._meters = kept
        # Those of requests under way are as many as the server takes at a time.
        self._full_at = max(_MOST_METERS, len(kept) + _SPARE_METERS)


def reset_text(seconds: float) -> str:
    """Return a time as OpenAI's headers write it: ``120ms``, ``1s``, ``6m0s``, ``1h2m3s``."""
    if seconds < 1.0:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds - _SLACK)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


ADMISSION: Final = web.RequestKey("admission", Admission)
"""Where a request carries its way through the limits, if some apply."""
