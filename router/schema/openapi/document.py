"""The description of the API in OpenAPI 3.1, made from the table of routes, and its route.

GET /openapi.json returns it.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode
from lmx.router.http.access import ADMIN_HEADER
from lmx.router.http.api_family import ERROR_BODIES
from lmx.router.http.endpoint import Access, Endpoint
from lmx.router.http.errors import http_status
from lmx.router.schema.openapi.schemas import Schemas
from lmx.router.schema.openapi.texts import API, EXAMPLES, FURTHER_EXAMPLES, HEADERS, TAGS

_PATTERN: Final = re.compile(r"{(\w+)(:[^}]*)?}")
"""A variable part of one of aiohttp's paths, with the expression that it must match."""

_KEYS: Final[dict[Access, list[dict[str, list[str]]]]] = {
    Access.OPEN: [],
    # One of the two is enough: if no keys are configured, everybody may ask.
    Access.INFERENCE: [{"apiKey": []}, {}],
    Access.PEER: [{"apiKey": []}, {"adminKey": []}],
    Access.OPERATOR: [{"operatorKey": []}, {"adminKey": []}, {"adminKeyAsBearer": []}],
    Access.ADMIN: [{"adminKey": []}, {"adminKeyAsBearer": []}],
    Access.METRICS: [{"metricsKey": []}, {"adminKey": []}],
    # On a loopback address everybody may ask.
    Access.LOCAL: [{"metricsKey": []}, {"adminKey": []}, {}],
}

_RETRY_STATUSES: Final = frozenset({429, 503})
_EVENTS: Final = "Server-sent events; `x-event-data` has the shape of the data of each"
_JOB_ID: Final = "X-Job-Id"
_REQUEST_ID: Final = "X-Request-Id"
_IGNORED: Final = "X-Lmx-Ignored"
_RETRY_AFTER: Final = "Retry-After"


def describe_api(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """Return the document. Each endpoint is one operation; there are no others. Pure."""
    schemas = Schemas(_types(endpoints))
    queries = {endpoint.query.__name__ for endpoint in endpoints if endpoint.query is not None}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _PATTERN.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, path, schemas)
    used = {endpoint.tag for endpoint in endpoints}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lmx",
            "version": version,
            "description": API,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": name, "description": text} for name, text in TAGS.items() if name in used
        ],
        "paths": paths,
        "components": {
            # A query is described by its parameters.
            "schemas": {
                name: schema for name, schema in schemas.components.items() if name not in queries
            },
            "headers": {
                name: {"description": text, "schema": {"type": kind}}
                for name, (kind, text) in HEADERS.items()
            },
            "securitySchemes": {
                "apiKey": {"type": "http", "scheme": "bearer"},
                "adminKeyAsBearer": {"type": "http", "scheme": "bearer"},
                "operatorKey": {"type": "apiKey", "in": "header", "name": ADMIN_HEADER},
                "metricsKey": {"type": "http", "scheme": "bearer"},
                "adminKey": {"type": "apiKey", "in": "header", "name": ADMIN_HEADER},
            },
        },
    }


def _types(endpoints: Iterable[Endpoint]) -> Iterator[Any]:
    yield from ERROR_BODIES.values()
    for endpoint in endpoints:
        for one in (
            endpoint.request,
            endpoint.form,
            endpoint.query,
            endpoint.answer,
            endpoint.event,
        ):
            if one is not None:
                yield one


def _operation(endpoint: Endpoint, path: str, schemas: Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "security": _KEYS[endpoint.access],
        "responses": _errors(endpoint, schemas) | _answers(endpoint, schemas),
    }
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": "May hold slashes" if rule else "Without slashes",
            "schema": {"type": "string", "minLength": 1},
        }
        for name, rule in _PATTERN.findall(endpoint.path)
    ]
    if endpoint.query is not None:
        parameters += _query(schemas.of(endpoint.query), schemas)
    if parameters:
        described["parameters"] = parameters
    if endpoint.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": _body(endpoint.request, schemas)},
        }
    if endpoint.form is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"multipart/form-data": {"schema": schemas.of(endpoint.form)}},
        }
    return described


