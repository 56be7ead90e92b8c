"""The engine thread, in this process, with the scripted engine."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog.testing

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Delta
from lmx.protocol.messages.tasks import Vectors
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.states import DeltaKind, FinishReason, LoadPhase, MemoryPressure
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import (
    BeamSearch,
    ModelFacts,
    PromptSource,
    SequenceRequest,
    SequenceSampling,
)
from lmx.worker.scheduling.batch import BatchLimits
from lmx.worker.scheduling.choice import Choice
from lmx.worker.scheduling.requests import (
    ChoiceFinished,
    EngineRequest,
    RequestCancelled,
    RequestEnd,
    RequestFailed,
    RequestFinished,
    RequestOutput,
    TextRules,
)
from lmx.worker.scheduling.thread import EngineThread
from tests.support.fakes.scripted_engine import DEVICE_FAILURE, ScriptedEngine, load

DEADLINE_S = 30.0
GREEDY = SequenceSampling(0)
ONE, TWO = Vectors(1, (0,), 1, b"1111"), Vectors(2, (0,), 1, b"2222")


class Recorder:
    """Owns an engine thread, keeps what it reports."""

    def __init__(self, limits: BatchLimits, options: dict[str, Any]) -> None:
        self.engine = ScriptedEngine(options)
        self.outputs: list[RequestOutput] = []
        self.results: dict[int, Any] = {}
        self.batches = 0
        self.phases: list[LoadPhase] = []
        self.facts: ModelFacts | None = None
        self.error: Exception | None = None
        loop = asyncio.get_running_loop()

        def loaded(advanced: LoadReporter) -> Engine:
            load(options, advanced)
            return self.engine.engine()

        self.thread = EngineThread(loaded, limits, self, loop)
        self.thread.report_to(self.deliver, self.computed)
        self._ids = itertools.count(1)

    def load_advanced(self, phase: LoadPhase, fraction: float | None, detail: str) -> None:
        self.phases.append(phase)

    def loaded(self, engine: Engine, load_s: float) -> None:
        self.facts = engine.facts

    def load_failed(self, error: Exception) -> None:
        self.error = error

    def deliver(self, outputs: list[RequestOutput]) -> None:
        self.batches += 1
        self.outputs += outputs
        for output in outputs:
            if isinstance(output, RequestEnd):
                self.thread.clock.end()

    def computed(self, task_id: int, result: Any) -> None:
        self.results[task_id] = result

    def engine_broke(self, error: Exception) -> None:
        self.error = error

    def submit(
        self,
        max_tokens: int = 100_000,
        stop: tuple[str, ...] = (),
        n: int = 1,
        beam: BeamSearch | None = None,
        prompt_logprobs: int | None = None,
        rules: TextRules | None = None,
        memory_wait_s: float | None = None,
        waited_s: float = 0.0,
        **script: Any,
    ) -> int:
        run_id = next(self._ids)
        encoded = self.engine.encode(PromptSource(messages=[{"content": json.dumps(script)}]))
        rows = tuple(
            SequenceRequest(
                1000 * run_id + index,
                encoded.tokens,
                max_tokens,
                GREEDY,
                prompt_logprobs=prompt_logprobs,
                beam=beam,
            )
            for index in range(1 if beam else n)
        )
        rules = rules or TextRules(eos=frozenset({0}), stop=stop)
        arrived_s = time.monotonic() - waited_s
        job = EngineRequest(
            run_id, f"req-{run_id}", rows, rules, n, arrived_s, memory_wait_s=memory_wait_s
        )
        self.thread.submit(job)
        return run_id

    def of(self, run_id: int) -> list[RequestOutput]:
        return [output for output in self.outputs if output.stream_id == run_id]

    def pieces(self, run_id: int, index: int = 0) -> list[Delta]:
        return [o for o in self.of(run_id) if isinstance(o, Delta) and o.index == index]

    def text(self, run_id: int, index: int = 0) -> str:
        return "".join(piece.text for piece in self.pieces(run_id, index))

    def reason(self, run_id: int) -> FinishReason:
        (end,) = [o for o in self.of(run_id) if isinstance(o, ChoiceFinished)]
        return end.reason

    def ends(self, run_id: int) -> list[RequestOutput]:
        return [output for output in self.of(run_id) if isinstance(output, RequestEnd)]

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            while not (found := condition()):
                await asyncio.sleep(0.002)
        return found

    async def end(self, run_id: int) -> Any:
        return (await self.until(lambda: self.ends(run_id)))[0]


Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Make recorders; their threads are stopped afterwards, but for those that hang."""
    recorders: list[Recorder] = []

    async def begin(
        max_rows: int = 2, max_queue_s: float = 300.0, kv_tokens: int | None = None, **options: Any
    ) -> Recorder:
        limits = BatchLimits(max_rows, max_queue_s, kv_tokens, [KvLayers(1, 1, step_tokens=256)])
        recorder = Recorder(limits, options)
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
    assert isinstance(end, RequestFinished)
    assert recorder.reason(row) is FinishReason.STOP
    assert end.usage.completion_tokens == 5
    assert recorder.text(row) == "word " * 5


