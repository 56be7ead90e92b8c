"""GET /admin/usage and /admin/usage/figures: what was used, and the history of the figures."""

from aiohttp import web

from lmx.router.http.responses import json_value
from lmx.router.schema.requests.operators import FiguresQuery, UsageQuery
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES


async def usage(request: web.Request) -> web.Response:
    """Return tokens, requests and errors by day or hour, model and key."""
    query = validated(UsageQuery, dict(request.query))
    return json_value(await request.app[SERVICES].usage.usage(query.days, query.by))


async def figures(request: web.Request) -> web.Response:
    """Return tokens a second, times, queue and memory over the last hours."""
    query = validated(FiguresQuery, dict(request.query))
    return json_value(await request.app[SERVICES].usage.figures(query.hours, query.model))
