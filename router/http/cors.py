"""Decides what web pages of other origins may do.

They may do nothing, unless ``server.cors_origins`` names their origin.

Requests without an Origin header come from no such page, but for links and images: these may load
no model.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.web_origins import Authority, parse_origin, parse_origin_pattern
from lmx.router.http.responses import add_vary

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing: a page may send them, and can't read the answer."""

_MAX_AGE_S: Final = 600
"""How long a browser remembers a preflight's answer and so does not see a changed configuration."""

_MAX_HEADERS: Final = 64
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")

_NOT_EXPOSED: Final = frozenset(
    {
        # Headers that every page may read anyway, and those of the connection or of this check.
        "cache-control", "content-language", "content-length", "content-type", "expires",
        "last-modified", "pragma", "connection", "date", "server", "transfer-encoding", "vary",
    }
)  # fmt: skip

_SHOWN: Final = 100

_OWN_SITES: Final = frozenset({"none", "same-origin"})


ORIGIN: Final = web.RequestKey("origin", str)
"""The key under which a request of an allowed page of another origin carries that origin, exactly
as it was sent."""


class Cors:
    """Judges the Origin of requests and sends browsers the result. ``methods`` are the methods of
    all routes."""

    def __init__(self, origins: Iterable[str], methods: Iterable[str]) -> None:
        self._patterns = tuple(parse_origin_pattern(text) for text in origins)
        self._methods = ", ".join(sorted({*methods, "HEAD"}))

    def check(
        self, request: web.Request, host: Authority | None, *, asks_worker: bool = False
    ) -> None:
        """Note in the request that an allowed page of another origin sent it. ``asks_worker`` says
        whether it is answered by a model, which may be loaded for it.

        Raises :class:`RequestError` (ORIGIN_NOT_ALLOWED) if a page that is not allowed would change
        something, or asks whether it may.
        """
        given = request.headers.getall("Origin", ())
        if not given and not (asks_worker and is_of_browser(request)):
            return
        text = ", ".join(given)
        origin = parse_origin(text)
        if origin is not None and host is not None and origin.is_at(host):
            return
        # Text that is not ASCII comes from no browser, and it could not be repeated in a header.
        known = len(given) == 1 and text.isascii()
        if known and any(pattern.allows(origin) for pattern in self._patterns):
            request[ORIGIN] = text
        elif (
            asks_worker
            or request.method not in _READING
            or is_preflight(request)
            or is_upgrade(request)
        ):
            if not given:
                words = "Web pages of other sites may load no model by a link or an image."
                raise RequestError(ErrorCode.ORIGIN_NOT_ALLOWED, words)
            raise RequestError(
                ErrorCode.ORIGIN_NOT_ALLOWED,
                f"Web pages and apps of the origin {text[:_SHOWN]!r} may not use lmx: add it to "
                "server.cors_origins if it is meant.",
            )

    def preflight(self, request: web.Request) -> web.Response:
        """Return the answer to an allowed page that asks what it may send. :meth:`on_prepare` adds
        the headers that let the page read the answer."""
        headers = {
            "Access-Control-Allow-Methods": self._methods,
            "Access-Control-Max-Age": str(_MAX_AGE_S),
        }
        asked = request.headers.get("Access-Control-Request-Headers", "")
        if names := _header_names(asked):
            headers["Access-Control-Allow-Headers"] = ", ".join(names)
        if request.headers.get("Access-Control-Request-Private-Network") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"
        return web.Response(status=204, headers=headers)

    async def on_prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let the browser show the response to the page, all of its headers included."""
        if not self._patterns:
            return
        add_vary(response, "Origin")
        if is_preflight(request):
            add_vary(response, "Access-Control-Request-Method", "Access-Control-Request-Headers")
        if (origin := request.get(ORIGIN)) is None:
            return
        exposed = _exposed(response.headers)
        response.headers["Access-Control-Allow-Origin"] = origin
        if exposed:
            response.headers["Access-Control-Expose-Headers"] = ", ".join(exposed)


def is_of_browser(request: web.Request) -> bool:
    """Return whether a web page, of whatever origin, may have made a browser send the request.

    A browser says the origin of all that it sends to another one by POST or DELETE. By
    ``Sec-Fetch-Site`` it says more, but only to addresses that it trusts: loopback and HTTPS.
    ``none`` is a person's own doing, and ``same-origin`` a page of lmx.
    """
    if "Origin" in request.headers:
        return True
    sites = request.headers.getall("Sec-Fetch-Site", ())
    return any(site not in _OWN_SITES for site in sites)


def is_upgrade(request: web.Request) -> bool:
    """Return whether a request opens a WebSocket: a page may read what comes over it, and a browser
    asks nobody before."""
    return "websocket" in request.headers.get("Upgrade", "").lower()


def is_preflight(request: web.Request) -> bool:
    """Return whether a browser asks here what a page may send."""
    return (
        request.method == "OPTIONS"
        and "Origin" in request.headers
        and "Access-Control-Request-Method" in request.headers
    )


def _header_names(asked: str) -> list[str]:
    names = [name.strip().lower() for name in asked.split(",")[:_MAX_HEADERS]]
    return [name for name in names if _HEADER.fullmatch(name)]


def _exposed(headers: Mapping[str, str]) -> list[str]:
    return [
        name
        for name in headers
        if name.lower() not in _NOT_EXPOSED and not name.lower().startswith("access-control-")
    ]
