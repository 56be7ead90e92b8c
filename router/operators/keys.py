"""The routes of keys: list, add, rotate and revoke them. A secret is in the answer that makes it,
and nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.control import Done
from lmx.protocol.messages.keys import (
    AddKey,
    DayBudget,
    DayUse,
    KeyList,
    KeyMade,
    KeyView,
    ListKeys,
    RateLimits,
    RevokeKey,
    RotateKey,
)
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.responses import Answer, json_value, succeeded
from lmx.router.schema.requests.keys import KeyRequest, RotateRequest
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES
from lmx.router.supervisor.queries import COMMAND_DEADLINE_S, ask, command
from lmx.router.usage.budgets import answered, tokens
from lmx.router.usage.tables import Usage

_log = structlog.get_logger()

KEY_ERRORS: Final = (ErrorCode.NOT_FOUND, ErrorCode.KEY_CONFIGURED)
"""The errors of a change of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMadeAnswer(KeyView):
    """A key whose secret was made just now."""

    secret: str = field(repr=False)
    """It is shown here alone."""
    note: str
    """What is not yet as it should be. Empty if all is well."""


class KeysAnswer(Answer):
    """The answer of GET /admin/keys."""

    keys: Sequence[KeyView]
    """Those of the configuration, then the others by name."""


async def list_keys(request: web.Request) -> web.Response:
    """Return every key but the admin key and the metrics key of the configuration, which have no
    names."""
    services = request.app[SERVICES]
    found = await ask(services.supervisor, ListKeys(), KeyList, COMMAND_DEADLINE_S)
    try:
        used = await services.usage.today()
    except LmxError as error:
        _log.warning("keys.usage_unread", error=error.message)
        return json_value(KeysAnswer(keys=found.keys))
    uses = ((key, used.get(key.key_id, Usage())) for key in found.keys)
    keys = [replace(key, used_today=DayUse(answered(use), tokens(use))) for key, use in uses]
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
    return succeeded(done.message)


def _made(made: KeyMade) -> KeyMadeAnswer:
    key = {each.name: getattr(made.key, each.name) for each in fields(KeyView)}
    return KeyMadeAnswer(**key, secret=made.secret, note=made.note)
