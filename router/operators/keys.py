"""The routes of keys: list, add, rotate and revoke them. A secret is in the answer that makes it,
and nowhere else."""

from typing import Final

import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.keys import (
    AddKey,
    DayBudget,
    KeyFamily,
    KeyList,
    KeyMade,
    KeyScope,
    KeyView,
    ListKeys,
    RateLimits,
    RevokeKey,
    RotateKey,
)
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.responses import Answer, json_value
from lmx.router.schema.requests.keys import KeyRequest, RotateRequest
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.supervisor.queries import COMMAND_DEADLINE_S, ask, command
from lmx.router.usage.budgets import answered, tokens
from lmx.router.usage.tables import Usage

_log = structlog.get_logger()

KEY_ERRORS: Final = (ErrorCode.NOT_FOUND, ErrorCode.KEY_CONFIGURED)
"""The errors of a change of a key."""


class KeyLimits(Answer):
    """A key's own limits of requests. Null: none."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None


class KeyBudget(Answer):
    """What a key may use on one day of lmx's clock. Null: any number."""

    requests: int | None
    tokens: int | None


class KeyUsed(Answer):
    """What a key has used today, as its budget counts it: without requests that ended with an
    error."""

    requests: int
    tokens: int
    """Of prompts and answers together."""


class KeyAnswer(Answer):
    """A key, without its secret."""

    name: str
    configured: bool
    """Whether it is of the configuration, and is changed there alone."""
    scopes: list[KeyScope]
    models: list[str]
    """Patterns of the ids of the models that it opens. Empty: all models."""
    families: list[KeyFamily]
    """The APIs that it opens. Empty: all of them."""
    limits: KeyLimits | None
    """Null: the limits of every key."""
    budget: KeyBudget | None
    priority: int | None
    created_at_s: float | None
    """In Unix time, as the next two."""
    expires_at_s: float | None
    former_until_s: float | None
    """Until when its former secret is valid, too."""
    key_id: str
    """What its rows in GET /admin/usage have."""
    used_today: KeyUsed | None
    """Null in the answer of a change, and where the usage can't be read."""


class KeyMadeAnswer(KeyAnswer):
    """A key whose secret was made just now."""

    secret: str
    """It is shown here alone."""
    note: str
    """What is not yet as it should be. Empty if all is well."""


class KeysAnswer(Answer):
    """The answer of GET /admin/keys."""

    keys: list[KeyAnswer]
    """Those of the configuration, then the others by name."""


class KeyRevoked(Answer):
    """The answer of DELETE /admin/keys/{name}."""

    success: bool
    message: str


async def list_keys(request: web.Request) -> web.Response:
    """Return every key but the admin key and the metrics key of the configuration, which have no
    names."""
    services = request.app[SERVICES]
    found = await ask(services.supervisor, ListKeys(), KeyList, COMMAND_DEADLINE_S)
    try:
        used = await services.usage.today()
    except LmxError as error:
        _log.warning("keys.usage_unread", error=error.message)
        return json_value(KeysAnswer(keys=[key_answer(key) for key in found.keys]))
    keys = [key_answer(key, used.get(key.key_id, Usage())) for key in found.keys]
    return json_value(KeysAnswer(keys=keys))


async def add_key(request: web.Request) -> web.Response:
    """Make a key, which is valid when the answer comes."""
    services = request.app[SERVICES]
    wanted = validated(KeyRequest, await read_object(request, services.spec.body_limit_bytes))
    limits = RateLimits(
        wanted.requests_per_minute, wanted.tokens_per_minute, wanted.concurrent_requests
    )
    budget = DayBudget(wanted.requests_per_day, wanted.tokens_per_day)
    question = AddKey(
        name=wanted.name,
        scopes=wanted.scopes,
        models=wanted.models,
        families=wanted.families,
        limits=None if limits == RateLimits() else limits,
        budget=None if budget == DayBudget() else budget,
        priority=wanted.priority,
        expires_at_s=wanted.expires_at_s,
    )
    made = await ask(services.supervisor, question, KeyMade, COMMAND_DEADLINE_S)
    return json_value(_made(made), 201)


async def rotate_key(request: web.Request) -> web.Response:
    """Give a key another secret. The former one is valid for the grace time."""
    services = request.app[SERVICES]
    wanted = validated(RotateRequest, await read_object(request, services.spec.body_limit_bytes))
    question = RotateKey(request.match_info["name"], wanted.grace_s)
    made = await ask(services.supervisor, question, KeyMade, COMMAND_DEADLINE_S)
    return json_value(_made(made))


async def revoke_key(request: web.Request) -> web.Response:
    """Remove a key. It opens nothing any more when the answer comes; requests under way end as
    they would."""
    supervisor = request.app[SERVICES].supervisor
    done: Done = await command(supervisor, RevokeKey(request.match_info["name"]))
    return json_value(KeyRevoked(success=True, message=done.message))


def _made(made: KeyMade) -> KeyMadeAnswer:
    return {**key_answer(made.key), "secret": made.secret, "note": made.note}


def key_answer(key: KeyView, used: Usage | None = None) -> KeyAnswer:
    """Return a key as the routes show it. ``used`` is its usage of today."""
    limits, budget = key.limits, key.budget
    return KeyAnswer(
        name=key.name,
        configured=key.configured,
        scopes=list(key.scopes),
        models=list(key.models),
        families=list(key.families),
        limits=None
        if limits is None
        else KeyLimits(
            requests_per_minute=limits.requests_per_minute,
            tokens_per_minute=limits.tokens_per_minute,
            concurrent_requests=limits.concurrent_requests,
        ),
        budget=None
        if budget is None
        else KeyBudget(requests=budget.requests, tokens=budget.tokens),
        priority=key.priority,
        created_at_s=key.created_at_s,
        expires_at_s=key.expires_at_s,
        former_until_s=key.former_until_s,
        key_id=key.key_id,
        used_today=None if used is None else KeyUsed(requests=answered(used), tokens=tokens(used)),
    )
