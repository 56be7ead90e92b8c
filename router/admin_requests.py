"""GET /admin/requests and POST /admin/requests/{id}/cancel: what is under way, for operators."""

from __future__ import annotations

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.json_answer import json_value
from lmx.router.live_requests import LiveRequest, live_object
from lmx.router.services import SERVICES


async def list_requests(request: web.Request) -> web.Response:
    """List every request that this router has under way, of all keys, the oldest first."""
    return _listed(request, request.app[SERVICES].live.all)


async def cancel_request(request: web.Request) -> web.Response:
    """Cancel a request by its id, which is its job's too, or all that have a request id."""
    name = request.match_info["id"]
    found = request.app[SERVICES].live.named(name)
    if not found:
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"No request {name[:100]!r} is under way. GET /admin/requests lists those that are.",
            param="id",
        )
    for live in found:
        live.cancel()
    return _listed(request, found)


def _listed(request: web.Request, found: tuple[LiveRequest, ...]) -> web.Response:
    requests = request.app[SERVICES].live
    answer = {
        "object": "list",
        "data": [live_object(live, *requests.shown(live)) for live in found],
    }
    return json_value(answer)
