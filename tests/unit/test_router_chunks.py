"""Chunks and streams without a socket."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.data import Accepted, Delta, Finished, Timings, Usage
from lmx.protocol.errors import ErrorCode, GenerationError
from lmx.protocol.states import FinishReason
from lmx.router.chunks import ChunkWriter, Clocked, Identity, fingerprint, timings_object
from lmx.router.worker_stream import CREDIT_DELTAS, WorkerStream

IDENTITY = Identity("chatcmpl-1", 1700000000, 'odd "id"\n', "fp_0")
CLOCKED = Clocked(total_s=1.0, first_token_s=0.5, load_s=0.25)


def finished(tokens: int = 3, decode_s: float = 0.5) -> Finished:
    return Finished(1, FinishReason.LENGTH, Usage(5, tokens, 2), Timings(0.1, 0.2, decode_s))


def parse(raw: bytes) -> list[dict[str, object]]:
    events = raw.decode().split("\n\n")
    assert events.pop() == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.booleans())
def test_any_text_survives_its_chunk(texts: list[str], include_usage: bool) -> None:
    writer = ChunkWriter(IDENTITY, include_usage=include_usage)
    raw = writer.deltas([Delta(1, text, 1) for text in texts])
    assert raw.count(b"\n") == 2 * sum(map(bool, texts)), "no newline but those between events"
    chunks = parse(raw)
    said = [chunk["choices"][0]["delta"] for chunk in chunks]  # type: ignore[index]
    assert said == [{"content": text} for text in texts if text]
    for chunk in chunks:
        assert chunk["model"] == IDENTITY.model_id
        assert ("usage" in chunk) is include_usage
        assert chunk.get("usage") is None


def test_the_last_chunks() -> None:
    (end,) = parse(ChunkWriter(IDENTITY, include_usage=False).last(finished(), CLOCKED))
    assert end["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    ]
    assert "usage" not in end
    end, usage = parse(ChunkWriter(IDENTITY, include_usage=True).last(finished(), CLOCKED))
    assert end["usage"] is None
    assert "timings" not in end
    assert usage["choices"] == []
    assert usage["timings"] == timings_object(finished(), CLOCKED)


@pytest.mark.parametrize(
    ("tokens", "decode_s", "rate"), [(3, 0.5, 4.0), (1, 0.0, 0.0), (0, 0.0, 0.0), (5, 0.0, 0.0)]
)
def test_tokens_per_second(tokens: int, decode_s: float, rate: float) -> None:
    assert timings_object(finished(tokens, decode_s), CLOCKED)["tokens_per_s"] == rate


def test_the_fingerprint_tells_versions_and_sources_apart() -> None:
    all_three = {fingerprint("1", "m", "s"), fingerprint("2", "m", "s"), fingerprint("1", "m", "t")}
    assert len(all_three) == 3


async def test_a_batch_holds_all_that_is_ready() -> None:
    stream = WorkerStream(1)
    stream.feed_accepted(Accepted(1, 5, 0))
    assert (await stream.accepted(1)).prompt_tokens == 5
    assert (await stream.take(0.01)).deltas == ()
    for text in ("a", "b"):
        stream.feed_delta(Delta(1, text, 1))
    stream.feed_finished(finished())
    batch = await stream.take(1)
    assert [delta.text for delta in batch.deltas] == ["a", "b"]
    assert batch.finished is not None


async def test_text_before_an_error_is_taken_first() -> None:
    stream = WorkerStream(1)
    stream.feed_delta(Delta(1, "a", 1))
    stream.fail(GenerationError(ErrorCode.WORKER_LOST, "gone"))
    stream.fail(GenerationError(ErrorCode.INTERNAL, "later ones change nothing"))
    assert (await stream.take(1)).deltas[0].text == "a"
    with pytest.raises(GenerationError, match="gone"):
        await stream.take(1)


async def test_credit_is_granted_in_halves_and_not_after_the_end() -> None:
    stream = WorkerStream(1)
    granted = []
    for _ in range(CREDIT_DELTAS):
        stream.feed_delta(Delta(1, "a", 1))
        await stream.take(1)
        granted.append(stream.grant_due())
    assert [due for due in granted if due] == [CREDIT_DELTAS // 2] * 2
    for _ in range(CREDIT_DELTAS):
        stream.feed_delta(Delta(1, "a", 1))
    await stream.take(1)
    stream.feed_finished(finished())
    assert stream.grant_due() == 0


async def test_no_more_is_held_than_credit_and_a_last_one() -> None:
    stream = WorkerStream(1)
    for _ in range(CREDIT_DELTAS + 1):
        stream.feed_delta(Delta(1, "a", 1))
    assert not stream.ended
    for _ in range(1000):
        stream.feed_delta(Delta(1, "a", 1))
    assert stream.ended
    assert len((await stream.take(1)).deltas) == CREDIT_DELTAS + 1


async def test_the_verdict_has_a_deadline() -> None:
    with pytest.raises(TimeoutError):
        await WorkerStream(1).accepted(0.01)


async def test_a_cancelled_take_leaves_no_timer() -> None:
    stream = WorkerStream(1)
    task = asyncio.create_task(stream.take(60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stream.feed_delta(Delta(1, "a", 1))
    assert (await stream.take(1)).deltas[0].text == "a"
