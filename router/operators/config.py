"""POST /admin/config/reload: makes lmx read its configuration again."""

from typing import Final, Literal

from aiohttp import web

from lmx.protocol.messages.control import ReloadConfig, Reloaded
from lmx.router.http.responses import Answer, json_value
from lmx.router.services import SERVICES
from lmx.router.supervisor.queries import ask

_DEADLINE_S: Final = 120.0
"""The answer comes when another router serves, which may have to start first."""

_OPTA_NAMES: Final = {"logs": "logging"}
"""Sections that Opta-LMX has under another name."""


class ReloadAnswer(Answer):
    """The answer of POST /admin/config/reload."""

    success: Literal[True]
    updated: list[str]
    """The sections that differ."""
    changes: list[str]
    """What follows from the changes, in sentences for people."""


async def reload_config(request: web.Request) -> web.Response:
    """Return which sections changed, and what follows from it.

    A configuration that is not valid changes nothing; the answer is a 400 with all its faults. If
    the reload replaces this very router, the answer is still sent: the router ends only after its
    requests.
    """
    supervisor = request.app[SERVICES].supervisor
    reloaded = await ask(supervisor, ReloadConfig(), Reloaded, _DEADLINE_S)
    return json_value(
        ReloadAnswer(
            success=True,
            updated=[_OPTA_NAMES.get(section, section) for section in reloaded.sections],
            changes=list(reloaded.changes),
        )
    )
