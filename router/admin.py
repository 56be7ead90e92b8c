"""Routes for operators. Each asks the supervisor; none does anything by itself."""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import web

from lmx.protocol.control import ReloadConfig, Reloaded
from lmx.protocol.errors import ProtocolError
from lmx.router.services import SERVICES

_RELOAD_DEADLINE_S: Final = 10.0


async def reload_config(request: web.Request) -> web.Response:
    """POST /admin/config/reload: have the configuration read again.

    A configuration that is not valid changes nothing, and is a 400 with all that is wrong.
    Where the reload replaces this very router the answer still goes out: it is one of the
    requests that the router ends before it goes.
    """
    reply = await request.app[SERVICES].supervisor.ask(ReloadConfig(), _RELOAD_DEADLINE_S)
    if not isinstance(reply, Reloaded):
        raise ProtocolError(f"{type(reply).__name__} is no reply to ReloadConfig")
    answer = {"success": True, "updated": reply.sections, "changes": reply.changes}
    return web.Response(body=orjson.dumps(answer), content_type="application/json")
