"""GET /: what this server is and how it is, as a page for browsers and as JSON for programs.

The page is the chat, whose files :mod:`lmx.router.console.files` serves. Without scripts it shows
the state and the models.
"""

from collections.abc import Sequence
from html import escape
from typing import Final, Literal

from aiohttp import web

from lmx.router.console.files import page_headers, text_of
from lmx.router.http.responses import json_value
from lmx.router.operators.health import EngineSummary, current_health, engine_summaries
from lmx.router.operators.version import Version
from lmx.router.services import SERVICES, directory_without_key

_API: Final = "/v1"
_DOCS: Final = "/docs"

_HEADERS: Final = {
    **page_headers(
        # What people attach is shown from their own memory.
        "img-src 'self' blob: data:",
        "media-src blob: data:",
        "script-src 'self'",
        "style-src 'self'",
        # No script can turn a text into elements.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ),
    "Vary": "Accept",
}
"""The page loads and runs only this server's own files, and nothing inline."""


class Front(Version):
    """The answer of GET / for programs. Browsers get a page."""

    name: Literal["lmx"]
    status: Literal["healthy", "degraded", "unhealthy"]
    """The same as in GET /health."""
    reason: str | None
    """Why it is not healthy. Null if it is."""
    models: list[str]
    """The names of the models. Empty where a key is needed to list them."""
    api: str
    """Where OpenAI's API is."""
    docs: str
    """Where the API is described."""


async def front(request: web.Request) -> web.Response:
    """Return the page to a browser, and the same as JSON to every other client. Where API keys are
    configured, both name the models only to who sends a key: none is needed here."""
    services = request.app[SERVICES]
    seen, names = directory_without_key(request)
    status, reason = current_health(services, names=names and seen is services.supervisor.latest)
    engines = engine_summaries(seen) if names else []
    answer = Front(
        name="lmx",
        version=services.spec.version,
        status=status,
        reason=reason,
        models=[engine["engine_id"] for engine in engines],
        api=_API,
        docs=_DOCS,
    )
    if "text/html" not in request.headers.get("Accept", ""):
        response = json_value(answer)
        response.headers["Vary"] = "Accept"
        return response
    return web.Response(text=page(answer, engines), content_type="text/html", headers=_HEADERS)


def page(answer: Front, engines: Sequence[EngineSummary]) -> str:
    """Return the page. Its links are relative, so that it works below a proxy's path."""
    reason = f": {escape(answer['reason'])}" if answer["reason"] else ""
    rows = "\n".join(
        f"<li><code>{escape(engine['engine_id'])}</code> {escape(engine['state'])}</li>"
        for engine in engines
    )
    values = {
        "version": escape(answer["version"]),
        "status": f"{answer['status']}{reason}",
        "models": rows,
    }
    text = text_of("index.html")
    for name, value in values.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text
