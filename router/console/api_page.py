"""GET /docs and its files: a page for reading and trying the API without any network.

The page is Swagger UI with this server's own description of its API.
"""

from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aiohttp import web

from lmx.router.console.files import page_headers
from lmx.router.services import SERVICES

START_SCRIPT: Final = """\
"use strict";
window.addEventListener("load", () => {
  window.ui = SwaggerUIBundle({
    url: new URL("openapi.json", document.baseURI).href,
    dom_id: "#api",
    deepLinking: true,
    filter: true,
    displayRequestDuration: true,
    defaultModelsExpandDepth: 0,
    docExpansion: "list",
    // The keys stay in this tab; a check by the outside validator would send the document out.
    persistAuthorization: false,
    validatorUrl: null,
  });
});
"""

PAGE_STYLE: Final = """\
body { margin: 0; background: #fafafa; font-family: sans-serif; }
header { padding: 12px 24px; background: #1b1b1b; color: #ffffff; }
header h1 { margin: 0; font-size: 20px; }
header small { font-weight: normal; opacity: 0.75; }
noscript { display: block; padding: 24px; }
"""


def page(version: str) -> str:
    """Return the page. Its links are relative, so that it works below a proxy's path."""
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>lmx {escape(version)}: API</title>
  <link rel="icon" href="data:,">
  <link rel="stylesheet" href="docs/swagger-ui.css">
  <link rel="stylesheet" href="docs/page.css">
  <script src="docs/swagger-ui-bundle.js" defer></script>
  <script src="docs/start.js" defer></script>
</head>
<body>
  <header><h1>lmx <small>{escape(version)}</small></h1></header>
  <noscript>This page needs JavaScript; <a href="openapi.json">the description</a> does not.\
</noscript>
  <div id="api"></div>
</body>
</html>
"""


_ASSETS_PACKAGE: Final = "fastapi_offline"
_STYLE: Final = "text/css"
_SCRIPT: Final = "text/javascript"
_PAGE_HEADERS: Final = page_headers(
    # Swagger UI's pictures are in its style sheet.
    "img-src 'self' data:",
    "script-src 'self'",
    # It sets some sizes in the style of single elements.
    "style-src 'self' 'unsafe-inline'",
)
"""The page loads and runs only this server's own files, and no inline script."""
_FILE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "public, max-age=3600",
}


async def docs_page(request: web.Request) -> web.Response:
    """Return the page. Its links are relative: with a slash behind its path they would miss."""
    if request.path.endswith("/"):
        return web.Response(status=308, headers={"Location": "../docs"})
    return web.Response(
        text=page(request.app[SERVICES].spec.version),
        content_type="text/html",
        headers=_PAGE_HEADERS,
    )


async def docs_start(request: web.Request) -> web.Response:
    """Return the script that starts Swagger UI. It is a file because the page may hold no
    script."""
    return web.Response(text=START_SCRIPT, content_type=_SCRIPT, headers=_FILE_HEADERS)


async def docs_page_style(request: web.Request) -> web.Response:
    """Return the style of the page around Swagger UI."""
    return web.Response(text=PAGE_STYLE, content_type=_STYLE, headers=_FILE_HEADERS)


async def docs_script(request: web.Request) -> web.FileResponse:
    """Return Swagger UI."""
    return _asset("swagger-ui-bundle.js", _SCRIPT)


async def docs_style(request: web.Request) -> web.FileResponse:
    """Return Swagger UI's style sheet."""
    return _asset("swagger-ui.css", _STYLE)


def _asset(name: str, content_type: str) -> web.FileResponse:
    headers = {**_FILE_HEADERS, "Content-Type": f"{content_type}; charset=utf-8"}
    return web.FileResponse(_assets_folder() / name, headers=headers)


@cache
def _assets_folder() -> Path:
    # The package is located and not imported: it would bring a second web framework along.
    spec = find_spec(_ASSETS_PACKAGE)
    assert spec is not None and spec.origin is not None, f"{_ASSETS_PACKAGE} is not installed"
    return Path(spec.origin).parent / "static"
