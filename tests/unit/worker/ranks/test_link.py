"""What ranks of two machines say to each other reaches the one with the right key alone, and both
notice the end of the other."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from lmx.protocol.messages.ranks import FollowerLink
from lmx.worker.ranks.link import FollowerDoor, _pair, _Wire, join

BEAT_S, SILENCE_S = 0.2, 60.0
LOOPBACK = "127.0.0.1"
LARGE = b"x" * 3_000_000


@pytest.fixture
def door() -> Iterator[FollowerDoor]:
    opened = FollowerDoor(BEAT_S, SILENCE_S)
    yield opened
    opened.close()


def follow(
    door: FollowerDoor, endpoint: str, keys: tuple[bytes, bytes]
) -> tuple[socket.socket, threading.Thread]:
    link = FollowerLink(endpoint, door.public_key, LOOPBACK, 0)
    return join(link, keys, BEAT_S, SILENCE_S)


def received(stream: socket.socket, count: int) -> bytes:
    stream.settimeout(90)
    found = b""
    # Closed with something unread, a socket pair is reset.
    with contextlib.suppress(ConnectionResetError):
        while len(found) < count and (part := stream.recv(count - len(found))):
            found += part
    return found


def test_all_arrives_in_order_and_the_end_is_noticed_on_both_sides(door: FollowerDoor) -> None:
    endpoints = [door.listen(LOOPBACK) for _ in range(2)]
    keys = [zmq.curve_keypair() for _ in endpoints]
    followers = [follow(door, *each) for each in zip(endpoints, keys, strict=True)]
    followers[0][0].sendall(b"I am here")
    streams = door.admit([public.decode() for public, _ in keys])
    assert received(streams[0], 9) == b"I am here"
    writer = threading.Thread(target=streams[1].sendall, args=(LARGE,))
    writer.start()
    assert received(followers[1][0], len(LARGE)) == LARGE
    writer.join()
    followers[1][0].sendall(b"so am I")
    assert received(streams[1], 7) == b"so am I"
    # What was said before the end arrives, and then the end.
    followers[0][0].sendall(b"bye")
    followers[0][0].shutdown(socket.SHUT_WR)
    followers[0][1].join(90)
    assert received(streams[0], 9) == b"bye"
    streams[1].sendall(b"you too")
    streams[1].close()
    assert received(followers[1][0], 20) == b"you too"
    followers[1][1].join(90)
    assert not any(thread.is_alive() for _, thread in followers)


def test_a_connection_that_takes_nothing_for_so_long_has_ended() -> None:
    """What was to be sent is lost: nothing may follow it."""
    with zmq.Context() as context, _pair(context, BEAT_S, 0.01) as nobody:
        nobody.bind(f"tcp://{LOOPBACK}:*")
        wire = _Wire(nobody)
        wire.inner.sendall(b"plan")
        assert wire.carry({})
        assert not wire.carry({wire.local.fileno(): zmq.POLLIN})
        wire.inner.close()
        wire.close()


def test_another_key_gets_nothing_in_nor_out(door: FollowerDoor) -> None:
    endpoints = [door.listen(LOOPBACK) for _ in range(2)]
    right, other = zmq.curve_keypair(), zmq.curve_keypair()
    streams = door.admit([right[0].decode(), other[0].decode()])
    # Right at the other port only.
    stranger, thread = follow(door, endpoints[0], other)
    stranger.sendall(b"let me in")
    assert received(stranger, 1) == b""
    thread.join(90)
    # Who does not speak CURVE at all is no end of it.
    host, _, port = endpoints[0].removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=180) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    known, _ = follow(door, endpoints[0], right)
    known.sendall(b"me")
    assert received(streams[0], 2) == b"me"
    known.close()
    for each in streams:
        each.close()


def test_a_port_that_answers_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmx.worker.ranks.link._JOIN_S", 0.5)
    with socket.create_server((LOOPBACK, 0)) as silent:
        opened = FollowerDoor(BEAT_S, SILENCE_S)
        opened.listen(LOOPBACK)
        (stream,) = opened.admit([zmq.curve_keypair()[0].decode()])
        endpoint = f"tcp://{LOOPBACK}:{silent.getsockname()[1]}"
        started_s = time.monotonic()
        waiting, thread = follow(opened, endpoint, zmq.curve_keypair())
        assert received(waiting, 1) == b"" == received(stream, 1)
        thread.join(90)
        assert time.monotonic() - started_s > 0.4
        opened.close()
