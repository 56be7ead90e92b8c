"""Makes the aiohttp application from the routes and from what every request gets, and sets under
which other paths clients find them.

A base URL with a slash at its end gives a path with two slashes, some programs put a slash at the
end, clients of llama.cpp and mlx_lm.server leave out ``/v1``, and those of LM Studio have
``/api/v0`` in its place. Only the path as the table of routes has it is described in OpenAPI, and
counted in the metrics.
"""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from aiohttp import HttpVersion11, hdrs, web

from lmx.protocol.web_origins import is_loopback
from lmx.router.byte_budget import ByteBudget
from lmx.router.console.markdown import MARKDOWN, end_markdown
from lmx.router.console.markdown_process import MarkdownProcess
from lmx.router.http.allowed_hosts import HostCheck
from lmx.router.http.bodies.capture import CAPTURES, Captures
from lmx.router.http.bodies.json_body import BODY_BUDGET, LARGE_BODIES
from lmx.router.http.bodies.limits import MOST_BYTES
from lmx.router.http.cors import Cors
from lmx.router.http.endpoint import ENDPOINTS, Endpoint
from lmx.router.http.in_process import SERVE
from lmx.router.inference.responses.creation import MOST_STORED_READS, STORED_READS
from lmx.router.inference.responses.websocket import SOCKETS
from lmx.router.media.fair_semaphore import FairSemaphore
from lmx.router.operators.live.feed import LiveFeed
from lmx.router.operators.live.stream import LIVE, live_topics
from lmx.router.operators.pairing import PAIRING, PairingPace
from lmx.router.operators.rank_probe import PROBE
from lmx.router.schema.openapi.document import API_DOCUMENT, ApiDocument
from lmx.router.server.middleware import REQUEST_SERVER, RequestServer, add_headers
from lmx.router.server.routes import ROUTES
from lmx.router.services import SERVICES, Services
from lmx.router.usage.budgets import DayBudgets

if TYPE_CHECKING:
    from lmx.router.tracing.tracer import Tracer


def make_app(services: Services, tracer: "Tracer | None" = None) -> web.Application:
    """Return the application. The sizes of bodies are limited where they are read, and not here."""
    spec = services.spec
    cors = Cors(spec.cors_origins, {endpoint.method for endpoint in ROUTES})
    hosts, budgets = HostCheck(spec), DayBudgets(services.usage)
    server = RequestServer(services, hosts, cors, budgets, is_loopback(spec.host), tracer)
    app = web.Application(middlewares=[server.middleware])
    app[SERVICES] = services
    app[REQUEST_SERVER] = server
    app[SERVE] = server.serve_in_process
    app[SOCKETS] = Counter()
    app[ENDPOINTS] = {}
    app[LARGE_BODIES] = asyncio.Lock()
    app[BODY_BUDGET] = ByteBudget(
        max(MOST_BYTES, 2 * spec.body_limit_bytes), "bodies of requests that are being sent"
    )
    app[CAPTURES] = Captures(spec.capture_requests)
    app[LIVE] = LiveFeed(lambda: live_topics(services))
    app[MARKDOWN] = MarkdownProcess()
    app[PAIRING] = PairingPace()
    app[STORED_READS] = FairSemaphore(MOST_STORED_READS)
    app[PROBE] = asyncio.Semaphore()
    app.on_cleanup.append(end_markdown)
    app[API_DOCUMENT] = ApiDocument(ROUTES, spec.version)
    app.on_response_prepare.append(add_headers)
    # This comes last, so that it sees every header.
    app.on_response_prepare.append(cors.on_prepare)
    for endpoint in ROUTES:
        _add(app, endpoint)
    return app


def _add(app: web.Application, endpoint: Endpoint) -> None:
    # HEAD is added too, except for a stream, whose length is only known at its end.
    has_head = endpoint.method == "GET" and not endpoint.streams
    methods = ("HEAD", "GET") if has_head else (endpoint.method,)
    spelled = () if endpoint.access.for_operators else path_aliases(endpoint.path)
    for path in (endpoint.path, *spelled):
        for method in methods:
            route = app.router.add_route(method, path, endpoint.handler, expect_handler=_expect)
            app[ENDPOINTS][route] = endpoint


async def _expect(request: web.Request) -> None:
    """Let a client send the body that it holds back, and ignore whatever else it expects: aiohttp's
    own way refuses that in plain text, before any middleware."""
    if request.headers[hdrs.EXPECT].lower() == "100-continue" and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # It is no part of the answer.
        request.writer.output_size = 0


_ONE_SPELLING: Final = ("/admin/", "/pair")
"""The beginnings of paths for operators and other machines: a proxy that keeps strangers from them
need not know of other spellings."""

_VERSION: Final = "/v1"
_WITHOUT_VERSION: Final = frozenset(
    {"/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses"}
)
"""What is served without ``/v1`` too."""

_LM_STUDIO: Final = "/api/v0"
_OF_LM_STUDIO: Final = frozenset({"/chat/completions", "/completions", "/embeddings"})
"""What is served below ``/api/v0`` too. LM Studio's list of models, also there, is another one."""


def path_aliases(path: str) -> tuple[str, ...]:
    """Return the further paths that mean the same as ``path``. A path with variables has none: the
    last one could have a slash of its own; and those of the page have none: its links are
    relative."""
    if "{" in path or path in ("/", "/ui") or path.startswith(_ONE_SPELLING):
        return ()
    spelled = [path, f"/{path}"]
    if path.startswith(f"{_VERSION}/"):
        rest = path.removeprefix(_VERSION)
        spelled.append(f"{_VERSION}/{rest}")
        if rest in _WITHOUT_VERSION:
            spelled += [rest, f"/{rest}"]
        if rest in _OF_LM_STUDIO:
            spelled.append(f"{_LM_STUDIO}{rest}")
    return (*spelled[1:], *(f"{one}/" for one in spelled))
