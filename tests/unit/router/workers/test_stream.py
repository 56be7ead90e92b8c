"""A worker's stream as the router holds it: order, ends, credit, and what breaks the rules."""

import asyncio
from collections.abc import Sequence

import pytest

from lmx.protocol.errors import ErrorCode, GenerationError
from lmx.protocol.messages.data import Accepted, ChoiceEnded, Delta, Finished, Timings, Usage
from lmx.protocol.states import FinishReason
from lmx.router.workers.stream import CREDIT_DELTAS, WorkerStream


def finished() -> Finished:
    return Finished(1, Usage(5, 3, 2), Timings(0.1, 0.2, 0.5))


def ended(index: int = 0) -> ChoiceEnded:
    return ChoiceEnded(1, index, FinishReason.STOP)


async def test_a_batch_holds_all_that_is_ready() -> None:
    stream = WorkerStream(1)
    stream.feed_accepted(Accepted(1, 5, 0))
    assert (await stream.accepted(1, 1)).prompt_tokens == 5
    assert (await stream.next_batch(0.01)).deltas == ()
    for text in ("a", "b"):
        stream.feed_delta(Delta(1, text, 1))
    stream.feed_ended(ended())
    stream.feed_finished(finished())
    batch = await stream.next_batch(1)
    assert [delta.text for delta in batch.deltas] == ["a", "b"]
    assert batch.ended == (ended(),)
    assert batch.finished is not None


async def test_the_end_of_one_answer_wakes_the_taker() -> None:
    stream = WorkerStream(1, answers=2)
    taking = asyncio.create_task(stream.next_batch(60))
    await asyncio.sleep(0)
    stream.feed_ended(ended(1))
    batch = await taking
    assert (batch.deltas, batch.ended, batch.finished) == ((), (ended(1),), None)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ([Delta(1, "x", 1, index=2)], "answer 2 of 2"),
        ([Delta(1, "x", 1, index=-1)], "answer -1 of 2"),
        ([ended(2)], "ended answer 2"),
        ([ended(1), ended(1)], "ended answer 1"),
        ([ended(0), finished()], "with 1 answer(s) open"),
    ],
)
async def test_answers_that_are_not_there_lose_the_stream(facts: list[object], words: str) -> None:
    stream = WorkerStream(1, answers=2)
    for fact in facts:
        match fact:
            case Delta():
                stream.feed_delta(fact)
            case ChoiceEnded():
                stream.feed_ended(fact)
            case Finished():
                stream.feed_finished(fact)
    with pytest.raises(GenerationError) as caught:
        while True:
            assert (await stream.next_batch(1)).finished is None
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR
    assert words in caught.value.message


async def test_text_before_an_error_is_taken_first() -> None:
    stream = WorkerStream(1)
    stream.feed_delta(Delta(1, "a", 1))
    stream.fail(GenerationError(ErrorCode.WORKER_LOST, "gone"))
    stream.fail(GenerationError(ErrorCode.INTERNAL, "later ones change nothing"))
    assert (await stream.next_batch(1)).deltas[0].text == "a"
    with pytest.raises(GenerationError, match="gone"):
        await stream.next_batch(1)


