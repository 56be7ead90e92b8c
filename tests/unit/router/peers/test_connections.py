"""Which connections to peers are kept, and what becomes of a request whose connection is closed."""

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lmx.protocol.messages.peers import Peer, PeerKind, PeerList
from lmx.router.peers import relay
from lmx.supervisor.pairing.certificate import own_fingerprint, pinned
from tests.support.fakes.fake_peers import FakeStream, Script, until
from tests.support.rigs.federation_rig import federation, peer_key
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, chat_body, joined_text


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection ends for a reason of its test, and not because the machine is busy."""
    monkeypatch.setattr("lmx.router.peers.federation._KEPT_S", 3600.0)
    monkeypatch.setattr("lmx.router.peers.link._OPENAI_POLL_S", 3600.0)


def made(rig: Rig) -> Counter[str]:
    """Count the connections to peers that are made and used again from now on."""
    count: Counter[str] = Counter()
    config = aiohttp.TraceConfig()

    async def create(*_: object) -> None:
        count["made"] += 1

    async def reuse(*_: object) -> None:
        count["reused"] += 1

    config.on_connection_create_end.append(create)
    config.on_connection_reuseconn.append(reuse)
    config.freeze()
    rig.router.peers.links[0].session.trace_configs.append(config)
    return count


@pytest.mark.parametrize("tls", [False, True])
async def test_streams_that_end_well_leave_their_connection_to_the_next(tls: bool) -> None:
    async with federation("ab") as (a, b):
        await a.publish()
        if tls:
            shown = own_fingerprint(Path(b.spec.jobs_path).with_name("certificate.pem"))
            a.router.peers.put(PeerList.of((pinned("b", b.url, peer_key("b"), shown),)))
            await until(lambda: a.router.peers.links[0].answers)
        count = made(a)
        for _ in range(12):
            assert joined_text(await a.chat_events()) == "".join(TEXTS)
        # One is used, and another one while the peer is asked how it is.
        assert count["made"] <= 2
        assert count["reused"] >= 10
        # A client's own stream ends with its connection, as ever.
        async with b.chat(stream=True) as response:
            assert response.headers["Connection"] == "close"
            await response.read()


async def test_no_more_connections_are_kept_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_MOST_KEPT", 1)
    async with federation("ab") as (a, b):
        await a.publish()
        go = asyncio.Event()
        b.worker.script = held_until(go)
        calls = [asyncio.create_task(a.chat_events()) for _ in range(5)]
        await until(lambda: len(b.worker.streams) == 5)
        go.set()
        for call in calls:
            assert joined_text(await call) == "Hello"
        server = b.router._runner.server
        assert server is not None
        # The first one's, and that by which the peer is asked how it is.
        await until(lambda: len(server.connections) <= 2)


def held_until(go: asyncio.Event) -> Script:
    async def script(stream: FakeStream) -> None:
        await stream.accept()
        await go.wait()
        await stream.finish("Hello")

    return script


class ClosingPeer:
    """Another server with OpenAI's API. ``closes`` says of each request for an answer whether it
    closes the connection instead, by whether that was used before."""

    def __init__(self) -> None:
        self.closes = False
        self.asked: list[bool] = []
        """Whether the connection was used before, for each request for an answer."""
        self.path = b""
        """Where the last of them was sent."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        used = False
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line[15:])
                        for line in head.splitlines()
                        if line[:15] == b"Content-Length:"
                    ),
                    0,
                )
                await reader.readexactly(length)
                if head.startswith(b"POST"):
                    self.asked.append(used)
                    self.path = head.split(b" ")[1]
                    if used or self.closes:
                        return
                    status = b"400 Bad Request"
                    answer: object = {"error": {"code": "invalid_value", "message": "so it is"}}
                else:
                    status, answer = b"200 OK", {"data": [{"id": MODEL}]}
                used = True
                payload = json.dumps(answer).encode()
                head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(payload))
                writer.write(head + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def closing_peer(rig: Rig) -> AsyncIterator[ClosingPeer]:
    """Have such a server as the only peer."""
    one = ClosingPeer()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    rig.router.peers.put(PeerList.of((Peer("other", url, PeerKind.OPENAI),)))
    await until(lambda: rig.router.peers.links[0].answers)
    try:
        yield one
    finally:
        server.close()


async def test_a_request_that_a_kept_connection_loses_is_sent_on_a_new_one() -> None:
    async with federation("a") as (a,), closing_peer(a) as other:
        await a.publish()
        for _ in range(3):
            assert (await a.chat_json())[0] == 400
        # Each came on the connection of the one before, or of the list of models, and once again.
        assert other.asked == [True, False] * 3
        # A new connection that is closed is a machine that does not answer.
        other.closes, before = True, len(other.asked)
        status, found = await a.chat_json()
        assert (status, found["error"]["code"]) == (503, "peer_unavailable")
        assert other.asked[before:] == [True, False]


async def test_a_server_of_another_kind_is_asked_for_what_it_has_alone() -> None:
    async with federation("a") as (a,), closing_peer(a) as other:
        await a.publish()
        status, found = await a.post_json("/v1/audio/speech", model=MODEL, input="Hi.")
        assert (status, found["error"]["param"]) == (400, "model")
        assert "on the machine other, of which chat" in found["error"]["message"]
        assert not other.asked
        # It has no /v3, and gets the same request below /v1.
        status, found = await a.post_json("/v3/chat/completions", **chat_body())
        assert (status, found["error"]["message"]) == (400, "so it is")
        assert other.path == b"/v1/chat/completions"


async def test_nothing_waits_for_the_address_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the loop's executor would keep the router from ending, and others from work."""
    looking: list[threading.Thread] = []
    known, really = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *args: Any, **options: Any) -> Any:
        if host != "off.lan":
            return really(host, *args, **options)
        looking.append(threading.current_thread())
        known.wait(180)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        async with federation("a", answer_s=0.2) as (a,):
            a.router.peers.put(PeerList.of((Peer("off", "http://off.lan:8000"),)))
            await until(lambda: looking)
            await until(lambda: "in time" in (a.router.peers.links[0].problem or ""))
            assert looking[0].daemon
            known.set()
            await until(lambda: "no address" in (a.router.peers.links[0].problem or ""))
    finally:
        known.set()
