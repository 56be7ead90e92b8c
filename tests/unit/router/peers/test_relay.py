"""How the bytes of a peer's answer are taken, whatever it sends."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, GenerationError, LmxError, UnavailableError
from lmx.protocol.messages.peers import PeerKind
from lmx.router.byte_budget import ByteBudget
from lmx.router.http.api_family import OLLAMA
from lmx.router.http.outcome import RECORD
from lmx.router.jobs.live import LiveRequest, RequestKind
from lmx.router.peers import relay
from lmx.router.peers.cutters import EventCutter, FileCutter


@given(
    st.lists(st.text("ab\n ", max_size=5).map(str.encode), min_size=1, max_size=20),
    st.sampled_from((b"\n", b"\n\n")),
    st.none() | st.lists(st.text("ab\n\x1e", max_size=5).map(str.encode), max_size=5),
)
def test_events_are_cut_alike_however_they_come(
    chunks: list[bytes], end: bytes, record: list[bytes] | None
) -> None:
    cutter = EventCutter(end, has_record=True)
    sent = [cutter.cut(one) for one in chunks]
    for one in sent:
        content = one.rstrip()
        assert not content or end in one[len(content) :], "the last event has its end"
    assert not cutter.rest.isspace(), "no ping waits"
    text = b"".join(chunks)
    assert b"".join(sent) + cutter.rest == text
    assert end not in cutter.rest
    assert cutter.held_bytes == len(cutter.rest)
    if record is not None:
        # What the record follows is sent, whole or not.
        assert b"".join(sent) + cutter.cut(RECORD + b"".join(record[:1])) == text
        assert [cutter.cut(one) for one in record[1:]] == [b""] * len(record[1:])
        assert (cutter.rest, cutter.record) == (b"", b"".join(record))
        assert cutter.held_bytes == len(cutter.record)


@given(st.lists(st.text("ab\x1e", max_size=5).map(str.encode), max_size=9), st.integers(1, 2000))
def test_a_record_is_found_behind_a_file_of_any_bytes(parts: list[bytes], step: int) -> None:
    sound, record = b"".join(parts) * 300, b'{"audio_s":1.5}'
    whole = sound + RECORD + record
    cutter = FileCutter()
    sent = b"".join(cutter.cut(whole[at : at + step]) for at in range(0, len(whole), step))
    assert len(sent) >= len(sound) - 1024, "little of it waits"
    last, found = cutter.end()
    assert (sent + last, found) == (sound, record)
    # One that breaks off has none, and is no whole file.
    cutter = FileCutter()
    assert cutter.cut(sound) + cutter.end()[0] == sound
    assert cutter.end()[1] == b""


def test_an_event_that_comes_in_drops_costs_what_it_has() -> None:
    cutter = EventCutter(b"\n\n", has_record=True)
    began_s = time.process_time()
    for _ in range(300_000):
        assert cutter.cut(b"xxxxxxxxxxxxxxxxxxxx") == b""
    assert len(cutter.cut(b"\n\n")) == 6_000_002
    assert time.process_time() - began_s < 20.0, "it took a third of a second"


def test_a_ping_without_an_end_of_its_own_is_an_event() -> None:
    cutter = EventCutter(b"\n", has_record=True)
    assert [cutter.cut(OLLAMA.ping) for _ in range(3)] == [OLLAMA.ping] * 3
    assert cutter.cut(b'{}\n{"a"') + cutter.cut(OLLAMA.ping) == b"{}\n"
    assert cutter.cut(b":1}\n" + OLLAMA.ping) == b'{"a" :1}\n ', (
        "in the middle of an event it waits"
    )


def live_request() -> LiveRequest:
    context: Any = SimpleNamespace(key=None, started_at_s=time.monotonic())
    return LiveRequest("fwd-1", context, RequestKind.CHAT, "chat", "10.0.0.1", "alpha")


def answer_of(*chunks: bytes, kind: PeerKind = PeerKind.LMX) -> Any:
    """An answer whose last chunk comes again and again."""
    left = list(chunks)

    async def readany() -> bytes:
        await asyncio.sleep(0.001)
        return left.pop(0) if len(left) > 1 else left[0]

    peer = SimpleNamespace(kind=kind)
    link = SimpleNamespace(name="b", peer=peer, lost=asyncio.Event())
    return SimpleNamespace(
        link=link,
        first=b"data: 1\n\n",
        response=SimpleNamespace(content=SimpleNamespace(readany=readany)),
    )


async def test_bytes_without_a_whole_event_are_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_SILENCE_S", 0.2)
    sent: list[bytes] = []
    events: Any = SimpleNamespace(
        family=SimpleNamespace(ping=b": ping\n\n"), is_open=True, keeps_up=True, write=sent.append
    )
    counted = Counter[str]()
    async with asyncio.timeout(90):
        with pytest.raises(GenerationError, match="was lost in the middle") as lost:
            answer = answer_of(b"data: 2\n", b"\n", b"x")
            await relay._streamed(answer, live_request(), events, 30.0, counted)
    assert lost.value.code is ErrorCode.PEER_LOST
    assert sent == [b"data: 1\n\n", b"data: 2\n\n"]
    assert counted["completion_tokens"] == 2


@pytest.mark.parametrize("end", [b"\r\n\r\ndata: [DONE]\r\n\r\n", b"\r\n", b""])
async def test_a_stream_of_another_server_may_have_crlf_and_says_what_was_used(end: bytes) -> None:
    """Its last event may end with the stream."""
    sent: list[bytes] = []

    async def send(part: bytes) -> None:
        sent.append(part)

    family = SimpleNamespace(ping=b": ping\n\n")
    events: Any = SimpleNamespace(
        family=family, is_open=True, keeps_up=True, write=sent.append, send=send
    )
    used = b'data: {"usage":{"prompt_tokens":11,"completion_tokens":5}}'
    pieces = (b'data: {"usage":null}\r\n\r', b"\n", used + end, b"")
    answer = answer_of(*pieces, kind=PeerKind.OPENAI)
    async with asyncio.timeout(90):
        figures = await relay._streamed(answer, live_request(), events, 30.0, Counter())
    assert sent[:2] == [b"data: 1\n\n", b'data: {"usage":null}\n\n']
    (last,) = sent[2:]
    assert last.startswith(used + end.replace(b"\r", b""))
    assert last.endswith(b"\n\n")
    assert figures == {"prompt_tokens": 11, "completion_tokens": 5}


async def test_a_forwarded_stream_is_cancelled_between_two_events() -> None:
    live = live_request()
    sent: list[bytes] = []

    async def send(part: bytes) -> None:
        """A client that reads slowly: an event is sent in parts."""
        sent.append(part[:4])
        if len(sent) == 3:
            live.cancel()
        await asyncio.sleep(0.01)
        sent.append(part[4:])

    events: Any = SimpleNamespace(
        family=SimpleNamespace(ping=b": ping\n\n"), is_open=True, keeps_up=False, send=send
    )
    async with asyncio.timeout(90):
        with pytest.raises(LmxError) as cancelled:
            answer = answer_of(b"data: 2\n\n")
            await relay._streamed(answer, live, events, 30.0, Counter())
    assert cancelled.value.code is ErrorCode.REQUEST_CANCELLED
    assert b"".join(sent) == b"data: 1\n\ndata: 2\n\n"


async def test_answers_of_peers_are_bounded_together() -> None:
    budget = ByteBudget(1_000, "answers of other machines")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 100

    response: Any = SimpleNamespace(content=SimpleNamespace(iter_any=pieces))
    with budget.share() as first:
        assert len(await relay._start(response, 10_000, first)) == 1_000
        with budget.share(100) as second, pytest.raises(UnavailableError) as refused:
            await relay._start(response, 10_000, second)
        assert refused.value.code is ErrorCode.QUEUE_FULL
    assert budget.held_bytes == 0
