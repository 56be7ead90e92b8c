"""GET /v1/usage: what the key of the request has used, and what it may use."""

from datetime import date
from typing import Literal

from aiohttp import web

from lmx.protocol.messages.keys import KeyFamily, KeyScope
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.responses import Answer, json_value
from lmx.router.schema.requests.operators import OwnUsageQuery
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.usage.budgets import answered, next_day_s, tokens
from lmx.router.usage.tables import Usage, UsageSums, sums_of


class DayOfKey(UsageSums):
    """What a key has used on one day."""

    day: str
    """The day, by the clock of lmx's machine (2026-11-27)."""


class KeyAllowance(Answer):
    """How much a key may use. Null: no limit of its own."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    requests_per_day: int | None
    tokens_per_day: int | None


class KeyLeft(Answer):
    """What is left of a day's budget. Null: any number."""

    requests: int | None
    tokens: int | None


class OwnUsage(Answer):
    """The answer of GET /v1/usage."""

    object: Literal["usage"]
    key: str | None
    """The key's name, or what identifies it. Null without a key: then the usage is that of all
    requests without one."""
    scopes: list[KeyScope]
    models: list[str]
    """Patterns of the ids of the models that it opens. Empty: all models."""
    families: list[KeyFamily]
    """The APIs that it opens. Empty: all of them."""
    expires_at_s: float | None
    """In Unix time. Null: never."""
    limits: KeyAllowance
    left_today: KeyLeft
    resets_at_s: float
    """When the day's budget is whole again, in Unix time."""
    days: list[DayOfKey]
    """The oldest first. There is none for a day without a request, except for today."""


async def own_usage(request: web.Request) -> web.Response:
    """Return what the key has used on the last days, its limits, and what is left of today's. It
    shows nothing of other keys."""
    services = request.app[SERVICES]
    query = validated(OwnUsageQuery, dict(request.query))
    key = request[CONTEXT].grant
    used = await services.usage.of_key(key, query.days)
    today = date.today().isoformat()
    used.setdefault(today, Usage())
    limits = None if key is None else key.limits
    budget = None if key is None else key.budget
    most_requests = None if budget is None else budget.requests
    most_tokens = None if budget is None else budget.tokens
    return json_value(
        OwnUsage(
            object="usage",
            key=None if key is None else key.shown_name,
            scopes=[KeyScope.INFERENCE] if key is None else list(key.scopes),
            models=[] if key is None else list(key.models),
            families=[] if key is None else list(key.families),
            expires_at_s=None if key is None else key.expires_at_s,
            limits=KeyAllowance(
                requests_per_minute=None if limits is None else limits.requests_per_minute,
                tokens_per_minute=None if limits is None else limits.tokens_per_minute,
                concurrent_requests=None if limits is None else limits.concurrent_requests,
                requests_per_day=most_requests,
                tokens_per_day=most_tokens,
            ),
            left_today=KeyLeft(
                requests=_left(most_requests, answered(used[today])),
                tokens=_left(most_tokens, tokens(used[today])),
            ),
            resets_at_s=next_day_s(),
            days=[{"day": day, **sums_of(one)} for day, one in sorted(used.items())],
        )
    )


def _left(most: int | None, used: int) -> int | None:
    return None if most is None else max(0, most - used)
