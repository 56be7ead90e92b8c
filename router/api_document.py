"""GET /openapi.json: the description of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import orjson
from aiohttp import web

from lmx.router.endpoint import Endpoint
from lmx.router.openapi import describe_api


class ApiDocument:
    """The description as JSON. It is made when it is first asked for, and kept: most routers are
    never asked."""

    def __init__(self, endpoints: Sequence[Endpoint], version: str) -> None:
        self._endpoints = endpoints
        self._version = version
        self._text: bytes | None = None

    async def text(self) -> bytes:
        """Return the document. It is made in a thread."""
        if self._text is None:
            # Two that ask first at a time make it twice, and it is the same.
            self._text = await asyncio.to_thread(self._make)
        return self._text

    def _make(self) -> bytes:
        return orjson.dumps(describe_api(self._endpoints, self._version))


API_DOCUMENT: Final = web.AppKey("api_document", ApiDocument)


async def openapi_document(request: web.Request) -> web.Response:
    """Return the document; it changes with lmx's version alone."""
    text = await request.app[API_DOCUMENT].text()
    return web.Response(
        body=text, content_type="application/json", headers={"Cache-Control": "no-cache"}
    )
