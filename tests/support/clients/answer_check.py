"""Holds every answer of a router against what its route says of it: the status, and the shape."""

import json
from functools import cache
from typing import Any

from aiohttp import web
from aiohttp.payload import Payload
from pydantic import TypeAdapter, ValidationError

from lmx.router.http.api_family import ERROR_BODIES
from lmx.router.http.endpoint import Endpoint, endpoint_of, error_family_of
from lmx.router.http.errors import http_status
from lmx.router.schema.openapi.document import error_codes

_STREAMS = {"text/event-stream", "application/x-ndjson"}


@cache
def _reader(shape: Any) -> TypeAdapter[Any]:
    """Making one takes as long as many checks."""
    return TypeAdapter(shape)


def check_shape(shape: Any, answer: Any) -> None:
    """Hold an answer that was read from JSON against the shape that its builder declares."""
    _reader(shape).validate_json(json.dumps(answer))


class AnswerCheck:
    """Looks at each answer before it goes out; ``faults`` are those that are not as described.
    Streams are looked at by who reads them."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    async def __call__(self, request: web.Request, response: web.StreamResponse) -> None:
        """See ``on_response_prepare`` of aiohttp."""
        endpoint = endpoint_of(request)
        fault = self._fault_in(request, endpoint, response)
        if fault is not None:
            self.faults.append(f"{request.method} {request.path}: {response.status}: {fault}")

    def _fault_in(
        self, request: web.Request, endpoint: Endpoint | None, response: web.StreamResponse
    ) -> str | None:
        if response.status == 304:
            return None  # It stands for an answer that was sent before.
        if response.status == 101 and endpoint is not None and endpoint.status == 101:
            return None  # What follows is no answer.
        if response.status == 308 and "Location" in response.headers:
            return None  # A path in another spelling.
        if request.method == "OPTIONS" and response.status == 204:
            return None  # Of a browser's question, which is for every route.
        # A family that a test has made has a shape of its own.
        family = error_family_of(request)
        shape: Any = ERROR_BODIES.get(family, dict[str, Any])
        if endpoint is not None:
            well = (
                [endpoint.status]
                if endpoint.degraded_status is None
                else [200, endpoint.degraded_status]
            )
            errors = {
                http_status(code, operator=endpoint.access.for_operators)
                for code in error_codes(endpoint)
            }
            if response.status not in {*well, *errors}:
                return "the status is not described"
            if response.status in well:
                shape = endpoint.answer
        if endpoint is not None and response.content_type in endpoint.also:
            return None
        if response.content_type in _STREAMS:
            return None if endpoint is not None and endpoint.streams else "a stream"
        if not isinstance(response, web.Response) or shape is None:
            same = endpoint is not None and response.content_type == endpoint.media
            return None if same else f"the type {response.content_type}"
        body = response.body.decode() if isinstance(response.body, Payload) else response.body
        assert isinstance(body, bytes | str)
        try:
            _reader(shape).validate_json(body)
        except ValidationError as error:
            return str(error)
        return None
