"""When a row may begin, by what the caches of all rows are counted at."""

import dataclasses
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate, Sampling, Search
from lmx.protocol.messages.specs import LogSpec, WorkerSpec
from lmx.protocol.models.memory import KvLayers, kv_bytes
from lmx.worker.engine.values import (
    BeamSearch,
    ModelFacts,
    SequenceRequest,
    SequenceSampling,
    StepOutput,
)
from lmx.worker.scheduling.batch import Batch, BatchLimits
from lmx.worker.scheduling.kv_admission import (
    AHEAD_TOKENS,
    ANSWER_TOKENS,
    KvAdmission,
    fitting_tokens,
)
from lmx.worker.scheduling.length_buckets import SequenceLength, padded_tokens
from lmx.worker.scheduling.prepare import prepare
from lmx.worker.scheduling.requests import (
    EngineRequest,
    RequestCancelled,
    RequestEnd,
    RequestFailed,
    RequestFinished,
    TextRules,
)
from tests.support.fakes.scripted_engine import ScriptedEngine
from tests.support.rigs.budgets import examples

PLAIN = (KvLayers(2, 4, step_tokens=256),)
LAYERS = [
    PLAIN,
    (KvLayers(1, 8, window_tokens=512, step_tokens=256), KvLayers(1, 2, step_tokens=256)),
    (KvLayers(3, 4, step_tokens=96), KvLayers(2, 0, fixed_bytes=1000, step_tokens=64)),
    (KvLayers(2, 4),),
    (KvLayers(1, 4, step_tokens=100),),
]


def row(
    sequence_id: int, prompt: int, max_tokens: int, width: int | None = None
) -> SequenceRequest:
    beam = BeamSearch(width, 1.0, frozenset()) if width else None
    return SequenceRequest(sequence_id, [7] * prompt, max_tokens, SequenceSampling(0.0), beam=beam)


def counted(*rows: SequenceRequest, layers: Sequence[KvLayers] = PLAIN) -> KvAdmission:
    admission = KvAdmission(layers, 1)
    for one in rows:
        admission.begin(one)
    return admission


def of(tokens: int, layers: Sequence[KvLayers] = PLAIN) -> int:
    return kv_bytes(layers, tokens)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], 0),
        ([row(1, 100, 50)], of(150)),
        # Of a long answer, a first part.
        ([row(1, 100, 100_000)], of(100 + ANSWER_TOKENS)),
        # Rows of like length are as long as the longest of them, each.
        ([row(1, 10, 10), row(2, 1000, 500), row(3, 1, 1)], 3 * of(1500)),
        # A row that is much longer than the others is in a group of its own.
        ([row(1, 10, 10), row(2, 3000, 500), row(3, 1, 1)], of(3500) + 2 * of(20)),
        # A search is a batch of its own.
        ([row(1, 100, 100, width=4)], 4 * of(200)),
        ([row(1, 3000, 10, width=2), row(2, 10, 10)], 2 * of(3010) + of(20)),
    ],
)
def test_what_rows_are_counted_at(rows: list[SequenceRequest], expected: int) -> None:
    assert counted(*rows).total_bytes == expected


@pytest.mark.parametrize("layers", LAYERS)
def test_a_row_grows_with_what_it_makes_some_tokens_ahead(layers: Sequence[KvLayers]) -> None:
    admission = counted(row(1, 100, 5000), layers=layers)
    for made in range(1, 5001):
        admission.advance(1)
        answer = min(5000, max(ANSWER_TOKENS, made + AHEAD_TOKENS))
        assert admission.total_bytes == of(100 + answer, layers)
    admission.end(1)
    admission.end(1)
    assert admission.total_bytes == 0


def test_requests_are_compared_by_bytes_then_by_tokens() -> None:
    known = counted(row(1, 10, 10), row(2, 2000, 10), row(3, 500, 10, width=8))
    assert max([[1], [2], [3], [1, 2]], key=known.size) == [3]
    unknown = counted(row(1, 10, 10), row(2, 2000, 10), layers=())
    assert unknown.size([2]) == (0, 2010)
    assert max([[1], [2]], key=unknown.size) == [2]


