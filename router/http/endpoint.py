"""Describes a route: its path and handler, who may use it, and what it takes and gives."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.keys import KeyFamily
from lmx.protocol.states import ModelKind
from lmx.router.http.api_family import ANTHROPIC, OPENAI, ApiFamily


class Access(StrEnum):
    """Who may use a route."""

    OPEN = "open"
    INFERENCE = "inference"
    """Whoever has a key for requests to models; everybody if there is no such key."""
    OPERATOR = "operator"
    """Whoever has a key with which operators look on, or the admin key."""
    ADMIN = "admin"
    """Whoever has the admin key, or another with its scope."""
    PEER = "peer"
    """Whoever has the key of another lmx, or the admin key."""
    METRICS = "metrics"
    """Whoever has a key for the metrics, or one of an operator."""
    LOCAL = "local"
    """Everybody if only this machine can send requests and those to models need no key; otherwise
    the same as METRICS."""

    @property
    def for_operators(self) -> bool:
        """Whether the route is one with which operators look on, or change something."""
        return self in (Access.OPERATOR, Access.ADMIN)


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
    form: type[BaseModel] | None = None
    """The model of the body where that is a form (``multipart/form-data``)."""
    query: type[BaseModel] | None = None
    """The model that the query is validated by."""
    answer: Any = None
    """The shape of the body of a 200: any type that pydantic can describe. If it is None,
    the body is not JSON but of the media type ``media``."""
    media: str = "text/plain"
    also: tuple[str, ...] = ()
    """Further media types, for clients that ask for them."""
    streams: bool = False
    """Whether the answer is, or may be, a stream of server-sent events."""
    event: Any = None
    """The shape of the data of that stream's events."""
    status: int = 200
    """The status of an answer when all is well."""
    degraded_status: int | None = None
    """The status with which the same answer comes when things are not well."""
    errors: tuple[ErrorCode, ...] = ()
    """The errors that it can return, besides those that every route with its access and request
    can."""
    quiet: bool = False
    """Whether clients poll it all day, or follow it for as long: it is then logged at debug level
    only and not counted."""
    shows_rereads: bool = False
    """Whether the answer has pieces of prompts where ``server.show_rereads`` is set: a key needs
    the scope of an admin then."""
    family: ApiFamily = OPENAI
    """The API family that writes its errors and pings."""
    asks_worker: bool = False
    """Whether a worker answers it though it has no body."""
    here_only: bool = False
    """Whether no other machine may answer it, because only this one can read the answer."""
    works: bool = True
    """Whether a model works for what it takes. Otherwise it only stores it."""
    models: ModelKind | None = None
    """The kind of the model that is meant where a request names none, and of every model that
    answers where the handler asks for one of this kind; None: any."""
    shared: bool = False
    """Whether clients of every API use it, so that a key for any of them opens it."""

    @property
    def key_family(self) -> KeyFamily | None:
        """The API that a key must be for to open it; None if any will do."""
        return None if self.shared else self.family.keys

    @property
    def is_inference(self) -> bool:
        """Whether a model works for it: such requests are limited and counted."""
        takes_work = self.request is not None or self.form is not None or self.asks_worker
        return self.access is Access.INFERENCE and takes_work and self.works and not self.quiet

    @property
    def is_ovms(self) -> bool:
        """Whether it has the rules of OpenVINO Model Server, which are other ones than OpenAI's."""
        return self.path.startswith("/v3/")

    @property
    def openai_path(self) -> str:
        """The path at servers that have OpenAI's alone."""
        return f"/v1/{self.path.removeprefix('/v3/')}" if self.is_ovms else self.path

    @property
    def is_forwarded(self) -> bool:
        """Whether another machine may answer it, and this one for another."""
        takes_model = self.request is not None or self.form is not None
        return self.is_inference and takes_model and not self.here_only


ANTHROPIC_VERSION: Final = "Anthropic-Version"

ENDPOINTS: Final = web.AppKey("endpoints", dict[web.AbstractRoute, Endpoint])
"""The application's endpoints by aiohttp's routes: several for an endpoint with several spellings
of its path."""


def endpoint_of(request: web.Request) -> Endpoint | None:
    """Return the endpoint that a request is for; None if there is none (404, 405)."""
    return request.app[ENDPOINTS].get(request.match_info.route)


def is_ovms(request: web.Request) -> bool:
    """Return whether a request has the rules of OpenVINO Model Server."""
    endpoint = endpoint_of(request)
    return endpoint is not None and endpoint.is_ovms


def kind_of_models(request: web.Request) -> ModelKind | None:
    """Return the ``models`` of a request's endpoint; None if it has no endpoint."""
    endpoint = endpoint_of(request)
    return None if endpoint is None else endpoint.models


def family_of(request: web.Request) -> ApiFamily:
    """Return the API family of the route that a request is for; OpenAI's if there is no such
    route."""
    endpoint = endpoint_of(request)
    return OPENAI if endpoint is None else endpoint.family


def api_of(request: web.Request) -> str:
    """Return the name of the API that a request is for, as operators see it: ``chat``,
    ``messages``, ``embeddings``."""
    endpoint = endpoint_of(request)
    return "" if endpoint is None else endpoint.tag.lower()


def is_of_anthropic(request: web.Request) -> bool:
    """Return whether one of Anthropic's clients sent a request: all of them name a version."""
    return ANTHROPIC_VERSION in request.headers


def error_family_of(request: web.Request) -> ApiFamily:
    """Return the API family in whose form a request gets an error instead of an answer: the
    route's, but Anthropic's clients understand their own alone, also on routes that they share with
    others and on those that are not there."""
    return ANTHROPIC if is_of_anthropic(request) else family_of(request)
