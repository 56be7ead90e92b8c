"""GET /: what this server is and how it is, as a page for browsers and as JSON for programs.

Beside it are the small routes that programs ask before anything else. The page is made here, whole:
it needs no script and no other server.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from aiohttp import web

from lmx.router.http.responses import json_answer
from lmx.router.operators.health import current_health, engine_summaries
from lmx.router.schema.answers.engines import EngineSummary
from lmx.router.schema.answers.front import Front, Version
from lmx.router.services import SERVICES

_API: Final = "/v1"
_DOCS: Final = "/docs"
_LINKS: Final = (
    ("docs", "All routes, and a page to try them on"),
    ("openapi.json", "The same for programs"),
    ("v1/models", "The models as clients see them"),
    ("health", "The health as JSON"),
    ("metrics", "Figures for Prometheus"),
)

POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "img-src 'self'; style-src 'self'"
)
"""What the page may load: this server's style sheet and picture."""

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
}
_FILE_HEADERS: Final = {
    "Cache-Control": "public, max-age=3600",
    "X-Content-Type-Options": "nosniff",
}

ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<rect width="32" height="32" rx="7" fill="#1b1b1f"/>'
    '<path d="M7 8v16h6M16 24V14l4 5 4-5v10" fill="none" stroke="#7dd3a8" stroke-width="3" '
    'stroke-linecap="round" stroke-linejoin="round"/></svg>'
)

STYLE: Final = """\
:root { color-scheme: light dark; --line: #8884; --good: #2f9e63; --bad: #d1493f; }
body { max-width: 46rem; margin: 3rem auto; padding: 0 1.25rem; line-height: 1.5;
  font-family: system-ui, sans-serif; }
h1 { display: flex; align-items: center; gap: .6rem; margin-bottom: .2rem; }
h1 img { width: 2rem; height: 2rem; }
h1 small { font-size: 1rem; font-weight: normal; opacity: .6; }
h2 { margin-top: 2rem; font-size: 1.1rem; }
table { width: 100%; border-collapse: collapse; }
td { padding: .4rem .2rem; border-bottom: 1px solid var(--line); }
td:last-child { text-align: right; }
ul { padding-left: 1.1rem; }
code { font-size: .95em; }
.healthy, .loaded { color: var(--good); }
.unhealthy, .degraded { color: var(--bad); }
"""


async def front(request: web.Request) -> web.Response:
    """Return the page to a browser, and the same as JSON to every other client. Where API keys are
    configured, neither names the models: no key is needed here."""
    services = request.app[SERVICES]
    status, reason = current_health(services)
    open_to_all = not services.spec.api_keys
    engines = engine_summaries(services.supervisor.latest) if open_to_all else []
    answer = Front(
        name="lmx",
        version=services.spec.version,
        status=status,
        reason=reason,
        models=[engine.engine_id for engine in engines],
        api=_API,
        docs=_DOCS,
    )
    if "text/html" not in request.headers.get("Accept", ""):
        response = json_answer(answer)
        response.headers["Vary"] = "Accept"
        return response
    return web.Response(text=page(answer, engines), content_type="text/html", headers=_HEADERS)


def page(answer: Front, engines: Sequence[EngineSummary]) -> str:
    """Return the page. Its links are relative, so that it works below a proxy's path."""
    reason = f": {escape(answer.reason)}" if answer.reason else ""
    rows = "\n".join(
        f'<tr><td><code>{escape(engine.engine_id)}</code></td><td class="{engine.status}">'
        f"{escape(engine.state)}</td></tr>"
        for engine in engines
    )
    models = f"<table>\n{rows}\n</table>" if rows else "<p>None is shown here.</p>"
    links = "\n".join(
        f'<li><a href="{path}">/{path}</a>: {escape(meaning)}</li>' for path, meaning in _LINKS
    )
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>lmx</title>
  <link rel="icon" href="favicon.ico" type="image/svg+xml">
  <link rel="stylesheet" href="page.css">
</head>
<body>
<h1><img src="favicon.ico" alt=""> lmx <small>{escape(answer.version)}</small></h1>
<p class="{answer.status}">{answer.status}{reason}</p>
<p>Set the base URL of an OpenAI client to this address followed by <code>{_API}</code>.</p>
<h2>Models</h2>
{models}
<h2>More</h2>
<ul>
{links}
</ul>
</body>
</html>
"""


async def page_style(request: web.Request) -> web.Response:
    """Return the page's style sheet."""
    return web.Response(text=STYLE, content_type="text/css", headers=_FILE_HEADERS)


async def icon(request: web.Request) -> web.Response:
    """Return the picture of the page and of the browser's tab."""
    return web.Response(text=ICON, content_type="image/svg+xml", headers=_FILE_HEADERS)


async def version(request: web.Request) -> web.Response:
    """Return lmx's version."""
    return json_answer(Version(version=request.app[SERVICES].spec.version))


async def ping(request: web.Request) -> web.Response:
    """Return 200: the router lives. It says nothing of the models."""
    return web.Response(text="pong\n")