async def test_credit_is_granted_in_halves_and_not_after_the_end() -> None:
    stream = WorkerStream(1)
    granted = []
    for _ in range(CREDIT_DELTAS):
        stream.feed_delta(Delta(1, "a", 1))
        await stream.next_batch(1)
        granted.append(stream.grant_due())
    assert [due for due in granted if due] == [CREDIT_DELTAS // 2] * 2
    for _ in range(CREDIT_DELTAS):
        stream.feed_delta(Delta(1, "a", 1))
    await stream.next_batch(1)
    stream.feed_ended(ended())
    stream.feed_finished(finished())
    assert stream.grant_due() == 0


@pytest.mark.parametrize("answers", [1, 3])
async def test_little_more_is_held_than_credit_was_given_for(answers: int) -> None:
    stream = WorkerStream(1, answers)
    # A hundred tool calls may have waited for credit.
    for _ in range(CREDIT_DELTAS + 100 * answers):
        stream.feed_delta(Delta(1, "a", 1))
    assert not stream.ended
    for _ in range(10_000):
        stream.feed_delta(Delta(1, "a", 1))
    assert stream.ended
    assert len((await stream.next_batch(1)).deltas) <= CREDIT_DELTAS + 1024 * answers


class Sink:
    """Keeps what it is given, while it takes anything."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.takes = True

    def __call__(self, deltas: Sequence[Delta]) -> bool:
        if self.takes:
            self.texts += [delta.text for delta in deltas]
        return self.takes


async def fed(stream: WorkerStream, *texts: str) -> bool:
    """Feed a message to a stream whose handler has had time to wait for it."""
    await asyncio.sleep(0)
    for text in texts:
        stream.feed_delta(Delta(1, text, 1))
    return stream.deliver()


async def test_what_comes_while_the_handler_waits_goes_past_it() -> None:
    stream = WorkerStream(1)
    stream.sink = sink = Sink()
    assert not await fed(stream, "a"), "nobody waits: the handler takes it in its order"
    assert [delta.text for delta in (await stream.next_batch(1)).deltas] == ["a"]
    taking = asyncio.create_task(stream.next_batch(60))
    assert await fed(stream, "b", "c")
    assert await fed(stream, "d")
    assert sink.texts == ["b", "c", "d"]
    assert not taking.done()
    # The end is the handler's, with the last text.
    stream.feed_accepted(Accepted(1, 5, 0))
    stream.feed_delta(Delta(1, "e", 1))
    stream.feed_ended(ended())
    stream.feed_finished(finished())
    assert not stream.deliver()
    batch = await taking
    assert [delta.text for delta in batch.deltas] == ["e"]
    assert batch.finished is not None
    assert sink.texts == ["b", "c", "d"]


async def test_what_the_sink_cannot_deliver_is_taken_in_order() -> None:
    stream = WorkerStream(1)
    stream.sink = sink = Sink()
    taking = asyncio.create_task(stream.next_batch(60))
    assert await fed(stream, "a")
    sink.takes = False
    assert not await fed(stream, "b")
    sink.takes = True
    assert not stream.deliver(), "the handler has been woken: what it has not taken is before this"
    stream.feed_delta(Delta(1, "c", 1))
    assert not stream.deliver()
    assert [delta.text for delta in (await taking).deltas] == ["b", "c"]
    assert sink.texts == ["a"]


async def test_what_the_sink_delivers_gives_credit_back() -> None:
    stream = WorkerStream(1)
    stream.sink = Sink()
    taking = asyncio.create_task(stream.next_batch(60))
    granted = 0
    for _ in range(CREDIT_DELTAS):
        assert await fed(stream, "a")
        granted += stream.grant_due()
    assert granted == CREDIT_DELTAS
    taking.cancel()


async def test_an_error_of_the_sink_is_raised_where_the_stream_is_taken() -> None:
    def fail(_: Sequence[Delta]) -> bool:
        raise ValueError("a bug")

    stream = WorkerStream(1)
    stream.sink = fail
    taking = asyncio.create_task(stream.next_batch(60))
    assert not await fed(stream, "a")
    with pytest.raises(ValueError, match="a bug"):
        await taking


async def test_nothing_goes_past_a_handler_that_was_cancelled() -> None:
    stream = WorkerStream(1)
    stream.sink = sink = Sink()
    taking = asyncio.create_task(stream.next_batch(60))
    await asyncio.sleep(0)
    taking.cancel()
    stream.feed_delta(Delta(1, "a", 1))
    assert not stream.deliver()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert sink.texts == []


async def test_the_verdict_has_a_deadline() -> None:
    with pytest.raises(TimeoutError):
        await WorkerStream(1).accepted(0.01, 0.01)


async def test_a_cancelled_take_leaves_no_timer() -> None:
    stream = WorkerStream(1)
    task = asyncio.create_task(stream.next_batch(60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stream.feed_delta(Delta(1, "a", 1))
    assert (await stream.next_batch(1)).deltas[0].text == "a"
