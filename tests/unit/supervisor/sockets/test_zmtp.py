"""ZMTP as the supervisor speaks it: against libzmq's sockets, and against nonsense."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from lmx.supervisor.sockets import zmtp
from lmx.supervisor.sockets.connections import Connection, Door
from lmx.supervisor.sockets.zmtp import Parser, Ready, ZmtpError, message_frames, ready_command
from tests.support.fakes.fake_peers import until

GREETED = zmtp.GREETING + ready_command(b"DEALER")


@given(
    st.lists(st.lists(st.binary(max_size=400), min_size=1, max_size=5), max_size=5),
    st.lists(st.integers(1, 300), max_size=60),
)
def test_what_is_sent_is_what_comes(messages: list[list[bytes]], cuts: list[int]) -> None:
    stream = GREETED + b"".join(message_frames(tuple(each)) for each in messages)
    parser, found = Parser(1000_000), list[Any]()
    for cut in cuts:
        found += parser.feed(stream[:cut])
        stream = stream[cut:]
    found += parser.feed(stream)
    assert found == [Ready(b"DEALER", b""), *map(tuple, messages)]


@given(st.sampled_from([b"", zmtp.GREETING, GREETED]), st.binary(max_size=600))
def test_nonsense_is_refused_or_waits(begun: bytes, nonsense: bytes) -> None:
    parser = Parser(500)
    try:
        parser.feed(begun + nonsense)
    except ZmtpError:
        return
    assert len(parser._buffer) <= 600


@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\n",
        b"\xff" + bytes(63),
        zmtp.GREETING[:10] + b"\x01" + zmtp.GREETING[11:],
        zmtp.GREETING.replace(b"NULL", b"CURV"),
        zmtp.GREETING + message_frames((b"no introduction",)),
        zmtp.GREETING + b"\x06" + (2**40).to_bytes(8, "big"),
        GREETED + b"\x02" + (2**63).to_bytes(8, "big"),
        GREETED + b"\x01\x00" * 20,
        GREETED + b"\x80\x00",
        zmtp.GREETING + zmtp.frame(b"\x05READY\x0bSocket-Type\x00\x00\xff\xffDEALER", 4),
    ],
)
def test_who_speaks_something_else_is_refused(stream: bytes) -> None:
    with pytest.raises(ZmtpError):
        Parser(1_000_000).feed(stream)


class _Echo:
    """Sends each message back, and counts."""

    def __init__(self, path: Path, socket_type: bytes = b"ROUTER") -> None:
        self.door = Door(path, socket_type, self._take)
        self.heard: list[tuple[bytes, zmtp.Message]] = []

    def _take(self, connection: Connection, message: zmtp.Message) -> None:
        self.heard.append((connection.identity, message))
        connection.send(*message)


@pytest.fixture
async def echo() -> AsyncIterator[tuple[_Echo, str, zmq.asyncio.Context]]:
    context = zmq.asyncio.Context()
    with TemporaryDirectory(prefix="lmx-") as folder:  # a short path
        path = Path(folder) / "s"
        made = _Echo(path)
        await made.door.open()
        yield made, f"ipc://{path}", context
        context.destroy(linger=0)
        await made.door.close()


Echoing = tuple[_Echo, str, zmq.asyncio.Context]


async def test_libzmq_is_understood_and_understands(echo: Echoing) -> None:
    server, endpoint, context = echo
    named, nameless = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    named.setsockopt(zmq.IDENTITY, b"w:1")
    sizes = (0, 1, 255, 256, 70_000, 3_000_000)
    async with asyncio.timeout(90):
        for peer in (named, nameless):
            peer.connect(endpoint)
            for size in sizes:
                await peer.send_multipart([b"x" * size, b"end"])
                assert await peer.recv_multipart() == [b"x" * size, b"end"]
    assert {identity for identity, _ in server.heard if identity[:1] != b"\0"} == {b"w:1"}
    assert server.door.find(b"w:1") is not None
    assert server.door.find(b"w:2") is None


async def test_who_comes_back_takes_over_from_its_dead_connection(echo: Echoing) -> None:
    server, endpoint, context = echo
    async with asyncio.timeout(90):
        for word in (b"one", b"two"):
            peer = context.socket(zmq.DEALER)
            peer.setsockopt(zmq.IDENTITY, b"w:1")
            peer.connect(endpoint)
            await peer.send(word)
            assert await peer.recv() == word
    connection = server.door.find(b"w:1")
    assert connection is not None
    assert connection.send(b"still there")


async def test_subscribers_get_what_they_asked_for() -> None:
    context = zmq.asyncio.Context()
    with TemporaryDirectory(prefix="lmx-") as folder:
        topics: list[bytes] = []

        def subscribe(connection: Connection, message: zmtp.Message) -> None:
            connection.topics.add(message[0][1:])
            topics.append(message[0])

        door = Door(Path(folder) / "s", b"XPUB", subscribe)
        await door.open()
        peer = context.socket(zmq.SUB)
        peer.connect(f"ipc://{folder}/s")
        peer.subscribe(b"a")
        await until(lambda: topics)
        for word in (b"b1", b"a1"):
            for subscriber in door.subscribers(word):
                subscriber.send(word)
        assert await asyncio.wait_for(peer.recv(), 90) == b"a1"
        context.destroy(linger=0)
        await door.close()
    assert topics == [b"\x01a"]


async def test_who_reads_nothing_is_sent_no_more_than_a_limit(echo: Echoing) -> None:
    server, endpoint, _ = echo
    reader, writer = await asyncio.open_unix_connection(endpoint.removeprefix("ipc://"))
    identity = b"\x08Identity\x00\x00\x00\x01x"
    writer.write(zmtp.GREETING + zmtp.frame(b"\x05READY" + identity, 4))
    connection = await until(lambda: server.door.find(b"x"))
    assert connection is not None
    sent = sum(connection.send(b"x" * 1_000_000) for _ in range(100))
    assert 1 <= sent < 30
    writer.close()
    assert reader is not None