def _body(request: type[BaseModel], schemas: Schemas) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schemas.of(request)}
    name = request.__name__
    if further := FURTHER_EXAMPLES.get(name):
        shown = {"a text": EXAMPLES[name], **further}
        body["examples"] = {title: {"value": value} for title, value in shown.items()}
    elif name in EXAMPLES:
        body["example"] = EXAMPLES[name]
    return body


def operation_id(endpoint: Endpoint) -> str:
    """Return what the document calls an endpoint's operation."""
    # Every path has its own: only letters, digits and _ are kept, and none holds a word twice.
    path = _PATTERN.sub(r"{\1}", endpoint.path)
    return "_".join([endpoint.method.lower(), *re.findall(r"[A-Za-z0-9]+", path)])


def _query(reference: dict[str, Any], schemas: Schemas) -> list[dict[str, Any]]:
    schema = schemas.components[reference["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    parameters = []
    for name, its in schema.get("properties", {}).items():
        shape = {key: value for key, value in its.items() if key != "description"}
        parameter = {"name": name, "in": "query", "required": name in required, "schema": shape}
        if "description" in its:
            parameter["description"] = its["description"]
        parameters.append(parameter)
    return parameters


def _answers(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    statuses = [endpoint.status]
    if endpoint.degraded_status is not None:
        statuses.append(endpoint.degraded_status)
    return {str(status): _answer(endpoint, status, schemas) for status in statuses}


def _answer(endpoint: Endpoint, status: int, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.answer is not None:
        content["application/json"] = {"schema": schemas.of(endpoint.answer)}
    elif not endpoint.streams:
        content[endpoint.media] = {"schema": {"type": "string"}}
    for media in endpoint.also:
        content[media] = {"schema": {"type": "string"}}
    if endpoint.streams:
        # OpenAPI 3.1 has no field for the shape of an event, 3.2 has: `itemSchema`.
        stream: dict[str, Any] = {"schema": {"description": _EVENTS}}
        if endpoint.event is not None:
            stream["x-event-data"] = schemas.of(endpoint.event)
        content[endpoint.family.stream_type.partition(";")[0]] = stream
    names = [_REQUEST_ID]
    if endpoint.access is Access.INFERENCE and (endpoint.request or endpoint.form) is not None:
        names.append(_IGNORED)
    if ErrorCode.SYNC_TIMEOUT in error_codes(endpoint):
        names.append(_JOB_ID)
    if status in _RETRY_STATUSES:
        names.append(_RETRY_AFTER)
    return {
        "description": HTTPStatus(status).phrase,
        "headers": _headers(*names),
        "content": content,
    }


def _errors(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    operator = endpoint.access.for_operators
    for code in error_codes(endpoint):
        by_status.setdefault(http_status(code, operator=operator), []).append(code.value)
    responses: dict[str, Any] = {}
    for status, codes in sorted(by_status.items()):
        names = [_REQUEST_ID]
        if status in _RETRY_STATUSES:
            names.append(_RETRY_AFTER)
        if ErrorCode.SYNC_TIMEOUT.value in codes:
            names.append(_JOB_ID)
        listed = ", ".join(f"`{code}`" for code in sorted(codes))
        responses[str(status)] = {
            "description": f"{HTTPStatus(status).phrase}: {listed}",
            "headers": _headers(*names),
            "content": {"application/json": {"schema": schemas.of(ERROR_BODIES[endpoint.family])}},
        }
    return responses


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


class ApiDocument:
    """The description as JSON. It is made when it is first requested, and kept: most routers are
    never asked for it."""

    def __init__(self, endpoints: Sequence[Endpoint], version: str) -> None:
        self._endpoints = endpoints
        self._version = version
        self._text: bytes | None = None

    async def text(self) -> bytes:
        """Return the document. It is made in a thread."""
        if self._text is None:
            # Two first requests at the same time make the document twice, with the same result.
            self._text = await asyncio.to_thread(self._make)
        return self._text

    def _make(self) -> bytes:
        return orjson.dumps(describe_api(self._endpoints, self._version))


API_DOCUMENT: Final = web.AppKey("api_document", ApiDocument)


async def openapi_document(request: web.Request) -> web.Response:
    """Return the document. It changes only with lmx's version."""
    text = await request.app[API_DOCUMENT].text()
    return web.Response(
        body=text, content_type="application/json", headers={"Cache-Control": "no-cache"}
    )


_ALWAYS: Final = (
    ErrorCode.MALFORMED_REQUEST,
    ErrorCode.HEADERS_TOO_LARGE,
    ErrorCode.HOST_NOT_ALLOWED,
    ErrorCode.INTERNAL,
)
_CLOSING: Final = (ErrorCode.SHUTTING_DOWN, ErrorCode.ROUTER_HUNG)
_KEY: Final = (ErrorCode.INVALID_AUTHENTICATION, ErrorCode.PERMISSION_DENIED)
_BODY: Final = (
    ErrorCode.INVALID_JSON,
    ErrorCode.QUEUE_FULL,
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.REQUEST_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
)
_VALUES: Final = (
    ErrorCode.INVALID_TYPE,
    ErrorCode.INVALID_VALUE,
    ErrorCode.MISSING_PARAMETER,
    ErrorCode.UNSUPPORTED_VALUE,
)
_WORK: Final = (
    ErrorCode.CHAT_TEMPLATE_FAILED,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED,
    ErrorCode.CONVERSION_FAILED,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.DOWNLOAD_FAILED,
    ErrorCode.ENGINE_ERROR,
    ErrorCode.INSUFFICIENT_DISK,
    ErrorCode.INSUFFICIENT_MEMORY,
    ErrorCode.MODEL_DRAINED,
    ErrorCode.MODEL_LOAD_FAILED,
    ErrorCode.MODEL_LOADING,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.MODEL_QUARANTINED,
    ErrorCode.MODEL_SOURCE_INVALID,
    ErrorCode.MODEL_UNLOADED,
    ErrorCode.QUEUE_FULL,
    ErrorCode.QUEUE_TIMEOUT,
    ErrorCode.REQUEST_CANCELLED,
    ErrorCode.SUPERVISOR_UNAVAILABLE,
    ErrorCode.WORKER_CRASHED,
    ErrorCode.WORKER_HUNG,
    ErrorCode.WORKER_KILLED,
    ErrorCode.WORKER_LOST,
    ErrorCode.WORKER_OUT_OF_MEMORY,
)
_GENERATION: Final = (
    ErrorCode.SCHEMA_NOT_MET,
    ErrorCode.STRUCTURE_NOT_ENFORCEABLE,
    ErrorCode.SYNC_TIMEOUT,
)
_READS: Final = frozenset({ErrorCode.JOBS_UNAVAILABLE, ErrorCode.USAGE_UNAVAILABLE})
"""The errors of routes that read a file, of which each requester has a share."""


def error_codes(endpoint: Endpoint) -> frozenset[ErrorCode]:
    """Return the errors with which an endpoint may refuse or fail: those that follow from its kind,
    and those that it names itself (``errors``)."""
    codes = {*_ALWAYS, *_CLOSING, *endpoint.errors}
    if endpoint.method != "GET":
        codes.add(ErrorCode.ORIGIN_NOT_ALLOWED)
    if endpoint.is_inference or not codes.isdisjoint(_READS):
        codes.add(ErrorCode.RATE_LIMIT_EXCEEDED)
    if endpoint.access is not Access.OPEN:
        codes.update(_KEY)
    if not endpoint.access.for_operators and not endpoint.quiet:
        codes.add(ErrorCode.QUEUE_FULL)
    if endpoint.access.for_operators or endpoint.access is Access.INFERENCE:
        codes.update((ErrorCode.SUPERVISOR_UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED))
    if endpoint.request is not None or endpoint.form is not None:
        codes.update((*_BODY, *_VALUES))
        if endpoint.access is Access.INFERENCE and endpoint.works:
            codes.update(_WORK)
            if endpoint.streams and endpoint.request is not None:
                codes.update(_GENERATION)
    if endpoint.query is not None:
        codes.update(_VALUES)
    if "{" in endpoint.path:
        codes.add(ErrorCode.NOT_FOUND)
    return frozenset(codes)
