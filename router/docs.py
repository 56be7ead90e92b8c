"""GET /docs and its files: a page to read and to try the API with, without any network."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aiohttp import web

from lmx.router.docs_page import PAGE_STYLE, POLICY, START_SCRIPT, page
from lmx.router.services import SERVICES

_ASSETS_PACKAGE: Final = "fastapi_offline"
_STYLE: Final = "text/css"
_SCRIPT: Final = "text/javascript"
_NO_GUESSING: Final = {"X-Content-Type-Options": "nosniff"}
_PAGE_HEADERS: Final = {
    **_NO_GUESSING,
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
}
_FILE_HEADERS: Final = {**_NO_GUESSING, "Cache-Control": "public, max-age=3600"}


async def docs_page(request: web.Request) -> web.Response:
    """Return the page."""
    return web.Response(
        text=page(request.app[SERVICES].spec.version),
        content_type="text/html",
        headers=_PAGE_HEADERS,
    )


async def docs_start(request: web.Request) -> web.Response:
    """Return the script that starts Swagger UI: none may stand in the page."""
    return web.Response(text=START_SCRIPT, content_type=_SCRIPT, headers=_FILE_HEADERS)


async def docs_page_style(request: web.Request) -> web.Response:
    """Return what the page looks like around Swagger UI."""
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
    # The package is looked for and not imported: it would bring a second web framework along.
    spec = find_spec(_ASSETS_PACKAGE)
    assert spec is not None and spec.origin is not None, f"{_ASSETS_PACKAGE} is not installed"
    return Path(spec.origin).parent / "static"
