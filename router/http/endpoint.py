"""What a route is: its path and handler, who may use it, and what it takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode
from lmx.router.http.api_family import OPENAI, ApiFamily


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
    """One method on one path, for the application and for its description in OpenAPI."""

    method: str
    path: str
    """The path in aiohttp's form: ``/v1/models/{id:.+}``."""
    handler: Handler
    access: Access
    tag: str
    summary: str
    request: type[BaseModel] | None = None
    """The model that the body is validated by."""
    query: type[BaseModel] | None = None
    """The model that the query is validated by."""
    answer: Any = None
    """The shape of the body of a 200: a model, or a type that pydantic can describe. None: the
    body is not JSON but of the kind ``media``."""
    media: str = "text/plain"
    streams: bool = False
    """Whether the answer is, or may be, a stream of server-sent events."""
    event: Any = None
    """The shape of the data of such a stream's events."""
    status: int = 200
    """The status of an answer that is well."""
    degraded_status: int | None = None
    """The status with which the same answer comes when things are not well."""
    errors: tuple[ErrorCode, ...] = ()
    """What it can refuse, beside what every route of its access and request can."""
    quiet: bool = False
    """Whether it is polled all day, or followed for as long: it is logged at debug level then,
    and not counted."""
    family: ApiFamily = OPENAI
    """The API family whose errors and pings it has."""

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


def family_of(request: web.Request) -> ApiFamily:
    """Return the API family of the route that a request is for; OpenAI's where there is none."""
    endpoint = endpoint_of(request)
    return OPENAI if endpoint is None else endpoint.family