async def test_a_load_that_fails_is_reported(start: Start) -> None:
    recorder = await start(load_error="no")
    assert "no" in str(recorder.error)


async def test_code_that_ends_its_thread_is_a_load_that_failed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: Any) -> None:
        raise SystemExit(3)

    monkeypatch.setitem(globals(), "load", leave)
    recorder = await start()
    assert "SystemExit(3)" in str(recorder.error)


async def test_length_ends_at_the_limit(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(max_tokens=3, tokens=10)
    end = await recorder.end(row)
    assert recorder.reason(row) is FinishReason.LENGTH
    assert end.usage.completion_tokens == 3
    assert recorder.text(row) == "word " * 3


@pytest.mark.parametrize(
    ("stop", "expected"), [("d wo", "wor"), ("word word word ", ""), ("xyz", "word " * 6)]
)
async def test_stop_strings_across_tokens(start: Start, stop: str, expected: str) -> None:
    recorder = await start()
    row = recorder.submit(tokens=6, stop=(stop,))
    await recorder.end(row)
    assert recorder.reason(row) is FinishReason.STOP
    assert recorder.text(row) == expected
    await recorder.until(lambda: recorder.thread.rows == 0)


async def test_a_stop_string_on_the_last_token_counts_as_stop(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(max_tokens=2, stop=("word word",), tokens=10)
    await recorder.end(row)
    assert recorder.reason(row) is FinishReason.STOP
    assert recorder.text(row) == ""


async def test_held_text_is_given_out_at_the_limit(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(max_tokens=2, stop=("word word word",), tokens=10)
    await recorder.end(row)
    assert recorder.reason(row) is FinishReason.LENGTH
    assert recorder.text(row) == "word word "


def test_what_the_detokenizer_held_may_complete_a_stop_string() -> None:
    class Late:
        """Gives out everything at the end."""

        def add(self, token: int) -> str:
            return ""

        def flush(self) -> str:
            return "abcd"

    request = SequenceRequest(1, [0], 2, GREEDY)
    rules = TextRules(eos=frozenset({9}), stop=("bc",))
    out: list[RequestOutput] = []
    row = Choice(EngineRequest(1, "req", (request,), rules, 1, 0.0), 0, Late(), lambda token: b"")
    assert not row.advance(5, None, out)
    assert row.advance(5, None, out)
    assert out == [Delta(1, "a", 2), ChoiceFinished(1, 0, FinishReason.STOP, "bc", 2, 0.0)]


async def test_held_text_is_given_out_at_the_end(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(tokens=2, stop_text="<", stop=("<|end|>",))
    await recorder.end(row)
    assert recorder.text(row) == "word word <"
    assert sum(piece.tokens for piece in recorder.pieces(row)) == 3


async def test_rows_advance_together(start: Start) -> None:
    recorder = await start(max_rows=2)
    first = recorder.submit(tokens=50, step_s=0.002)
    second = recorder.submit(tokens=50, step_s=0.002)
    await recorder.end(first)
    await recorder.end(second)
    order = [output.stream_id for output in recorder.outputs]
    switches = sum(a != b for a, b in itertools.pairwise(order))
    assert switches > 50
    assert recorder.engine.calls["step"] < 70


async def test_rows_are_admitted_in_order_of_arrival(start: Start) -> None:
    recorder = await start(max_rows=1)
    rows = [recorder.submit(tokens=length) for length in (30, 3, 20, 1)]
    for row in rows:
        await recorder.end(row)
    assert [o.stream_id for o in recorder.outputs if isinstance(o, RequestEnd)] == rows


async def test_timings_add_up(start: Start) -> None:
    recorder = await start(max_rows=1)
    began_s = time.monotonic()
    # It lasts longer than this test may be held up before it submits the other.
    recorder.submit(tokens=10, step_s=0.05)
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
        assert isinstance(await recorder.end(row), RequestCancelled)
    (event,) = [entry for entry in logs if entry["event"] == "stream.cancelled"]
    assert event["where"] == where
    assert 0 <= event["step_when_freed"] - event["step_at_cancel"] <= 1
    assert len(recorder.ends(row)) == 1
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
    assert len(recorder.ends(row)) == 1


async def test_a_row_that_raises_fails_alone(start: Start) -> None:
    recorder = await start()
    good = recorder.submit(tokens=30, step_s=0.002)
    bad = recorder.submit(tokens=30, raise_at=2)
    failed = await recorder.end(bad)
    assert (type(failed), failed.code) == (RequestFailed, ErrorCode.ENGINE_ERROR)
    assert recorder.text(bad) == "word " * 2
    assert isinstance(await recorder.end(good), RequestFinished)
    assert recorder.text(good) == "word " * 30
    await recorder.until(lambda: recorder.thread.rows == 0)


async def test_a_row_that_cannot_be_admitted_fails_alone(start: Start) -> None:
    recorder = await start()
    bad = recorder.submit(tokens=2, raise_at=50)
    assert isinstance(await recorder.end(bad), RequestFailed)
    assert isinstance(await recorder.end(recorder.submit(tokens=1)), RequestFinished)


async def test_a_row_that_cannot_be_made_fails_alone_and_keeps_no_place(start: Start) -> None:
    def raises() -> Any:
        raise ValueError("no such parser")

    recorder = await start(max_rows=1)
    rules = TextRules(frozenset({0}), make_parser=raises)
    for _ in range(2):
        assert isinstance(await recorder.end(recorder.submit(rules=rules)), RequestFailed)
    assert isinstance(await recorder.end(recorder.submit(tokens=1)), RequestFinished)
    await recorder.until(lambda: recorder.thread.rows == 0)


async def test_an_echo_that_raises_fails_alone(start: Start) -> None:
    recorder = await start()
    good = recorder.submit(tokens=30, step_s=0.002)
    # Its row asks for no logprobs of the prompt, so that there are none to echo.
    bad = recorder.submit(rules=TextRules(frozenset({0}), logprobs=True, echo=True))
    assert isinstance(await recorder.end(bad), RequestFailed)
    assert isinstance(await recorder.end(good), RequestFinished)
    assert recorder.text(good) == "word " * 30


async def test_a_long_prompt_is_echoed_in_several_pieces(start: Start) -> None:
    recorder = await start()
    rules = TextRules(frozenset({0}), echo=True)
    job = recorder.submit(tokens=1, rules=rules, long="x" * 10_000)
    await recorder.end(job)
    *echoed, answer = (piece.text for piece in recorder.pieces(job))
    assert answer == "word "
    assert json.loads("".join(echoed)) == {"tokens": 1, "long": "x" * 10_000}
    assert max(map(len, echoed)) < 5000


async def test_a_prompt_is_scored_once_for_all_answers(start: Start) -> None:
    """For those too that begin when others have ended; an echo may need more alternatives."""
    recorder = await start(max_rows=1)
    asked: list[int | None] = []
    admit = recorder.engine.admit

    def noted(row: SequenceRequest) -> None:
        asked.append(row.prompt_logprobs)
        admit(row)

    recorder.engine.admit = noted
    rules = TextRules(frozenset({0}), logprobs=True, echo=True, prompt_logprobs=1)
    job = recorder.submit(tokens=2, n=3, rules=rules, prompt_logprobs=2, long="x" * 5000)
    end = await recorder.end(job)
    assert isinstance(end, RequestFinished)
    assert asked == [2, None, None]
    reported = [piece for piece in recorder.pieces(job) if piece.kind is DeltaKind.PROMPT]
    entries = [entry for piece in reported for entry in piece.logprobs]
    assert len(reported) == 2
    assert recorder.pieces(job)[:2] == reported, "they come before the answers"
    assert len(entries) == end.usage.prompt_tokens
    assert entries[0].logprob is None
    assert [entry.rank for entry in entries[1:]] == list(range(1, len(entries)))
    assert {len(entry.top) for entry in entries[1:]} == {1}
    for index in range(3):
        echoed = [
            entry
            for piece in recorder.pieces(job, index)
            if piece.kind is DeltaKind.CONTENT
            for entry in piece.logprobs
        ]
        assert [entry.logprob for entry in echoed[: len(entries)]] == [
            entry.logprob for entry in entries
        ]


async def test_an_answer_of_no_tokens_is_the_echo_alone(start: Start) -> None:
    recorder = await start()
    beside = recorder.submit(tokens=30, step_s=0.002)
    rules = TextRules(frozenset({0}), echo=True)
    job = recorder.submit(max_tokens=0, n=2, rules=rules, tokens=5)
    end = await recorder.end(job)
    assert [recorder.text(job, index) for index in (0, 1)] == ['{"tokens": 5}'] * 2
    reasons = [one.reason for one in recorder.of(job) if isinstance(one, ChoiceFinished)]
    assert reasons == [FinishReason.LENGTH] * 2
    assert end.usage.completion_tokens == 0
    await recorder.end(beside)
    assert recorder.text(beside) == "word " * 30
    await recorder.until(lambda: recorder.thread.rows == 0)


async def test_a_step_that_raises_breaks_the_engine(start: Start) -> None:
    recorder = await start()
    recorder.submit(step_raise_at=1)
    await recorder.until(lambda: recorder.error)
    assert recorder.thread.stop(1), "the thread is over"


@pytest.mark.parametrize("where", [{"device_in_prefill": True}, {"device_at": 1}, None])
async def test_a_device_that_fails_breaks_the_engine_whoever_finds_it(
    start: Start, where: dict[str, Any] | None
) -> None:
    recorder = await start()
    runs = recorder.submit(tokens=100_000, step_s=0.001)
    await recorder.until(lambda: recorder.pieces(runs))
    finds = None
    if where is not None:
        finds = recorder.submit(**where)
    else:

        def piece() -> None:
            raise ValueError("of a layer") from RuntimeError(DEVICE_FAILURE)

        recorder.thread.submit_piece(1, piece, "")
    await recorder.until(lambda: recorder.error)
    assert recorder.thread.stop(1), "the thread is over"
    for run_id in (runs, finds):
        assert run_id is None or recorder.ends(run_id) == [], "its owner is told by engine_broke"
    assert recorder.results == {}, "and so is the owner of the piece"


@pytest.mark.parametrize("bad", [False, True])
async def test_the_devices_memory_is_given_back_after_all_else(start: Start, bad: bool) -> None:
    recorder = await start(bad_release=bad)
    recorder.submit(tokens=1)
    assert recorder.thread.stop(5), "the thread is over"
    assert list(recorder.engine.calls)[-2:] == ["close", "release"]
    assert recorder.error is None


async def test_a_broken_engine_gives_its_memory_back_and_writes_nothing(start: Start) -> None:
    recorder = await start(bad_release=True)
    recorder.submit(step_raise_at=0)
    await recorder.until(lambda: recorder.error)
    assert recorder.thread.stop(5)
    assert "release" in recorder.engine.calls
    assert "close" not in recorder.engine.calls


async def test_who_has_no_row_yet_is_not_blamed_for_a_broken_engine(start: Start) -> None:
    recorder = await start(max_rows=1)
    breaks = recorder.submit(step_raise_at=3, step_s=0.02)
    waits = recorder.submit(tokens=1)
    await recorder.until(lambda: recorder.error)
    failed = await recorder.end(waits)
    assert (failed.code, "try again" in failed.message) == (ErrorCode.WORKER_LOST, True)
    assert recorder.ends(breaks) == [], "its owner is told by engine_broke"


async def begins_anew(recorder: Recorder) -> None:
    """Wait until the time for which the engine has stood still has begun again five times, as it
    does with each step and each chunk."""
    before_s, times = 0.0, 0

    def again() -> bool:
        nonlocal before_s, times
        stalled_s = recorder.thread.clock.stalled_for_s(time.monotonic())
        times += stalled_s < before_s
        before_s = stalled_s
        return times >= 5

    await recorder.until(again)


async def test_a_hang_shows_as_a_stall_and_long_steps_do_not_add_up(start: Start) -> None:
    recorder = await start()
    clock = recorder.thread.clock
    row = recorder.submit(tokens=100_000, step_s=0.05)
    await begins_anew(recorder)
    recorder.thread.cancel(row)
    await recorder.end(row)
    assert clock.stalled_for_s(time.monotonic()) == 0
    recorder.submit(hang_at=1)
    await recorder.until(lambda: clock.stalled_for_s(time.monotonic()) > 0.3)
    assert not recorder.thread.stop(0.05), "stuck, and known to be"


async def test_prefill_chunks_are_progress(start: Start) -> None:
    recorder = await start()
    row = recorder.submit(prefill_s=600.0, tokens=1)
    await begins_anew(recorder)
    assert not recorder.ends(row)
    recorder.thread.cancel(row)
    await recorder.end(row)


async def test_an_engine_rests_once_in_a_pause(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.worker.scheduling.thread._REST_AFTER_S", 0.02)
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
    monkeypatch.setattr("lmx.worker.scheduling.outbox.LIMIT_STEPS", 8)
    recorder = await start()
    row = recorder.submit(tokens=500)
    time.sleep(0.2)  # The loop stands still: that is what is tested.
    assert recorder.engine.calls["step"] < 20
    await recorder.end(row)
    assert recorder.text(row) == "word " * 500
    assert recorder.batches < 500


async def test_first_tokens_and_ends_wait_for_no_other_steps(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.worker.scheduling.outbox.COALESCE_S", 2 * DEADLINE_S)
    recorder = await start()
    long = recorder.submit(tokens=100_000, step_s=0.02)
    await recorder.until(lambda: recorder.text(long))
    short = recorder.submit(tokens=20)
    await recorder.until(lambda: recorder.text(short))
    await recorder.end(short)
    assert recorder.text(short) == "word " * 20
    assert recorder.batches < 20, "what was made in between has waited"


async def test_several_answers_are_rows_of_one_job(start: Start) -> None:
    recorder = await start(max_rows=2)
    job = recorder.submit(tokens=5, n=3)
    end = await recorder.end(job)
    assert isinstance(end, RequestFinished)
    assert [recorder.text(job, index) for index in range(3)] == ["word " * 5] * 3
    assert end.usage.completion_tokens == 15
    assert end.usage.prompt_tokens == len(json.dumps({"tokens": 5}))
    assert sorted(o.choice for o in recorder.of(job) if isinstance(o, ChoiceFinished)) == [0, 1, 2]
    assert recorder.of(job)[-1] is end


async def test_one_bad_answer_takes_the_whole_job(start: Start) -> None:
    recorder = await start(max_rows=4)
    other = recorder.submit(tokens=30, step_s=0.002)
    job = recorder.submit(tokens=10, n=3, fail_at=4)
    assert isinstance(await recorder.end(job), RequestFailed)
    assert isinstance(await recorder.end(other), RequestFinished)
    await recorder.until(lambda: recorder.thread.rows == 0)
    assert len(recorder.ends(job)) == 1


async def test_cancel_takes_all_rows_of_a_job(start: Start) -> None:
    recorder = await start(max_rows=2)
    job = recorder.submit(tokens=10_000, step_s=0.005, n=4)
    after = recorder.submit(tokens=1)
    await recorder.until(lambda: recorder.text(job, 1))
    recorder.thread.cancel(job)
    assert isinstance(await recorder.end(job), RequestCancelled)
    assert isinstance(await recorder.end(after), RequestFinished)


async def test_a_beam_search_waits_for_its_places_and_is_not_passed(start: Start) -> None:
    recorder = await start(max_rows=3)
    first = recorder.submit(tokens=10, step_s=0.01)
    beam = recorder.submit(tokens=4, n=2, beam=BeamSearch(3, 1.0, frozenset({0})))
    last = recorder.submit(tokens=1)
    for job in (first, beam, last):
        assert isinstance(await recorder.end(job), RequestFinished)
    ends = [o.stream_id for o in recorder.outputs if isinstance(o, RequestEnd)]
    assert ends == [first, beam, last]
    assert recorder.text(beam, 0) == "word " * 4
    assert recorder.text(beam, 1) == "word " * 4
    (usage,) = [o.usage for o in recorder.of(beam) if isinstance(o, RequestFinished)]
    assert usage.completion_tokens == 8


async def test_a_beam_search_says_when_it_was_read_and_how_long_it_wrote(start: Start) -> None:
    """Its text comes all at the end: that is not its first token."""
    recorder = await start()
    # The scripted engine finds all in a single step.
    job = recorder.submit(
        tokens=10, step_s=0.2, prefill_s=0.3, beam=BeamSearch(2, 1.0, frozenset({0}))
    )
    end = await recorder.end(job)
    assert isinstance(end, RequestFinished)
    assert end.timings.prefill_s >= 0.25 and end.timings.decode_s >= 0.15


async def test_tasks_run_between_steps_and_fail_alone(start: Start) -> None:
    recorder = await start()
    job = recorder.submit(tokens=50, step_s=0.002)

    def bad() -> Vectors:
        raise ValueError

    for task_id, piece in enumerate([lambda: ONE, bad, lambda: TWO]):
        recorder.thread.submit_piece(task_id, piece, "")
    await recorder.until(lambda: len(recorder.results) == 3)
    assert not recorder.ends(job), "a task waits for no row"
    assert (recorder.results[0], recorder.results[2]) == (ONE, TWO)
    assert isinstance(recorder.results[1], ValueError)
    assert isinstance(await recorder.end(job), RequestFinished)
    assert recorder.thread.clock.in_flight == 0


async def test_a_piece_is_called_until_it_is_done_and_no_other_one_before(start: Start) -> None:
    recorder = await start()
    job = recorder.submit(tokens=50, step_s=0.002)
    calls: list[int] = []

    def in_parts(task_id: int, parts: int) -> Callable[[], Vectors | None]:
        def piece() -> Vectors | None:
            calls.append(task_id)
            return ONE if calls.count(task_id) == parts else None

        return piece

    for task_id in (1, 2):
        recorder.thread.submit_piece(task_id, in_parts(task_id, 3), "")
    await recorder.until(lambda: len(recorder.results) == 2)
    assert calls == [1, 1, 1, 2, 2, 2]
    assert not recorder.ends(job), "steps are made between the parts"
    assert isinstance(await recorder.end(job), RequestFinished)


async def test_a_piece_that_is_not_done_can_be_dropped(start: Start) -> None:
    recorder = await start()
    called = threading.Event()

    def endless() -> None:
        called.set()

    recorder.thread.submit_piece(1, endless, "")
    recorder.thread.submit_piece(2, lambda: TWO, "")
    await recorder.until(called.is_set)
    recorder.thread.drop_piece(1)
    await recorder.until(lambda: recorder.thread.clock.in_flight == 0)
    assert recorder.results == {1: None, 2: TWO}


async def test_a_cancelled_task_is_not_computed(start: Start) -> None:
    recorder = await start()
    recorder.submit(prefill_s=0.2, tokens=1)
    await recorder.until(lambda: recorder.thread.rows == 1)
    recorder.thread.submit_piece(1, lambda: ONE, "")
    recorder.thread.submit_piece(2, lambda: TWO, "")
    recorder.thread.drop_piece(2)
    await recorder.until(lambda: recorder.thread.clock.in_flight == 0)
    assert recorder.results == {1: ONE, 2: None}


async def test_a_row_waits_for_memory_and_is_not_passed(start: Start) -> None:
    recorder = await start(max_rows=4, kv_tokens=1024)
    # Each is counted at 512 tokens, the second one at 1,024: prompt and answer, by steps.
    first = recorder.submit(max_tokens=200, tokens=100, step_s=0.005)
    large = recorder.submit(max_tokens=700, tokens=3)
    small = recorder.submit(max_tokens=10, tokens=1)
    await recorder.until(lambda: recorder.text(first))
    assert recorder.thread.rows == 1
    for job in (first, large, small):
        assert isinstance(await recorder.end(job), RequestFinished)
    ends = [o.stream_id for o in recorder.outputs if isinstance(o, RequestEnd)]
    assert ends[0] == first
    await recorder.until(lambda: recorder.thread.rows == 0)
    assert recorder.thread.kv_bytes == 0


async def test_a_row_larger_than_all_memory_runs_alone(start: Start) -> None:
    recorder = await start(max_rows=4, kv_tokens=256)
    jobs = [recorder.submit(max_tokens=2000, tokens=20, step_s=0.001) for _ in range(3)]
    most_rows = 0
    while not all(recorder.ends(job) for job in jobs):
        most_rows = max(most_rows, recorder.thread.rows)
        await asyncio.sleep(0)
    assert most_rows == 1


async def test_one_that_came_late_with_its_media_waits_no_longer_than_others(start: Start) -> None:
    recorder = await start(max_rows=1, max_queue_s=300.0)
    running = recorder.submit(tokens=100_000, step_s=0.005)
    await recorder.until(lambda: recorder.pieces(running))
    before = recorder.submit(tokens=1)
    late = recorder.submit(tokens=1, waited_s=300.0)
    assert (await recorder.end(late)).code is ErrorCode.QUEUE_TIMEOUT
    assert not recorder.ends(before)
    recorder.thread.cancel(running)


async def test_requests_are_counted_and_not_their_rows(start: Start) -> None:
    recorder = await start(max_rows=4)
    several = recorder.submit(tokens=100_000, step_s=0.005, n=3)
    await recorder.until(lambda: recorder.thread.rows == 3)
    assert recorder.thread.requests == 1
    other = recorder.submit(tokens=100_000, step_s=0.005)
    await recorder.until(lambda: recorder.thread.requests == 2)
    for each in (several, other):
        recorder.thread.cancel(each)
    await recorder.until(lambda: recorder.thread.requests == 0)


async def test_a_job_that_waits_too_long_is_given_up_while_another_runs(start: Start) -> None:
    recorder = await start(max_rows=1, max_queue_s=0.1)
    running = recorder.submit(tokens=100, step_s=0.005)
    waiting = recorder.submit(tokens=1)
    end = await recorder.end(waiting)
    assert isinstance(end, RequestFailed)
    assert end.code is ErrorCode.QUEUE_TIMEOUT
    assert "max_queue_s" in end.message
    assert isinstance(await recorder.end(running), RequestFinished), (
        "which took longer, but has a row"
    )
    ends = [output.stream_id for output in recorder.outputs if isinstance(output, RequestEnd)]
    assert ends == [waiting, running]
    assert recorder.thread.clock.in_flight == 0


async def test_soft_pressure_shrinks_and_rows_run_alone_until_it_is_over(start: Start) -> None:
    recorder = await start(max_rows=4, memory_bytes=100, grow_bytes_per_token=10)
    thread = recorder.thread
    first = recorder.submit(tokens=100_000, step_s=0.005)
    await recorder.until(lambda: len(recorder.text(first)) > 20)
    thread.set_memory_pressure(MemoryPressure.SOFT)
    await recorder.until(lambda: recorder.engine.calls["shrink"] == 1)
    await recorder.until(lambda: 100 < thread.memory_bytes < thread.peak_memory_bytes)
    second = recorder.submit(tokens=100_000, step_s=0.005)
    third = recorder.submit(tokens=3)
    steps = thread.steps
    await recorder.until(lambda: thread.steps > steps + 3)
    assert (thread.rows, recorder.pieces(second)) == (1, [])
    thread.cancel(first)
    await recorder.until(lambda: recorder.text(second))
    assert (thread.rows, recorder.pieces(third)) == (1, [])
    thread.set_memory_pressure(MemoryPressure.NONE)
    await recorder.end(third)
    assert not recorder.ends(second), "it runs beside it"
    assert recorder.engine.calls["regrow"] == 1
    thread.cancel(second)
    assert isinstance(await recorder.end(second), RequestCancelled)


async def test_what_waits_for_memory_waits_no_longer_than_it_would_for_a_model(
    start: Start,
) -> None:
    recorder = await start(max_rows=4)
    running = recorder.submit(tokens=400, step_s=0.005)
    await recorder.until(lambda: recorder.text(running))
    recorder.thread.set_memory_pressure(MemoryPressure.SOFT)
    patient = recorder.submit(tokens=3)
    other = recorder.submit(tokens=3, memory_wait_s=0.1)
    end = await recorder.end(other)
    assert (type(end), end.code) == (RequestFailed, ErrorCode.INSUFFICIENT_MEMORY)
    assert "load_wait_s" in end.message
    assert not recorder.ends(running)
    recorder.thread.set_memory_pressure(MemoryPressure.NONE)
    assert isinstance(await recorder.end(patient), RequestFinished)


async def test_under_hard_pressure_the_newest_of_the_largest_is_preempted_and_comes_back(
    start: Start,
) -> None:
    recorder = await start(max_rows=8)
    thread, calls = recorder.thread, recorder.engine.calls
    words = [f"{number} " for number in range(240)]
    small = recorder.submit(tokens=400, step_s=0.005)
    older = recorder.submit(max_tokens=900, pieces=words, step_s=0.005)
    newer = recorder.submit(max_tokens=900, pieces=words, n=2, step_s=0.005)
    last = recorder.submit(tokens=400, step_s=0.005)
    await recorder.until(lambda: recorder.text(last))
    thread.set_memory_pressure(MemoryPressure.HARD)
    await recorder.until(lambda: thread.preempted_total == 1)
    assert (thread.rows, calls["preempt"]) == (3, 2)
    batches = recorder.batches
    await recorder.until(lambda: recorder.batches > batches)  # Of all that was made before.
    made = recorder.text(newer)
    assert 0 < len(made) < len("".join(words)), "it has begun, and it has not ended"
    steps = thread.steps
    await recorder.until(lambda: thread.steps > steps + 3)
    assert recorder.text(newer) == made, "it waits while others run"
    thread.set_memory_pressure(MemoryPressure.NONE)
    for job in (small, older, newer, last):
        assert isinstance(await recorder.end(job), RequestFinished)
    assert [recorder.text(newer, index) for index in (0, 1)] == ["".join(words)] * 2
    assert recorder.text(older) == "".join(words)
    assert recorder.ends(newer)[0].usage.completion_tokens == 2 * len(words)


async def test_an_echoed_prompt_is_given_out_once(start: Start) -> None:
    recorder = await start(max_rows=4)
    rules = TextRules(eos=frozenset({0}), echo=True, prompt="")
    other = recorder.submit(tokens=400, step_s=0.005)
    job = recorder.submit(tokens=90, step_s=0.005, rules=rules)
    await recorder.until(lambda: len(recorder.pieces(job)) > 3)
    recorder.thread.set_memory_pressure(MemoryPressure.HARD)
    await recorder.until(lambda: recorder.thread.preempted_total)
    recorder.thread.set_memory_pressure(MemoryPressure.NONE)
    await recorder.end(job)
    assert recorder.text(job).count("tokens") == 1
    assert recorder.text(job).endswith("word " * 90)
    recorder.thread.cancel(other)


async def test_pressure_on_an_idle_engine_fails_nothing_and_is_not_kept(start: Start) -> None:
    recorder = await start()
    for level in (MemoryPressure.HARD, MemoryPressure.NONE):
        recorder.thread.set_memory_pressure(level)
    await recorder.until(lambda: recorder.engine.calls["regrow"])
    assert isinstance(await recorder.end(recorder.submit(tokens=1)), RequestFinished)


async def test_pressure_reported_many_times_in_one_step_preempts_one(start: Start) -> None:
    recorder = await start(max_rows=4)
    jobs = [recorder.submit(tokens=4, step_s=0.3) for _ in range(3)]
    await recorder.until(lambda: recorder.text(jobs[-1]))
    for _ in range(3):
        recorder.thread.set_memory_pressure(MemoryPressure.HARD)
    ends = [await recorder.end(job) for job in jobs]
    assert [type(end) for end in ends] == [RequestFinished] * 3
    assert (recorder.thread.preempted_total, recorder.engine.calls["preempt"]) == (1, 1)


async def test_a_row_without_memory_fails_alone_and_says_so(start: Start) -> None:
    class Short:
        """There is no memory for its text."""

        def add(self, token: int) -> str:
            raise MemoryError

    recorder = await start()
    detokenizer = recorder.engine.detokenizer
    recorder.engine.detokenizer = lambda markers, after=(): Short()
    bad = await recorder.end(recorder.submit(tokens=1))
    assert isinstance(bad, RequestFailed)
    assert bad.code is ErrorCode.INSUFFICIENT_MEMORY
    recorder.engine.detokenizer = detokenizer
    assert isinstance(await recorder.end(recorder.submit(tokens=1)), RequestFinished)


async def test_a_step_sees_that_somebody_waits_for_its_end(start: Start) -> None:
    """It can pause then: a request that has come, or a cancellation, is handled before the next."""
    recorder = await start()
    engine, seen = recorder.engine, []
    plain = engine.step

    def step(interrupted: Callable[[], bool]) -> Any:
        until_s = time.monotonic() + DEADLINE_S
        seen.append(interrupted())
        while not interrupted() and time.monotonic() < until_s:
            time.sleep(0.001)
        seen.append(interrupted())
        return plain()

    engine.step = step
    row = recorder.submit(tokens=100)
    await recorder.until(lambda: seen)
    assert seen == [False], "it is in the middle of a step"
    recorder.submit(tokens=100)
    await recorder.until(lambda: len(seen) == 3)
    assert seen == [False, True, False]
    assert recorder.thread.rows == 2
    recorder.thread.cancel(row)
    await recorder.until(lambda: len(seen) == 5)
    assert seen[3:] == [True, False]
    assert recorder.thread.rows == 1
