"""A whole answer counts as under way until its last byte has left: a router that ends waits for a
client that reads slowly, and for none that reads nothing."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import cast

import orjson
import pytest

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.router.server.sending import _while_it_is_read
from tests.support.fakes.fake_peers import ends, plays, until
from tests.support.rigs.router_rig import MODEL, Rig, chat_body, router_rig

TEXT = "x" * 12_000_000
"""Longer than what the kernel takes for a client that does not read."""


say_much = plays(ends(TEXT, tokens=1))


@contextlib.asynccontextmanager
async def asked_without_reading(rig: Rig) -> AsyncIterator[socket.socket]:
    """A client that has asked for the answer, of which some is in the router's buffer by now."""
    loop = asyncio.get_running_loop()
    body = orjson.dumps(chat_body())
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", rig.spec.port))
        await loop.sock_sendall(client, head.encode() + body)
        await until(lambda: unread_bytes(rig) > 0)
        yield client


def unread_bytes(rig: Rig) -> int:
    server = rig.router._runner.server
    assert server is not None
    transports = [connection.transport for connection in server.connections]
    return sum(one.get_write_buffer_size() for one in transports if one is not None)


async def read_answer(client: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += await loop.sock_recv(client, 65536)
    head, _, body = raw.partition(b"\r\n\r\n")
    (length,) = [int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Len")]
    pieces = [body]
    left = length - len(body)
    while left:
        piece = await loop.sock_recv(client, 1 << 20)
        assert piece, f"cut off {left} bytes before its end"
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


async def test_a_router_that_stops_waits_for_an_answer_that_is_being_read() -> None:
    async with router_rig(say_much) as rig, asked_without_reading(rig) as client:
        assert rig.router.traffic.under_way == 1
        stopping = asyncio.create_task(rig.router.stop(grace_s=60.0))
        await until(lambda: rig.router.traffic.closed)
        async with asyncio.timeout(90):
            answer = json.loads(await read_answer(client))
            await stopping
    assert answer["choices"][0]["message"]["content"] == TEXT


async def test_a_connection_is_good_for_more_after_a_large_answer() -> None:
    async with router_rig(say_much) as rig:
        for _ in range(2):
            status, answer = await rig.chat_json()
            assert (status, len(answer["choices"][0]["message"]["content"])) == (200, len(TEXT))
        await until(lambda: rig.router.traffic.under_way == 0)


async def test_a_client_that_reads_nothing_is_dropped() -> None:
    async with router_rig(say_much, stall_timeout_s=0.2) as rig:
        async with asked_without_reading(rig):
            await until(lambda: rig.router.traffic.under_way == 0)
            assert unread_bytes(rig) == 0
        tally = rig.router.metrics.read().models[MODEL]
    assert tally.errors == {"client_stalled": 1}


async def test_a_client_that_leaves_while_it_reads_is_no_error() -> None:
    async with router_rig(say_much) as rig:
        async with asked_without_reading(rig):
            pass
        await until(lambda: rig.router.traffic.under_way == 0)
        tally = rig.router.metrics.read().models[MODEL]
    assert (dict(tally.errors), dict(tally.reasons)) == ({}, {"abort": 1})


class Transport:
    """The connection of a client that reads one byte a look, until ``stuck_at`` are left."""

    def __init__(self, bytes_left: int, stuck_at: int) -> None:
        self.bytes = self.bytes_left = bytes_left
        self.stuck_at = stuck_at
        self.aborted = False
        self.empty = asyncio.Event()

    def taken_bytes(self) -> int:
        self.bytes_left = max(self.bytes_left - 1, self.stuck_at)
        if not self.bytes_left:
            self.empty.set()
        return self.bytes - self.bytes_left

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("stuck_at", [0, 3])
async def test_slow_is_not_stalled(stuck_at: int) -> None:
    client = Transport(8, stuck_at)

    async def write() -> None:
        await client.empty.wait()

    writing = asyncio.ensure_future(write())
    reading = _while_it_is_read(writing, client.taken_bytes, cast(asyncio.Transport, client), 0.01)
    if stuck_at:
        with pytest.raises(LmxError) as stalled:
            await reading
        assert stalled.value.code is ErrorCode.CLIENT_STALLED
    else:
        await reading
    assert client.aborted is bool(stuck_at)
    await asyncio.wait({writing}, timeout=180)
    assert writing.done()
