"""When a stream pings: there is one loop for all of them, and this is what it promises."""

import asyncio
import time
from itertools import pairwise

from lmx.router.http.api_family import comment_line
from lmx.router.http.sse import EventStream

PING = b": ping\n\n"
INTERVAL_S = 0.06


class Stream(EventStream):
    """Keeps what is written, and when."""

    def __init__(self, *, is_open: bool = True) -> None:
        self._ping = PING
        self._opened = is_open
        self.sent: list[tuple[float, bytes]] = []

    @property
    def is_open(self) -> bool:
        return self._opened

    async def send(self, events: bytes) -> None:
        self.sent.append((time.monotonic(), events))

    @property
    def said(self) -> list[bytes]:
        return [events for _, events in self.sent]


class Source:
    """Gives what a test says; nothing, sooner than it may wait, for each None."""

    def __init__(self, *items: bytes | None, looks_s: float = 0.0) -> None:
        self._items = list(items)
        self._looks_s = looks_s
        self.waits_s: list[float] = []

    async def take(self, wait_s: float) -> bytes | None:
        self.waits_s.append(wait_s)
        if not self._items:
            return None
        item = self._items.pop(0)
        if item is None:
            await asyncio.sleep(min(self._looks_s, wait_s))
            return b""
        return item


async def test_what_comes_is_sent_in_order_and_nothing_else() -> None:
    stream, source = Stream(), Source(b"a", b"b", b"c")
    await stream.send_all(source.take, INTERVAL_S)
    assert stream.said == [b"a", b"b", b"c"]
    assert source.waits_s == [INTERVAL_S] * 4, "each may be waited for as long as a ping is off"


async def test_pings_are_as_far_apart_as_they_should_however_often_one_looks() -> None:
    stream, source = Stream(), Source(b"a", *[None] * 30, looks_s=INTERVAL_S / 4)
    await stream.send_all(source.take, INTERVAL_S)
    times = [at_s for at_s, _ in stream.sent]
    assert stream.said[:3] == [b"a", PING, PING]
    assert all(after - before >= INTERVAL_S for before, after in pairwise(times))
    assert min(source.waits_s) < INTERVAL_S, "less is left after a look"


async def test_what_is_sent_puts_the_next_ping_off() -> None:
    stream = Stream()
    source = Source(*[None, b"x"] * 10, looks_s=INTERVAL_S / 4)
    await stream.send_all(source.take, 1000.0)
    assert stream.said == [b"x"] * 10


async def test_a_stream_that_is_not_open_pings_nobody() -> None:
    stream, source = Stream(is_open=False), Source(*[None] * 5, looks_s=INTERVAL_S)
    await stream.send_all(source.take, INTERVAL_S)
    assert stream.said == []


def test_a_comment_is_one_line() -> None:
    assert comment_line("a\n\nb: c") == b": a b: c\n\n"
