"""Bytes that are not HTTP get an API error all the same, and say nothing of what is below."""

import asyncio
import json
from unittest.mock import Mock

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from lmx.router.server.connections import answer_malformed_requests
from tests.support.rigs.router_rig import Rig


async def answer(url: str, request: bytes) -> tuple[int, dict[str, str], dict[str, object]]:
    """Return status, headers and the JSON body of what the router says to raw bytes."""
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    reply = await asyncio.wait_for(reader.read(), 90)
    writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(body)["error"]


CLOSE = b"Connection: close\r\n"
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "malformed_request"),
        (b"GET\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400, "malformed_request"),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400, "malformed_request"),
        (POST + b"Content-Length: -1\r\n\r\n{}", 400, "malformed_request"),
        (
            b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            431,
            "headers_too_large",
        ),
        (POST + b"X-A: " + b"a" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
        (
            POST + b"Connection: close\r\nContent-Encoding: lz4\r\nContent-Length: 2\r\n\r\n{}",
            415,
            None,
        ),
    ],
)
async def test_malformed_http(
    rig: Rig, request_bytes: bytes, status: int, code: str | None
) -> None:
    found, headers, error = await answer(rig.url, request_bytes)
    assert (found, error["code"]) == (status, code or "unsupported_media_type")
    assert set(error) == {"message", "type", "param", "code"}
    assert headers["Server"] == "lmx"
    assert headers["X-Request-Id"].startswith("req_")
    assert headers["Content-Type"].startswith("application/json")
    assert "aiohttp" not in str(headers) + str(error)


def test_a_client_that_left_while_it_was_written_to_is_no_failure() -> None:
    answer_malformed_requests()
    left = ConnectionResetError("Cannot write to closing transport")
    with capture_logs() as logs, pytest.raises(ConnectionResetError):
        web.RequestHandler.handle_error(Mock(), Mock(), 500, left)
    assert logs == []
