"""Lines of batches, answered as requests in process."""

from functools import partial

from aiohttp import web

from lmx.protocol.messages.keys import ApiKey
from lmx.router.http.in_process import request_in_process
from lmx.router.http.outcome import CONTEXT
from lmx.router.inference.batches.runner import Answered
from lmx.router.server.middleware import REQUEST_SERVER


async def answer_line(app: web.Application, path: str, body: bytes, key: ApiKey | None) -> Answered:
    """Answer a line of a batch, as a request of a key for the route of ``path``."""
    request = await request_in_process(app, path, body)
    server = app[REQUEST_SERVER]
    response, code = await server.answer_in_background(request, key)
    return Answered(
        response.status,
        request[CONTEXT].request_id,
        await _body_of(response),
        code,
        partial(server.record_in_background, request, response.status, code),
    )


async def _body_of(response: web.StreamResponse) -> bytes:
    """Return the whole body of an answer that was not sent."""
    assert isinstance(response, web.Response)
    body = response.body
    if body is None:
        return b""
    return bytes(body) if isinstance(body, bytes | bytearray) else await body.as_bytes()
