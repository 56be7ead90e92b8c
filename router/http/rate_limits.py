"""Decides how much each key, and all keys together, may use. It has no clock of its own.

A limit per minute is a bucket that holds a minute's worth and fills evenly: a client that has been
quiet may use a minute's worth at once. All times are of one monotonic clock, in seconds.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.messages.counts import KeyUsage
from lmx.protocol.messages.keys import ApiKey, RateLimits

TOTAL: Final = ""
"""Stands for all keys together where usage is listed by requester."""

_MINUTE_S: Final = 60.0
_BUSY_S: Final = 1.0
"""When to try again if too many requests run: nobody knows how long they take."""

_MOST_METERS: Final = 4096
"""How many requesters are remembered. Beyond it those are dropped that have used nothing, or the
least."""

_SPARE_METERS: Final = 1024
"""At least this many new requesters come between two searches through all meters."""

_SLACK: Final = 1e-6


class Limit(StrEnum):
    """The kinds of limits."""

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
    """What one requester, or all requesters together, have used."""

    limits: RateLimits
    at_s: float
    """The time of the last :meth:`settle`, which lets the usage decay."""
    requests: float = 0.0
    """Requests of the last minute, as a bucket that empties evenly."""
    tokens: float = 0.0
    """Tokens of the last minute, likewise. More tokens than the limit are a debt."""
    pending: float = 0.0
    """The part of ``tokens`` that is only estimated, for requests under way."""
    running: int = 0
    """Requests under way in this router."""
    elsewhere: int = 0
    """Requests under way that another router answers."""

    def settle(self, now_s: float) -> None:
        """Let the usage decay until ``now_s``."""
        passed = max(0.0, now_s - self.at_s) / _MINUTE_S
        self.at_s = max(now_s, self.at_s)
        if self.limits.requests_per_minute is not None:
            self.requests = max(0.0, self.requests - passed * self.limits.requests_per_minute)
        if self.limits.tokens_per_minute is not None:
            self.tokens = max(0.0, self.tokens - passed * self.limits.tokens_per_minute)

    def add(self, requests: float = 0.0, tokens: float = 0.0) -> None:
        """Count what was used; a negative number gives some back."""
        if self.limits.requests_per_minute is not None:
            self.requests = max(0.0, self.requests + requests)
        if self.limits.tokens_per_minute is not None:
            self.tokens = max(0.0, self.tokens + tokens)

    def book(self, tokens: float) -> float:
        """Count an estimate of tokens and return how much of it was counted: no more than the whole
        limit. A client may allow an answer far more tokens than any model gives, and that must not
        be a debt before they were used."""
        booked = min(tokens, self.limits.tokens_per_minute or 0)
        self.add(tokens=booked)
        self.pending += booked
        return booked

    @property
    def share(self) -> float:
        """The share of its limit that the most used limit has reached; 1 is all of it."""
        return max(
            used / most if most else 0.0
            for most, used in (self.used(Limit.REQUESTS), self.used(Limit.TOKENS))
        )

    @property
    def unused(self) -> bool:
        """Whether the meter is as good as a new one."""
        return not (self.running or self.elsewhere or self.requests or self.tokens)

    def used(self, limit: Limit) -> tuple[int | None, float]:
        """Return a limit and how much of it is used. The limit is None if there is none."""
        match limit:
            case Limit.REQUESTS:
                return self.limits.requests_per_minute, self.requests
            case Limit.TOKENS:
                return self.limits.tokens_per_minute, self.tokens
            case Limit.CONCURRENT:
                return self.limits.concurrent_requests, self.running + self.elsewhere

    def wait_s(self, limit: Limit, wanted: float) -> float:
        """Return how long it takes until ``wanted`` more fit within a limit; 0 if they fit now. A
        number above the whole limit fits as soon as nothing is used."""
        most, used = self.used(limit)
        if most is None:
            return 0.0
        over = used + min(wanted, most) - most
        if over <= _SLACK:
            return 0.0
        return _BUSY_S if limit is Limit.CONCURRENT else over * _MINUTE_S / most


class Admission:
    """One request's way through the limits: :meth:`begin`, then :meth:`charge` once it is known
    what the request needs, then :meth:`end`.

    If ``held`` is true, the request continues after its answer, and its job calls :meth:`end`.
    """

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
        """Count the request. Raises RATE_LIMIT_EXCEEDED if it is one too many, or no token is left;
        it is not counted then."""
        self._check(now_s, ((Limit.CONCURRENT, 1.0), (Limit.REQUESTS, 1.0), (Limit.TOKENS, 1.0)))
        for meter in self._meters.values():
            meter.add(requests=1.0)
            meter.running += 1
        self._begun = True

    def charge(self, tokens: float, now_s: float) -> None:
        """Count the tokens that the request will need by an estimate. Raises RATE_LIMIT_EXCEEDED if
        they don't fit; the request is not counted then."""
        try:
            self._check(now_s, ((Limit.TOKENS, tokens),))
        except UnavailableError:
            for meter in self._meters.values():
                meter.add(requests=-1.0)
            raise
        for scope, meter in self._meters.items():
            self._booked[scope] += meter.book(tokens)

    def end(self, tokens: int, now_s: float) -> None:
        """End the request, which took ``tokens``. The difference from the estimate is given back,
        or counted in addition. Idempotent."""
        if not self._begun:
            return
        self._begun = False
        for scope, meter in self._meters.items():
            meter.settle(now_s)
            meter.running -= 1
            meter.pending = max(0.0, meter.pending - self._booked[scope])
            meter.add(tokens=tokens - self._booked[scope])

    def headers(self, now_s: float) -> dict[str, str]:
        """Return the headers that show clients their limits, as OpenAI's API does. Of each kind
        they show the limit of which the least is left."""
        headers: dict[str, str] = {}
        for meter in self._meters.values():
            meter.settle(now_s)
        for limit in (Limit.REQUESTS, Limit.TOKENS):
            known = [meter.used(limit) for meter in self._meters.values()]
            limited = [(most - used, most, used) for most, used in known if most is not None]
            if limited:
                left, most, used = min(limited)
                headers[f"x-ratelimit-limit-{limit}"] = str(most)
                headers[f"x-ratelimit-remaining-{limit}"] = str(max(0, math.floor(left + _SLACK)))
                headers[f"x-ratelimit-reset-{limit}"] = reset_text(used * _MINUTE_S / most)
        return headers

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
    """What every requester has used. A requester is a key, or a client's address if there are no
    keys.

    ``per_key`` are the limits of each key, except for those of ``keys`` that have their own.
    ``total`` are the limits of all together. ``note`` is called for each refusal, with the scope of
    the limit (one key's, or the total) and its kind. Used from one event loop only.
    """

    def __init__(
        self,
        per_key: RateLimits,
        keys: Iterable[ApiKey],
        total: RateLimits,
        note: Callable[[str, Limit], None],
    ) -> None:
        self._per_key = per_key
        self._keys = {key.owner: key for key in keys}
        self._total = total
        self._note = note
        self._meters: dict[str, Meter] = {}
        self._full_at = _MOST_METERS
        self.changes = 0
        """Grows with each request that limits apply to: there is something new to report."""
        self.on_change: Callable[[], None] = lambda: None
        """Is called whenever ``changes`` has grown."""

    def set_keys(self, keys: Iterable[ApiKey]) -> None:
        """Let other keys have their own limits. What was used stays used."""
        self._keys = {key.owner: key for key in keys}
        for requester, meter in self._meters.items():
            meter.limits = self._limits(requester)

    def open(self, requester: str, now_s: float) -> Admission | None:
        """Return the admission for one more request; None if no limits apply."""
        meters = {}
        limits = self._limits(requester)
        if limits != RateLimits():
            meters[requester] = self._meter(requester, limits, now_s)
        if self._total != RateLimits():
            # A meter never evicts itself; otherwise the requester's new meter might be dropped.
            meters[TOTAL] = self._meters.setdefault(TOTAL, Meter(self._total, now_s))
        if not meters:
            return None
        self.changes += 1
        self.on_change()
        key = self._keys.get(requester)
        whose = f"the key {key.name!r}" if key is not None and key.name else "this key or address"
        return Admission(meters, whose, self._note)

    def usage(self, now_s: float) -> dict[str, KeyUsage]:
        """Return what was used, for the router that comes after this one. It leaves out the
        estimates for requests under way: the next router could not give back what they don't
        take."""
        for meter in self._meters.values():
            meter.settle(now_s)
        return {
            requester: KeyUsage(
                requester, meter.requests, max(0.0, meter.tokens - meter.pending), meter.running
            )
            for requester, meter in self._meters.items()
            if not meter.unused
        }

    def inherit(self, usage: Iterable[KeyUsage], now_s: float) -> None:
        """Take over the usage that the router before this one counted. Called once, at the
        beginning."""
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
        """Note how many requests other routers answer now."""
        for requester, meter in self._meters.items():
            meter.elsewhere = usage[requester].running if requester in usage else 0
        for requester, used in usage.items():
            limits = self._limits(requester)
            if used.running and limits != RateLimits():
                self._meter(requester, limits, now_s).elsewhere = used.running

    def _limits(self, requester: str) -> RateLimits:
        if requester == TOTAL:
            return self._total
        key = self._keys.get(requester)
        return self._per_key if key is None or key.limits is None else key.limits

    def _meter(self, requester: str, limits: RateLimits, now_s: float) -> Meter:
        found = self._meters.get(requester)
        if found is None:
            if len(self._meters) >= self._full_at:
                self._make_room(now_s)
            found = self._meters[requester] = Meter(limits, now_s)
        return found

    def _make_room(self, now_s: float) -> None:
        for meter in self._meters.values():
            meter.settle(now_s)
        kept, idle = {}, []
        for requester, meter in self._meters.items():
            if requester == TOTAL or meter.running or meter.elsewhere:
                kept[requester] = meter
            elif not meter.unused:
                idle.append((requester, meter))
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
"""The key under which a request carries its admission, if some limits apply to it."""
