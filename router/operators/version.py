"""GET /version and /ping: the small routes that programs ask before anything else."""

from aiohttp import web

from lmx.router.http.responses import Answer, json_value
from lmx.router.services import SERVICES


class Version(Answer):
    """The answer of GET /version, by vLLM's and Ollama's name."""

    version: str


async def version(request: web.Request) -> web.Response:
    """Return lmx's version."""
    return json_value(Version(version=request.app[SERVICES].spec.version))


async def ping(request: web.Request) -> web.Response:
    """Return 200: the router is alive. It says nothing about the models."""
    return web.Response(text="pong\n")
