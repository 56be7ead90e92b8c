"""POST /admin/config/reload: has the configuration read again."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from lmx.protocol.messages.control import ReloadConfig, Reloaded
from lmx.router.http.responses import json_answer
from lmx.router.schema.answers.admin import ReloadAnswer
from lmx.router.services import SERVICES
from lmx.router.supervisor.queries import COMMAND_DEADLINE_S, ask

_OPTA_NAMES: Final = {"logs": "logging"}
"""Sections that Opta-LMX has under another name."""


async def reload_config(request: web.Request) -> web.Response:
    """Say which sections changed, and what follows.

    A configuration that is not valid changes nothing, and is a 400 with all that is wrong.
    Where the reload replaces this very router the answer still goes out: it is one of the
    requests that the router ends before it goes.
    """
    supervisor = request.app[SERVICES].supervisor
    reloaded = await ask(supervisor, ReloadConfig(), Reloaded, COMMAND_DEADLINE_S)
    return json_answer(
        ReloadAnswer(
            success=True,
            updated=[_OPTA_NAMES.get(section, section) for section in reloaded.sections],
            changes=list(reloaded.changes),
        )
    )