def test_without_a_limit_or_a_shape_every_row_fits() -> None:
    for admission in (KvAdmission(PLAIN, None), KvAdmission((), 0)):
        for sequence_id in range(5):
            assert admission.fits(row(sequence_id, 10_000, 10_000))
            admission.begin(row(sequence_id, 10_000, 10_000))


@given(st.sampled_from(LAYERS), st.integers(0, 20_000), st.integers(1, 4), st.integers(0, 3000))
def test_most_tokens_is_what_fits_and_no_more(
    layers: Sequence[KvLayers], limit: int, sequences: int, asked: int
) -> None:
    most = fitting_tokens(layers, limit, sequences, asked)
    assert 0 <= most <= asked
    assert most == 0 or sequences * kv_bytes(layers, most) <= limit
    assert most == asked or sequences * kv_bytes(layers, most + 1) > limit


class Engine(ScriptedEngine):
    """Its rows make tokens without an end; which of them end is the test's to say."""

    def __init__(self) -> None:
        super().__init__({})
        self.running: dict[int, SequenceRequest] = {}
        self.made: dict[int, int] = {}
        """How many tokens each row has made since it was admitted."""

    def can_admit(self) -> bool:
        return True

    def admit(self, row: SequenceRequest) -> None:
        self.running[row.sequence_id] = row
        self.made[row.sequence_id] = 0

    def remove(self, sequence_id: int) -> None:
        self.running.pop(sequence_id, None)

    def flush(self) -> StepOutput:
        return StepOutput()

    def preempt(self, sequence_id: int) -> Sequence[int] | None:
        row = self.running[sequence_id]
        if row.beam is not None:
            return None
        del self.running[sequence_id]
        return [*row.generated, *(1 for _ in range(self.made[sequence_id]))]


