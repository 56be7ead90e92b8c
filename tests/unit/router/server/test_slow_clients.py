"""Clients that send slowly, not at all, or never read: each holds its own connection and nothing
else. No speeds are asserted, only that others are answered meanwhile."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import orjson
import pytest

from lmx.router.operators import pairing
from lmx.router.server import connections, process
from lmx.router.server.connections import most_connections
from tests.support.fakes.fake_peers import FakeStream, until
from tests.support.rigs.router_rig import Rig, answer, chat_body, router_rig

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
ANSWER_DEADLINE_S = 90.0


@contextlib.asynccontextmanager
async def connected(rig: Rig, count: int) -> AsyncIterator[list[Connection]]:
    """So many connections, closed at the end."""
    async with contextlib.AsyncExitStack() as closing:
        opened: list[Connection] = []
        for _ in range(count):
            pair = await asyncio.open_connection("127.0.0.1", rig.spec.port)
            closing.callback(pair[1].transport.abort)
            opened.append(pair)
        yield opened


async def answers_others(rig: Rig) -> None:
    for fields in ({}, {"stream": True}):
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            async with rig.chat(**fields) as response:
                assert response.status == 200
                await response.read()


async def test_connections_that_trickle_idle_or_hang_starve_nobody(rig: Rig) -> None:
    async with connected(rig, 900) as opened:
        headers, bodies, idle = opened[:300], opened[300:600], opened[600:]
        for _, writer in headers:
            writer.write(HEAD[:40])
        for _, writer in bodies:
            writer.write(HEAD + b"Content-Length: 500\r\n\r\n{")
        await until(lambda: rig.router.traffic.under_way == 300, 90)
        await answers_others(rig)
        # One more byte of each, while others ask.
        asking = asyncio.create_task(answers_others(rig))
        for at, (_, writer) in enumerate([*headers, *bodies]):
            writer.write(b" " if at >= 300 else HEAD[40:41])
        await asking
        # Half open: the client says that it sends no more, and stays.
        for _, writer in idle:
            writer.write_eof()
        await answers_others(rig)


async def test_clients_that_never_read_their_stream_starve_nobody() -> None:
    async def flood(stream: FakeStream) -> None:
        await stream.accept()
        if stream.request.max_tokens == 1:
            await stream.finish("done", tokens=1)
            return
        with contextlib.suppress(asyncio.CancelledError):
            while not stream.cancelled:
                await stream.say_within_credit("x" * 10_000)

    body = orjson.dumps(chat_body(stream=True))
    async with router_rig(flood) as rig, connected(rig, 10) as opened:
        for _, writer in opened:
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: len(rig.worker.streams) == 10, 90)
        for _ in range(5):
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                assert (await rig.chat_json(max_tokens=1))[0] == 200


async def test_pairing_bodies_that_never_come_leave_room_for_whoever_has_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pairing, "_BODY_DEADLINE_S", 2.0)
    key = {"Authorization": "Bearer sk-one"}
    async with (
        router_rig(answer, api_keys=("sk-one",), max_requests=40) as rig,
        connected(rig, 60) as opened,
    ):
        for _, writer in opened:
            writer.write(
                b"POST /pair/hello HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
        asking = asyncio.gather(*(reader.readline() for reader, _ in opened))
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            status, _ = await rig.json(
                "POST", "/v1/chat/completions", headers=key, body=chat_body()
            )
            assert status == 200
            said = await asking
        # The pace lets 20 of them wait for their bodies.
        assert sum(b" 408 " in line for line in said) == 20
        assert sum(b" 429 " in line for line in said) == 40


async def closed_at_last(connection: Connection) -> bytes:
    async with asyncio.timeout(ANSWER_DEADLINE_S):
        try:
            return await connection[0].read()
        except ConnectionResetError:
            # What it wrote met a connection that was closed already.
            return b""


async def test_headers_that_never_end_and_idle_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_KEEPALIVE_S", 2.0)
    async with router_rig() as rig, connected(rig, 3) as (silent, trickling, kept):
        kept[1].write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        ends = [asyncio.create_task(closed_at_last(one)) for one in (silent, trickling, kept)]

        async def trickle() -> None:
            trickling[1].write(HEAD + b"X-Slow: ")
            while True:
                trickling[1].write(b"a")
                await asyncio.sleep(0.05)

        task = asyncio.create_task(trickle())
        assert await ends[0] == b""
        assert await ends[1] == b""
        assert (await ends[2]).startswith(b"HTTP/1.1 200")
        task.cancel()
        await answers_others(rig)


async def test_one_connection_too_many_gets_an_error_and_those_that_are_there_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "open_files_limit", lambda: 40)
    monkeypatch.setattr(connections, "_FIRST_REQUEST_S", 3600.0)
    most = most_connections(40)
    async with router_rig(answer) as rig, connected(rig, most - 1) as opened:
        server = rig.router._runner.server
        assert server is not None
        assert (await rig.chat_json())[0] == 200  # On the last connection that there is.
        await until(lambda: len(server.connections) == most)
        async with connected(rig, 20) as late:
            for one in late:
                said = await closed_at_last(one)
                assert said.startswith(b"HTTP/1.1 429 ")
                assert b"Retry-After: 5" in said and b"X-Request-Id: req_" in said
                assert b'"queue_full"' in said
        assert (await rig.chat_json())[0] == 200
        opened[0][1].close()
        await until(lambda: len(server.connections) < most)
        async with connected(rig, 1) as ((reader, writer),):
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_connections_without_a_request_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "open_files_limit", lambda: 40)
    monkeypatch.setattr(connections, "_FIRST_REQUEST_S", 0.2)
    monkeypatch.setattr(process, "_KEEPALIVE_S", 3600.0)
    most = most_connections(40)
    async with router_rig(answer) as rig, connected(rig, most) as opened:
        # Headers that never end are no request.
        opened[0][1].write(HEAD)
        said = b""
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            while b" 200 " not in said:
                await asyncio.sleep(0.05)
                async with connected(rig, 1) as ((reader, writer),):
                    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    with contextlib.suppress(ConnectionResetError):
                        said = await reader.readline()
        assert await closed_at_last(opened[0]) == b""
        assert (await rig.chat_json())[0] == 200


async def test_a_burst_of_connections_stays_near_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "open_files_limit", lambda: 40)
    monkeypatch.setattr(connections, "_FIRST_REQUEST_S", 3600.0)
    async with router_rig() as rig:
        server = rig.router._runner.server
        assert server is not None
        with contextlib.ExitStack() as closing:
            # They wait in the kernel, all of them, before the router's loop has its next turn.
            burst = [
                closing.enter_context(socket.create_connection(("127.0.0.1", rig.spec.port), 90))
                for _ in range(120)
            ]
            said = [asyncio.to_thread(one.recv, 12) for one in burst[-4:]]
            assert set(await asyncio.gather(*said)) == {b"HTTP/1.1 429"}
            most = most_connections(40) + 2 * process._ACCEPTED_AT_ONCE
            assert len(server.connections) <= most < len(burst)


@pytest.mark.parametrize(
    ("open_files", "most"), [(65_536, 65_152), (2048, 1664), (256, 64), (2**31, 2**31 - 384)]
)
def test_descriptors_are_kept_back_for_all_else(open_files: int, most: int) -> None:
    assert most_connections(open_files) == most
