"""The engine thread, in this process, with the scripted engine."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog.testing
from scripted_engine import ScriptedEngine

from lmx.protocol.states import FinishReason, LoadPhase
from lmx.worker.engine import Engine, ModelFacts, RowRequest, RowSampling
from lmx.worker.engine_thread import EngineThread
from lmx.worker.row import Job, Row, RowCancelled, RowFailed, RowFinished, RowOutput

DEADLINE_S = 10.0


class Recorder:
    """Owns an engine thread, keeps what it reports."""

    def __init__(self, max_rows: int, options: dict[str, Any]) -> None:
        self.engine = ScriptedEngine(options)
        self.outputs: list[RowOutput] = []
        self.batches = 0
        self.phases: list[LoadPhase] = []
        self.facts: ModelFacts | None = None
        self.error: Exception | None = None
        loop = asyncio.get_running_loop()
        self.thread = EngineThread(lambda: self.engine, max_rows, self, loop)
        self._ids = itertools.count(1)

    def load_advanced(self, phase: LoadPhase, fraction: float | None, detail: str) -> None:
        self.phases.append(phase)

    def loaded(self, engine: Engine, facts: ModelFacts, load_s: float) -> None:
        self.facts = facts

    def load_failed(self, error: Exception) -> None:
        self.error = error

    def deliver(self, outputs: list[RowOutput]) -> None:
        self.batches += 1
        self.outputs += outputs
        for output in outputs:
            if output.end is not None:
                self.thread.clock.end()

    def engine_broke(self, error: Exception) -> None:
        self.error = error

    def submit(self, max_tokens: int = 100_000, stop: tuple[str, ...] = (), **script: Any) -> int:
        row_id = next(self._ids)
        prompt = self.engine.encode([{"content": json.dumps(script)}], {})
        row = RowRequest(row_id, prompt, max_tokens, RowSampling(0, 1, 0))
        self.thread.submit(Job(f"req-{row_id}", row, stop, time.monotonic()))
        return row_id

    def of(self, row_id: int) -> list[RowOutput]:
        return [output for output in self.outputs if output.row_id == row_id]

    def text(self, row_id: int) -> str:
        return "".join(output.text for output in self.of(row_id))

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            while not (found := condition()):
                await asyncio.sleep(0.002)
        return found

    async def end(self, row_id: int) -> Any:
        return await self.until(
            lambda: next((o.end for o in self.of(row_id) if o.end is not None), None)
        )


Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Make recorders; their threads are stopped afterwards, but for those that hang."""
    recorders: list[Recorder] = []

    async def begin(max_rows: int = 2, **options: Any) -> Recorder:
        recorder = Recorder(max_rows, options)
        recorders.append(recorder)
        recorder.thread.start()
        await recorder.until(lambda: recorder.facts or recorder.error)
        return recorder

    yield begin
    for recorder in recorders:
        recorder.thread.stop(1)


async def test_load_reports_and_then_rows_run(start: Start) -> None:
    recorder = await start()
    assert recorder.phases[-1] is LoadPhase.WARMUP
    row = recorder.submit(tokens=5)
    end = await recorder.end(row)
    assert isinstance(end, RowFinished)
    assert end.reason is FinishReason.STOP
    assert end.usage.completion_tokens == 5
    assert recorder.text(row) == "word " * 5


async def test_a_load_that_fails_is_reported(start: Start) -> None:
    recorder = await start(load_error="no")
    assert "no" in str(recorder.error)


async def test_length_ends_at_the_limit(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(max_tokens=3, tokens=10)
    end = await recorder.end(row)
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.LENGTH, 3)
    assert recorder.text(row) == "word " * 3


@pytest.mark.parametrize(
    ("stop", "expected"), [("d wo", "wor"), ("word word word ", ""), ("xyz", "word " * 6)]
)
async def test_stop_strings_across_tokens(start: Start, stop: str, expected: str) -> None:
    recorder = await start()
    row = recorder.submit(tokens=6, stop=(stop,))
    assert (await recorder.end(row)).reason is FinishReason.STOP
    assert recorder.text(row) == expected
    await recorder.until(lambda: recorder.thread.rows == 0)


