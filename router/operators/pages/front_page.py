"""GET /: what this server is and how it is, as a page for browsers and as JSON for programs.

The page also has a chat with a model. Its files are next to this one, and it needs no other server
and no build step. Without scripts it shows the state and the models. The module also has the small
routes that programs ask before anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Final, Literal

from aiohttp import web

from lmx.router.http.access import knows_a_key
from lmx.router.http.responses import Answer, json_value
from lmx.router.operators.health import EngineSummary, current_health, engine_summaries
from lmx.router.services import SERVICES

_API: Final = "/v1"
_DOCS: Final = "/docs"
_LINKS: Final = (
    ("docs", "API reference, with a console"),
    ("openapi.json", "OpenAPI schema"),
    ("v1/models", "The models as clients see them"),
    ("health", "The health as JSON"),
    ("metrics", "Figures for Prometheus"),
)

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "base-uri 'none'",
        "connect-src 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "img-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
    )
)
"""What the page may load and run: only this server's own files, and nothing inline."""

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
}
_FILE_HEADERS: Final = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_FOLDER: Final = files(__package__)
_TEXTS: Final = {
    name: (_FOLDER / name).read_text("utf-8")
    for name in ("page.css", "attachments.js", "chat.js", "markdown.js")
}

ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<rect width="32" height="32" rx="7" fill="#1b1b1f"/>'
    '<path d="M7 8v16h6M16 24V14l4 5 4-5v10" fill="none" stroke="#7dd3a8" stroke-width="3" '
    'stroke-linecap="round" stroke-linejoin="round"/></svg>'
)


class Version(Answer):
    """The answer of GET /version, by vLLM's and Ollama's name."""

    version: str


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
    names = knows_a_key(request, services.spec)
    status, reason = current_health(services, names=names)
    engines = engine_summaries(services.supervisor.latest) if names else []
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
        f'<tr><td><code>{escape(engine["engine_id"])}</code></td><td class="{engine["state"]}">'
        f"{escape(engine['state'])}</td></tr>"
        for engine in engines
    )
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
  <script type="module" src="chat.js"></script>
</head>
<body>
<h1><img src="favicon.ico" alt=""> lmx <small>{escape(answer["version"])}</small></h1>
<p id="status" class="{answer["status"]}">{answer["status"]}{reason}</p>
<p id="keys" hidden><label>This server asks for an API key:
  <input id="key" type="password" autocomplete="off"></label></p>
<section id="chat" hidden>
  <div class="tools">
    <label>Model <select id="model"></select></label>
    <button id="new" type="button">New</button>
    <button id="curl" type="button">Copy as curl</button>
    <button id="python" type="button">Copy as Python</button>
  </div>
  <details><summary>Parameters</summary>
    <div class="fields">
      <label class="wide">System prompt <textarea id="system" rows="2"></textarea></label>
      <label>temperature <input id="temperature" type="number" min="0" max="2" step="0.1"></label>
      <label>top_p <input id="top_p" type="number" min="0" max="1" step="0.05"></label>
      <label>max_tokens <input id="max_tokens" type="number" min="1" step="1"></label>
    </div>
  </details>
  <pre id="code" hidden></pre>
  <div id="turns" aria-live="polite"></div>
  <p id="refused" class="note error" role="alert" hidden></p>
  <ul id="files" class="files"></ul>
  <form id="form">
    <button id="attach" type="button" title="Attach images, sounds or videos" hidden>Attach</button>
    <input id="picker" type="file" multiple hidden>
    <textarea id="say" rows="2" placeholder="Ask anything. Shift+Enter for a new line."
      aria-label="Your message" autofocus></textarea>
    <button id="send">Send</button>
    <button id="stop" type="button" hidden>Stop</button>
  </form>
</section>
<h2>Models</h2>
<table><tbody id="models">
{rows}
</tbody></table>
<h2>More</h2>
<p>The base URL for OpenAI's clients is this address followed by <code>{_API}</code>; for those of
Anthropic and Ollama it is this address.</p>
<ul class="links">
{links}
</ul>
</body>
</html>
"""


async def page_style(request: web.Request) -> web.Response:
    """Return the page's style sheet."""
    return web.Response(text=_TEXTS["page.css"], content_type="text/css", headers=_FILE_HEADERS)


async def page_chat(request: web.Request) -> web.Response:
    """Return the script of the chat."""
    return _script("chat.js")


async def page_attachments(request: web.Request) -> web.Response:
    """Return the script that sends files along."""
    return _script("attachments.js")


async def page_markdown(request: web.Request) -> web.Response:
    """Return the script that shows Markdown."""
    return _script("markdown.js")


async def icon(request: web.Request) -> web.Response:
    """Return the picture of the page and of the browser's tab."""
    return web.Response(text=ICON, content_type="image/svg+xml", headers=_FILE_HEADERS)


async def version(request: web.Request) -> web.Response:
    """Return lmx's version."""
    return json_value(Version(version=request.app[SERVICES].spec.version))


async def ping(request: web.Request) -> web.Response:
    """Return 200: the router is alive. It says nothing about the models."""
    return web.Response(text="pong\n")


def _script(name: str) -> web.Response:
    return web.Response(text=_TEXTS[name], content_type="text/javascript", headers=_FILE_HEADERS)