@settings(max_examples=examples(40), stateful_step_count=30)
class Admission(RuleBasedStateMachine):
    """Jobs come, grow and end in any order, through the batch that admits them."""

    @initialize(layers=st.sampled_from(LAYERS), steps=st.integers(1, 40))
    def begin(self, layers: Sequence[KvLayers], steps: int) -> None:
        self.layers = layers
        self.limit = kv_bytes(layers, 256 * steps)
        self.engine = Engine()
        self.batch = Batch(BatchLimits(1000, 1e9, self.limit, layers))
        self.order: list[int] = []
        self.begun: list[int] = []
        self.open: list[EngineRequest] = []
        self.ends: dict[int, RequestEnd] = {}
        self.jobs = 0

    @rule(
        prompt=st.integers(1, 3000),
        max_tokens=st.integers(1, 5000),
        n=st.integers(1, 3),
        beam=st.booleans(),
    )
    def come(self, prompt: int, max_tokens: int, n: int, beam: bool) -> None:
        self.jobs += 1
        ids = [10 * self.jobs + index for index in range(1 if beam else n)]
        rows = tuple(
            row(sequence_id, prompt, max_tokens, n if beam else None) for sequence_id in ids
        )
        job = EngineRequest(self.jobs, "r", rows, TextRules(frozenset({0})), n, 0.0)
        self.order += ids
        self.open.append(job)
        self.batch.add(job)
        self.admit()

    @precondition(lambda self: self.engine.running)
    @rule(tokens=st.integers(1, 600))
    def grow(self, tokens: int) -> None:
        for _ in range(tokens):
            made = [(i, 1, None) for i, r in self.engine.running.items() if r.beam is None]
            self.step(StepOutput(tokens=made))  # type: ignore[arg-type]
        self.admit()

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.engine.running)))
        if self.engine.running[sequence_id].beam is None:
            self.step(StepOutput(tokens=[(sequence_id, 0, None)]))  # type: ignore[list-item]
        else:
            del self.engine.running[sequence_id]
            self.step(StepOutput(found=[(sequence_id, ())]))
        self.admit()

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.engine.running)))
        del self.engine.running[sequence_id]
        self.step(StepOutput(failed=[(sequence_id, ValueError())]))
        self.admit()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.open))
        self.batch.cancel(self.engine, job.run_id, 0, 0)
        self.admit()

    @precondition(lambda self: self.engine.running)
    @rule()
    def press(self) -> None:
        before = set(self.engine.running)
        self.batch.preempt_largest(self.engine, 0.0)
        gone = before - set(self.engine.running)
        assert gone
        # What comes back is not new, and passes who waits.
        self.begun = [sequence_id for sequence_id in self.begun if sequence_id not in gone]
        self.admit()

    @invariant()
    def one_row_runs_if_any_waits(self) -> None:
        if hasattr(self, "batch") and self.open:
            assert self.engine.running

    @invariant()
    def counted_is_what_runs(self) -> None:
        if hasattr(self, "batch"):
            assert self.batch.kv_bytes == self.expected(self.engine.running)
            assert self.batch.rows == len(self.engine.running)

    def step(self, output: StepOutput) -> None:
        for sequence_id, _, _ in output.tokens:
            self.engine.made[sequence_id] += 1
        self.engine.step = lambda *_: output  # type: ignore[method-assign]
        self.batch.step(self.engine)

    def admit(self) -> None:
        self.take()
        before = dict(self.engine.running)
        self.batch.admit(self.engine)
        for sequence_id in list(self.engine.running)[len(before) :]:
            before[sequence_id] = self.engine.running[sequence_id]
            assert len(before) == 1 or self.expected(before) <= self.limit
            # No other that waited longer is passed.
            passed = [i for i in self.order[: self.order.index(sequence_id)] if i not in self.begun]
            ended = {i for i in passed if self.of_an_ended_job(i)}
            assert set(passed) == ended
            self.begun.append(sequence_id)
        self.take()

    def take(self) -> None:
        for output in self.batch.outputs:
            if isinstance(output, RequestFinished | RequestFailed | RequestCancelled):
                assert output.stream_id not in self.ends
                self.ends[output.stream_id] = output
                self.open = [job for job in self.open if job.run_id != output.stream_id]
        self.batch.outputs = []

    def of_an_ended_job(self, sequence_id: int) -> bool:
        return sequence_id // 10 in self.ends

    def expected(self, running: dict[int, SequenceRequest]) -> int:
        def tokens(one: SequenceRequest) -> int:
            made = self.engine.made[one.sequence_id]
            return len(one.prompt) + min(one.max_tokens, max(ANSWER_TOKENS, made + AHEAD_TOKENS))

        step = math.gcd(*(part.step_tokens for part in self.layers))

        def length(one: SequenceRequest) -> SequenceLength:
            steps = -(-(len(one.prompt) + self.engine.made[one.sequence_id]) // step)
            return SequenceLength((steps - 1) * step + 1, steps * step, tokens(one))

        alike = [length(one) for one in running.values() if one.beam is None]
        searches = sum(
            one.beam.width * kv_bytes(self.layers, tokens(one))
            for one in running.values()
            if one.beam is not None
        )
        together = sum(kv_bytes(self.layers, padded) for padded in padded_tokens(alike))
        return together + searches


TestAdmission = Admission.TestCase


SPEC = WorkerSpec(
    "0", "m", "/", "/", LogSpec("/"), "a:b", {}, 1, 8, 1, kv_cache_bytes=8 * 1024, kv_layers=PLAIN
)
FACTS = ModelFacts(8192, frozenset({7}), 1_000_000)


def prepared(spec: WorkerSpec, prompt_tokens: int, **search: object) -> EngineRequest:
    request = Generate(
        1, "r", Sampling(temperature=0), 0, prompt="x" * prompt_tokens,
        search=dataclasses.replace(Search(), **search),  # type: ignore[arg-type]
    )  # fmt: skip
    return prepare(ScriptedEngine({}), FACTS, spec, request, 1, lambda: 1, 0.0)


def test_a_prompt_that_never_fits_is_refused_with_figures() -> None:
    prepared(SPEC, 1023)
    with pytest.raises(RequestError) as caught:
        prepared(SPEC, 1024)
    assert caught.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.param == "prompt"
    for part in ("is 1024 tokens", "holds 1024 tokens", "memory_bytes", "concurrency"):
        assert part in caught.value.message
    prepared(dataclasses.replace(SPEC, kv_cache_bytes=None), 1024)


def test_each_beam_of_a_search_must_fit_but_answers_can_come_one_after_the_other() -> None:
    prepared(SPEC, 1000, n=4, best_of=4)
    prepared(SPEC, 200, n=1, best_of=4, beam=True)
    with pytest.raises(RequestError) as caught:
        prepared(SPEC, 300, n=1, best_of=4, beam=True)
    assert "256 tokens for each of 4 beams" in caught.value.message
