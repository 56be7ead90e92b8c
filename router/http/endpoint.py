"""What a route is: its path and handler, who may use it, and what it takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode


class Access(StrEnum):
    """Who may use a route. INFERENCE: who has one of the API keys, everybody where there are
    none. ADMIN: who has the admin key. METRICS: who has that or the metrics key. LOCAL:
    everybody where only this machine can ask, elsewhere as METRICS."""

    OPEN = "open"
    INFERENCE = "inference"
    ADMIN = "admin"
    METRICS = "metrics"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path, for the application and for its description in OpenAPI.

    ``path`` is aiohttp's (``/v1/models/{id:.+}``). ``request`` and ``query`` are the models that
    the body and the query are validated by. ``answer`` is the shape of a 200's body: a model, or a
    type that pydantic can describe; None: not JSON, but of the kind ``media``. ``streams``: the
    answer is, or may be, a stream of server-sent events, whose data are of the shape ``event``.
    ``status``: of an answer that is well. ``degraded_status``: with which the same answer comes
    when things are not. ``errors``: what it can refuse beside what every route of its access and
    request can. ``quiet``: it is polled all day, or followed for as long, so it is logged at debug
    level and not counted."""

    method: str
    path: str
    handler: Handler
    access: Access
    tag: str
    summary: str
    request: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answer: Any = None
    media: str = "text/plain"
    streams: bool = False
    event: Any = None
    status: int = 200
    degraded_status: int | None = None
    errors: tuple[ErrorCode, ...] = ()
    quiet: bool = False

    @property
    def is_inference(self) -> bool:
        """Whether a model works for it: what is limited and counted as a request."""
        return self.access is Access.INFERENCE and self.method == "POST"


ENDPOINTS: Final = web.AppKey("endpoints", dict[Handler, Endpoint])
"""The application's endpoints by handler. Where one handler serves several paths, all of them
have the same access."""


def endpoint_of(request: web.Request) -> Endpoint | None:
    """Return the endpoint that a request is for; None where there is none (404, 405)."""
    return request.app[ENDPOINTS].get(request.match_info.handler)