async def test_a_stop_string_on_the_last_token_counts_as_stop(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(max_tokens=2, stop=("word word",), tokens=10)
    assert (await recorder.end(row)).reason is FinishReason.STOP
    assert recorder.text(row) == ""


async def test_held_text_is_given_out_at_the_limit(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(max_tokens=2, stop=("word word word",), tokens=10)
    assert (await recorder.end(row)).reason is FinishReason.LENGTH
    assert recorder.text(row) == "word word "


def test_what_the_detokenizer_held_may_complete_a_stop_string() -> None:
    class Late:
        """Gives out everything at the end."""

        def add(self, token: int) -> str:
            return ""

        def flush(self) -> str:
            return "abcd"

    request = RowRequest(1, [0], 2, RowSampling(0, 1, 0))
    row = Row(Job("req", request, ("bc",), 0.0), Late(), frozenset({9}), 1.0)
    assert row.advance(5, 2.0) is None
    output = row.advance(5, 4.0)
    assert output is not None
    assert isinstance(output.end, RowFinished)
    assert (output.text, output.tokens, output.end.reason) == ("a", 2, FinishReason.STOP)
    timings = output.end.timings
    assert (timings.queue_s, timings.prefill_s, timings.decode_s) == (1, 1, 2)


async def test_held_text_is_given_out_at_the_end(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(tokens=2, stop_text="<", stop=("<|end|>",))
    await recorder.end(row)
    assert recorder.text(row) == "word word <"
    assert sum(output.tokens for output in recorder.of(row)) == 3


async def test_rows_advance_together(start: Start) -> None:
    recorder = await start(max_rows=2)
    first = recorder.submit(tokens=50, step_s=0.002)
    second = recorder.submit(tokens=50, step_s=0.002)
    await recorder.end(first)
    await recorder.end(second)
    order = [output.row_id for output in recorder.outputs]
    switches = sum(a != b for a, b in itertools.pairwise(order))
    assert switches > 50
    assert recorder.engine.calls["step"] < 70


async def test_rows_are_admitted_in_order_of_arrival(start: Start) -> None:
    recorder = await start(max_rows=1)
    rows = [recorder.submit(tokens=length) for length in (30, 3, 20, 1)]
    for row in rows:
        await recorder.end(row)
    assert [output.row_id for output in recorder.outputs if output.end] == rows


async def test_timings_add_up(start: Start) -> None:
    recorder = await start(max_rows=1)
    began_s = time.monotonic()
    recorder.submit(tokens=10, step_s=0.01)
    row = recorder.submit(tokens=10, step_s=0.01, prefill_s=0.1)
    timings = (await recorder.end(row)).timings
    took_s = time.monotonic() - began_s
    assert timings.queue_s >= 0.09
    assert timings.prefill_s >= 0.1
    assert timings.decode_s >= 0.08
    assert timings.queue_s + timings.prefill_s + timings.decode_s <= took_s


@pytest.mark.parametrize("where", ["queued", "prefill", "decode"])
async def test_cancel_ends_a_row_before_the_next_step(start: Start, where: str) -> None:
    recorder = await start(max_rows=1)
    with structlog.testing.capture_logs() as logs:
        if where == "queued":
            recorder.submit(tokens=100, step_s=0.005)
        prefill_s = 60 if where == "prefill" else 0
        row = recorder.submit(tokens=100, step_s=0.005, prefill_s=prefill_s)
        steps = recorder.thread.steps
        await recorder.until(lambda: recorder.thread.steps > steps + 3)
        if where == "decode":
            await recorder.until(lambda: recorder.text(row))
        recorder.thread.cancel(row)
        assert isinstance(await recorder.end(row), RowCancelled)
    (event,) = [entry for entry in logs if entry["event"] == "stream.cancelled"]
    assert event["where"] == where
    assert 0 <= event["step_when_freed"] - event["step_at_cancel"] <= 1
    assert len([output for output in recorder.of(row) if output.end]) == 1
    if where != "queued":
        await recorder.until(lambda: recorder.thread.rows == 0)
        assert recorder.engine.calls["remove"] >= 1
    after = recorder.submit(tokens=1)
    await recorder.end(after)
    if where != "decode":
        assert recorder.text(row) == ""


async def test_cancel_of_an_ended_row_is_ignored(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(tokens=1)
    await recorder.end(row)
    recorder.thread.cancel(row)
    after = recorder.submit(tokens=1)
    await recorder.end(after)
    assert len([output for output in recorder.of(row) if output.end]) == 1


async def test_a_row_that_raises_fails_alone(start: Start) -> None:
    recorder = await start()
    good = recorder.submit(tokens=30, step_s=0.002)
    bad = recorder.submit(tokens=30, raise_at=2)
    assert isinstance(await recorder.end(bad), RowFailed)
    assert isinstance(await recorder.end(good), RowFinished)
    assert recorder.text(good) == "word " * 30
    await recorder.until(lambda: recorder.thread.rows == 0)


async def test_a_row_that_cannot_be_admitted_fails_alone(start: Start) -> None:
    recorder = await start()
    bad = recorder.submit(tokens=2, raise_at=50)
    assert isinstance(await recorder.end(bad), RowFailed)
    assert isinstance(await recorder.end(recorder.submit(tokens=1)), RowFinished)


async def test_a_step_that_raises_breaks_the_engine(start: Start) -> None:
    recorder = await start()
    recorder.submit(step_raise_at=1)
    await recorder.until(lambda: recorder.error)
    assert recorder.thread.stop(1), "the thread is over"


async def test_a_hang_shows_as_a_stall_and_long_steps_do_not_add_up(start: Start) -> None:
    recorder = await start()
    clock = recorder.thread.clock
    row = recorder.submit(tokens=10, step_s=0.05)
    worst = 0.0
    while not any(output.end for output in recorder.of(row)):
        worst = max(worst, clock.stalled_for_s(time.monotonic()))
        await asyncio.sleep(0.002)
    assert worst < 0.4
    assert clock.stalled_for_s(time.monotonic()) == 0
    recorder.submit(hang_at=1)
    await recorder.until(lambda: clock.stalled_for_s(time.monotonic()) > 0.3)
    assert not recorder.thread.stop(0.05), "stuck, and known to be"


async def test_prefill_chunks_are_progress(start: Start) -> None:
    recorder = await start()
    recorder.submit(prefill_s=0.6, tokens=1)
    began_s = time.monotonic()
    while time.monotonic() - began_s < 0.4:
        assert recorder.thread.clock.stalled_for_s(time.monotonic()) < 0.3
        await asyncio.sleep(0.01)


async def test_an_engine_rests_once_in_a_pause(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.worker.engine_thread._REST_AFTER_S", 0.02)
    recorder = await start(memory_bytes=123)
    await recorder.until(lambda: recorder.engine.calls["rest"] == 1)
    await asyncio.sleep(0.1)  # Time for more, if there were to be more.
    assert recorder.engine.calls["rest"] == 1
    await recorder.end(recorder.submit(tokens=1))
    await recorder.until(lambda: recorder.engine.calls["rest"] == 2)
    assert recorder.thread.memory_bytes == 123


async def test_a_loop_that_lags_holds_up_the_engine_not_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.worker.outbox.LIMIT_STEPS", 8)
    recorder = await start()
    row = recorder.submit(tokens=500)
    time.sleep(0.2)  # The loop stands still: that is what is tested.
    assert recorder.engine.calls["step"] < 20
    await recorder.end(row)
    assert recorder.text(row) == "word " * 500
    assert recorder.batches < 500
