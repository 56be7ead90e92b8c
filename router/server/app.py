"""Makes the aiohttp application from the routes and from what every request gets."""

from __future__ import annotations

import asyncio

from aiohttp import web

from lmx.router.http.access import key_name
from lmx.router.http.allowed_hosts import HostCheck
from lmx.router.http.bodies.json_body import BODY_ROOM, LARGE_BODIES
from lmx.router.http.bodies.room import MOST_BYTES, BodyRoom
from lmx.router.http.cors import Cors
from lmx.router.http.endpoint import ENDPOINTS, Access, Endpoint
from lmx.router.schema.openapi.document import API_DOCUMENT, ApiDocument
from lmx.router.server.middleware import RequestServer, add_headers
from lmx.router.server.routes import ROUTES
from lmx.router.server.spellings import other_spellings
from lmx.router.services import SERVICES, Services


def make_app(services: Services) -> web.Application:
    """Return the application. The sizes of bodies are limited where they are read, and not here."""
    spec = services.spec
    cors = Cors(spec.cors_origins, {endpoint.method for endpoint in ROUTES})
    server = RequestServer(
        spec,
        HostCheck(spec),
        cors,
        services.traffic,
        services.limiter,
        services.counts,
        services.metrics,
        services.farewell,
        {key_name(one.key): one.priority for one in spec.api_keys if one.priority is not None},
    )
    app = web.Application(middlewares=[server.middleware])
    app[SERVICES] = services
    app[ENDPOINTS] = {}
    app[LARGE_BODIES] = asyncio.Lock()
    app[BODY_ROOM] = BodyRoom(max(MOST_BYTES, 2 * spec.body_limit_bytes))
    app[API_DOCUMENT] = ApiDocument(ROUTES, spec.version)
    app.on_response_prepare.append(add_headers)
    # This comes last, so that it sees every header.
    app.on_response_prepare.append(cors.on_prepare)
    for endpoint in ROUTES:
        _add(app, endpoint)
    return app


def _add(app: web.Application, endpoint: Endpoint) -> None:
    known = app[ENDPOINTS].setdefault(endpoint.handler, endpoint)
    assert known.access is endpoint.access, f"{endpoint.path} and {known.path} differ in access"
    # A proxy that keeps strangers from the operators' paths need not know of other spellings.
    spelled = () if endpoint.access is Access.ADMIN else other_spellings(endpoint.path)
    for path in (endpoint.path, *spelled):
        if endpoint.method == "GET":
            # HEAD is added too, except for a stream, whose length is only known at its end.
            app.router.add_get(path, endpoint.handler, allow_head=not endpoint.streams)
        else:
            app.router.add_route(endpoint.method, path, endpoint.handler)
