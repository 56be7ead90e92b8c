"""Refuses requests of keys that have used what they may use on a day.

What was used is read from the file of the usage, to which every router adds: so it outlives routers
and lmx itself. A request is refused once the budget is used up, and none that has begun is ended.
"""

import time
from collections import Counter
from datetime import date
from typing import Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.messages.keys import ApiKey
from lmx.router.usage.store import UsageStore
from lmx.router.usage.tables import Usage, day_begin_s

_BEFORE: Final = -1

_log = structlog.get_logger()


class DayBudgets:
    """Knows how many requests of each key are under way here. Used from one event loop only."""

    def __init__(self, usage: UsageStore) -> None:
        self._usage = usage
        self._running: Counter[str] = Counter()
        self._known: dict[str, tuple[str, Usage]] = {}
        """What each key had used on which day when that was last read."""

    async def begin(self, key: ApiKey) -> None:
        """Count a request as under way, until :meth:`end`. Raises RATE_LIMIT_EXCEEDED if the day's
        budget is used up; the request is not counted then. While the usage can't be read, what was
        read last counts; where nothing was, no request is refused."""
        if key.budget is None:
            return
        before = self._running[key.owner]
        self._running[key.owner] += 1
        try:
            try:
                self._check(key, await self.used_today(key), before)
            except UnavailableError:
                others = self._running[key.owner] - 1
                if others >= before:
                    raise
                # Some have ended meanwhile: they may have counted twice. A read that begins now
                # sees all of them.
                self._check(key, await self.used_today(key), others)
        except BaseException:
            self.end(key)
            raise

    def end(self, key: ApiKey) -> None:
        """Take a request as ended, after it was added to the usage."""
        self._running[key.owner] -= 1
        if self._running[key.owner] <= 0:
            del self._running[key.owner]

    async def used_today(self, key: ApiKey) -> Usage:
        """Return what a key has used today, as far as it can be read."""
        today = date.today().isoformat()
        try:
            days = await self._usage.of_key(key, 1)
        except LmxError as error:
            # Also with too many who read at a time, which is no way around a budget.
            _log.warning("budgets.unreadable", key=key.shown_name, error=error.message)
            day, used = self._known.get(key.owner, (today, Usage()))
            return used if day == today else Usage()
        used = days.get(today, Usage())
        self._known[key.owner] = today, used
        return used

    def _check(self, key: ApiKey, used: Usage, running: int) -> None:
        assert key.budget is not None
        for most, count, what in (
            (key.budget.requests, answered(used) + running, "requests"),
            (key.budget.tokens, tokens(used), "tokens"),
        ):
            if most is not None and count >= most:
                raise UnavailableError(
                    ErrorCode.RATE_LIMIT_EXCEEDED,
                    f"The key {key.shown_name!r} has used its {most:,} {what} of today. Try again "
                    "after midnight, by the clock of lmx's machine.",
                    retry_after_s=next_day_s() - time.time(),
                )


def answered(used: Usage) -> int:
    """Return how many requests count for a budget: not those that ended with an error."""
    return used.requests - used.errors


def tokens(used: Usage) -> int:
    """Return how many tokens count for a budget: of prompts and answers together."""
    return used.prompt_tokens + used.completion_tokens


def next_day_s() -> float:
    """Return when the budgets are whole again, in Unix time."""
    return day_begin_s(time.time(), _BEFORE)
