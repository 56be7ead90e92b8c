"""Who gives its memory back when the machine runs out of it, and who comes back when."""

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import BACKGROUND_PRIORITY, Delta
from lmx.protocol.models.memory import KvLayers
from lmx.worker.engine.values import (
    BeamSearch,
    PromptSource,
    SequenceRequest,
    SequenceSampling,
    StepOutput,
)
from lmx.worker.scheduling import batch
from lmx.worker.scheduling.batch import Batch, BatchLimits
from lmx.worker.scheduling.requests import (
    EngineRequest,
    MediaReleased,
    MediaWanted,
    RequestEnd,
    RequestFailed,
    RequestFinished,
    TextRules,
)
from tests.support.fakes import scripted_engine
from tests.support.fakes.scripted_engine import ScriptedEngine, ScriptedMedia

GREEDY = SequenceSampling(0.0)
TEXT = "".join(f"{number} " for number in range(50))


class Rig:
    """A batch with an engine, and a clock that is the test's."""

    def __init__(self, kv_cache_bytes: int | None = None) -> None:
        self.engine = ScriptedEngine({})
        layers = (KvLayers(1, 1),)  # So that a byte is a token.
        self.batch = Batch(BatchLimits(8, 60.0, kv_cache_bytes, layers))
        self.ends: dict[int, RequestEnd] = {}
        self.texts: dict[tuple[int, int], str] = {}
        self.media: list[MediaReleased | MediaWanted] = []
        self.now = 0.0
        self._jobs = 0

    def add(
        self,
        *,
        answers: int = 1,
        max_tokens: int = 100,
        beam: BeamSearch | None = None,
        memory_wait_s: float | None = None,
        priority: int = 0,
        media: ScriptedMedia | None = None,
        decode_s: float = 0.0,
        **script: object,
    ) -> int:
        self._jobs += 1
        if "tokens" not in script:
            script = {"pieces": [f"{number} " for number in range(50)], **script}
        prompt = self.engine.encode(PromptSource(messages=[{"content": json.dumps(script)}]))
        rows = tuple(
            SequenceRequest(
                10 * self._jobs + index,
                prompt.tokens,
                max_tokens,
                GREEDY,
                beam=beam,
                priority=priority,
                media=media,
            )
            for index in range(1 if beam else answers)
        )
        rules = TextRules(frozenset({0}))
        self.batch.add(
            EngineRequest(
                *(self._jobs, "r", rows, rules, answers, self.now),
                memory_wait_s=memory_wait_s,
                decode_s=decode_s,
            )
        )
        return self._jobs

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.batch.admit(self.engine)
            self.batch.expire(self.now)
            if self.batch.rows:
                self.batch.step(self.engine)
            for output in self.batch.outputs:
                if isinstance(output, RequestEnd):
                    self.ends[output.stream_id] = output
                elif isinstance(output, MediaReleased | MediaWanted):
                    self.media.append(output)
                elif isinstance(output, Delta):
                    place = (output.stream_id, output.index)
                    self.texts[place] = self.texts.get(place, "") + output.text
            self.batch.outputs = []

    def set_memory_pressure(self) -> None:
        self.batch.paused = True
        self.batch.preempt_largest(self.engine, self.now)

    def failed(self, run_id: int) -> ErrorCode | None:
        end = self.ends.get(run_id)
        return end.code if isinstance(end, RequestFailed) else None


def test_all_answers_of_a_job_leave_and_each_comes_back_where_it_was() -> None:
    rig = Rig()
    small, large = rig.add(max_tokens=20), rig.add(answers=3)
    rig.step(12)
    before = {place: text for place, text in rig.texts.items() if place[0] == large}
    assert sorted(before) == [(large, 0), (large, 1), (large, 2)]
    rig.set_memory_pressure()
    assert (rig.batch.rows, rig.batch.preempted_total) == (1, 1)
    rig.step(5)
    assert {place: rig.texts[place] for place in before} == before
    assert not rig.ends
    rig.batch.paused = False
    rig.step(80)
    assert [rig.texts[large, index] for index in range(3)] == [TEXT] * 3
    end = rig.ends[large]
    assert isinstance(end, RequestFinished)
    assert end.usage.completion_tokens == 3 * 50
    assert end.usage.prompt_tokens == rig.ends[small].usage.prompt_tokens  # type: ignore[union-attr]


def picture() -> ScriptedMedia:
    return ScriptedMedia([SimpleNamespace(size_bytes=7)])  # type: ignore[list-item]


def test_media_are_released_when_every_answer_has_read_them() -> None:
    rig, media = Rig(), picture()
    job = rig.add(answers=12, media=media)
    while rig.batch.rows < 8:
        rig.step()
    rig.step(3)
    assert rig.media == [] and media.is_here, "four answers have not begun"
    rig.step(200)
    assert rig.media == [MediaReleased(job)] and isinstance(rig.ends[job], RequestFinished)
    assert not media.is_here


def test_who_comes_back_waits_for_its_media_and_nobody_else_does() -> None:
    rig, media = Rig(), picture()
    other, job = rig.add(max_tokens=20), rig.add(answers=2, media=media)
    rig.step(12)
    rig.set_memory_pressure()
    assert rig.media == [MediaReleased(job)]
    rig.step(5)
    assert len(rig.media) == 1, "there is no place for it, so that nothing is decoded"
    rig.batch.paused = False
    new = rig.add(max_tokens=5)
    rig.step(40)
    assert rig.media == [MediaReleased(job), MediaWanted(job)]
    assert set(rig.ends) == {other, new}
    assert (rig.batch.busy, rig.batch.wants_media) == (False, True)
    rig.batch.restore(rig.engine, job, picture())
    assert media.is_here and rig.batch.busy
    rig.step(80)
    assert [rig.texts[job, index] for index in range(2)] == [TEXT] * 2
    assert rig.media[2:] == [MediaReleased(job)] and not media.is_here
    # It has ended, and its media come all the same.
    rig.batch.restore(rig.engine, job, picture())


@pytest.mark.parametrize("begun", [False, True])
def test_while_somebody_waits_for_media_the_background_runs(begun: bool) -> None:
    """Also with what had begun before: else there would be work, and nobody to do it."""
    rig, media = Rig(), picture()
    line = rig.add(priority=BACKGROUND_PRIORITY)
    rig.step(3 if begun else 0)
    rig.add(max_tokens=20)
    job = rig.add(media=media)
    late = rig.add(priority=BACKGROUND_PRIORITY)
    rig.step(8)
    while MediaReleased(job) not in rig.media:
        rig.step()
    rig.set_memory_pressure()
    if begun:  # The least urgent one leaves first.
        rig.set_memory_pressure()
    rig.batch.paused = False
    while MediaWanted(job) not in rig.media:
        rig.step()
    rig.step(200)
    assert [rig.texts[one, 0] for one in (line, late)] == [TEXT] * 2
    assert (rig.batch.busy, rig.batch.wants_media) == (False, True)
    last = rig.add(priority=BACKGROUND_PRIORITY)
    rig.step(12)
    rig.batch.restore(rig.engine, job, picture())
    stood = rig.texts[last, 0]
    rig.step(5)
    assert rig.texts[last, 0] == stood and job not in rig.ends
    rig.step(200)
    assert [rig.texts[one, 0] for one in (job, last)] == [TEXT] * 2


def test_who_waits_for_its_media_can_be_cancelled_or_wait_too_long() -> None:
    for cancels in (False, True):
        rig = Rig()
        rig.add(max_tokens=20)
        job = rig.add(media=picture())
        rig.step(8)
        rig.set_memory_pressure()
        rig.batch.paused = False
        rig.step(40)
        assert rig.media[1:] == [MediaWanted(job)]
        if cancels:
            rig.batch.cancel(rig.engine, job, 0, 0)
        rig.now = 60.0
        rig.step()
        assert rig.failed(job) is (None if cancels else ErrorCode.INSUFFICIENT_MEMORY)
        assert job in rig.ends and not rig.batch.wants_media and not rig.batch.busy


def test_while_memory_is_short_it_waits_for_the_others_and_comes_before_new_ones() -> None:
    rig = Rig()
    small, large = rig.add(max_tokens=20), rig.add()
    rig.step(6)
    rig.set_memory_pressure()
    new = rig.add(max_tokens=5)
    while small not in rig.ends:
        rig.step()
        assert rig.batch.rows <= 1
    rig.step(70)
    assert rig.texts[large, 0] == TEXT, "alone it may run"
    rig.step(10)
    assert list(rig.ends) == [small, large, new]


def test_a_job_of_which_only_some_rows_have_begun_comes_back_whole() -> None:
    rig = Rig()
    other, job = rig.add(answers=2, max_tokens=40), rig.add(answers=8)
    rig.step(20)
    assert 2 < rig.batch.rows <= 8
    rig.set_memory_pressure()
    assert rig.batch.rows == 2
    rig.batch.paused = False
    rig.step(200)
    assert {other, job} == set(rig.ends)
    assert [rig.texts[job, index] for index in range(8)] == [TEXT] * 8


def test_the_only_row_fails_as_it_would_take_the_same_again() -> None:
    rig = Rig()
    job = rig.add()
    rig.step(5)
    rig.set_memory_pressure()
    rig.step()
    assert rig.failed(job) is ErrorCode.INSUFFICIENT_MEMORY
    assert rig.batch.preempted_total == 0


def test_a_beam_search_fails() -> None:
    rig = Rig()
    other, search = rig.add(max_tokens=20), rig.add(beam=BeamSearch(4, 1.0, frozenset({0})))
    rig.step(2)
    rig.set_memory_pressure()
    rig.step(30)
    assert rig.failed(search) is ErrorCode.INSUFFICIENT_MEMORY
    assert isinstance(rig.ends[other], RequestFinished)
    assert rig.batch.preempted_total == 0


@pytest.mark.parametrize("caches_full", [False, True])
def test_a_job_of_which_only_some_rows_can_come_back_ends(
    monkeypatch: pytest.MonkeyPatch, caches_full: bool
) -> None:
    """Else it would wait for ever for the rows that the engine does not have any more."""
    rig = Rig(kv_cache_bytes=2500 if caches_full else None)
    job = rig.add(answers=2, max_tokens=2000, tokens=2000, text="x")
    preempt, asked = rig.engine.preempt, []

    def second_is_lost(sequence_id: int) -> Sequence[int] | None:
        asked.append(sequence_id)
        return None if len(asked) == 2 else preempt(sequence_id)

    monkeypatch.setattr(rig.engine, "preempt", second_is_lost)
    rig.step(12)
    if not caches_full:
        rig.set_memory_pressure()
    rig.step(3000)
    assert len(asked) == 2
    assert rig.failed(job) is ErrorCode.INSUFFICIENT_MEMORY
    assert (rig.batch.rows, rig.batch.busy, rig.batch.kv_bytes) == (0, False, 0)


def test_who_gave_way_three_times_fails() -> None:
    rig = Rig()
    other, job = rig.add(max_tokens=40, pieces=["x"] * 60), rig.add()
    for times in range(4):
        rig.batch.paused = False
        rig.step(4)
        assert rig.batch.rows == 2
        assert not rig.ends
        rig.set_memory_pressure()
        assert rig.batch.preempted_total == min(times + 1, 3)
    rig.step()
    assert rig.failed(job) is ErrorCode.INSUFFICIENT_MEMORY
    assert other not in rig.ends


def test_who_waits_too_long_to_come_back_fails() -> None:
    rig = Rig()
    rig.now = 1000.0
    rig.add(max_tokens=40, pieces=["x"] * 60)
    patient, other = rig.add(), rig.add(memory_wait_s=5.0)
    rig.step(8)
    rig.set_memory_pressure()
    rig.set_memory_pressure()
    assert rig.batch.preempted_total == 2
    rig.now = 1004.9
    rig.step()
    assert not rig.ends
    rig.now = 1005.0
    rig.step()
    assert rig.failed(other) is ErrorCode.INSUFFICIENT_MEMORY
    rig.now = 1059.9
    rig.step()
    assert patient not in rig.ends
    rig.now = 1060.0
    rig.step()
    assert rig.failed(patient) is ErrorCode.INSUFFICIENT_MEMORY


@pytest.mark.parametrize(
    ("paused", "code"),
    [(False, ErrorCode.QUEUE_TIMEOUT), (True, ErrorCode.INSUFFICIENT_MEMORY)],
)
def test_the_decoding_of_its_media_is_no_waiting(paused: bool, code: ErrorCode) -> None:
    rig = Rig()
    rig.add(answers=8, max_tokens=2000, tokens=2000, text="x")
    while rig.batch.rows < 8:
        rig.step()
    rig.batch.paused = paused
    limit_s = 20.0 if paused else 60.0
    job = rig.add(decode_s=100.0, memory_wait_s=20.0)
    rig.now = 100.0 + limit_s - 0.1
    rig.step()
    assert job not in rig.ends
    rig.now += 0.1
    rig.step()
    end = rig.ends[job]
    assert isinstance(end, RequestFailed) and end.code is code
    assert f"waited {limit_s:g} s" in end.message


def test_one_that_waits_to_come_back_can_be_cancelled() -> None:
    rig = Rig()
    other, job = rig.add(max_tokens=20), rig.add()
    rig.step(6)
    rig.set_memory_pressure()
    rig.batch.cancel(rig.engine, job, 0, 0)
    rig.batch.paused = False
    rig.step(40)
    assert set(rig.ends) == {other, job}
    assert not isinstance(rig.ends[job], RequestFinished | RequestFailed)
    assert not rig.batch.busy


def test_the_least_urgent_is_preempted_first_however_small_it_is() -> None:
    rig = Rig()
    large, small = rig.add(), rig.add(max_tokens=10, priority=1)
    rig.step(4)
    rig.set_memory_pressure()
    assert rig.batch.rows == 1
    rig.step(80)
    assert list(rig.ends) == [large, small]


def test_what_waits_with_a_lower_value_begins_before_what_comes_back_and_what_came_before() -> None:
    rig = Rig()
    running, gave_way = rig.add(max_tokens=20), rig.add(priority=3)
    rig.step(6)
    rig.set_memory_pressure()
    late, later, urgent = rig.add(priority=4), rig.add(priority=5), rig.add(priority=-1)
    rig.step(300)
    assert list(rig.ends) == [running, urgent, gave_way, late, later]


def test_a_lower_value_begins_before_the_other_answers_of_a_job() -> None:
    rig = Rig()
    rig.add(answers=2)
    rig.step(4)
    rig.batch.paused = True
    several, urgent = rig.add(answers=3, priority=1), rig.add()
    rig.step(500)
    assert list(rig.ends)[-2:] == [urgent, several]


LONG = 3000


def test_rows_that_outgrow_their_caches_are_preempted_and_come_back() -> None:
    """Nothing fails, however often and however long they wait."""
    rig = Rig(kv_cache_bytes=2 * 1700)
    jobs = [rig.add(max_tokens=LONG, tokens=LONG, text="x") for _ in range(2)]
    rig.step(1500)
    assert (rig.batch.rows, rig.batch.preempted_total) == (2, 0)
    rig.step(200)
    assert (rig.batch.rows, rig.batch.preempted_total) == (1, 1)
    rig.now = 1e6
    rig.step(2 * LONG)
    assert sorted(rig.ends) == jobs
    assert all(isinstance(end, RequestFinished) for end in rig.ends.values())
    assert [rig.texts[job, 0] for job in jobs] == ["x" * LONG] * 2


def test_the_least_urgent_is_preempted_when_the_caches_are_full() -> None:
    rig = Rig(kv_cache_bytes=3000)
    less = rig.add(max_tokens=LONG, tokens=LONG, text="x", priority=1)
    more = rig.add(max_tokens=LONG, tokens=LONG, text="x" * 9)
    rig.step(1600)
    assert (rig.batch.rows, rig.batch.preempted_total) == (1, 1)
    rig.step(LONG + LONG)
    assert list(rig.ends) == [more, less], "the larger one has gone on"


def test_the_answers_of_one_job_take_turns_when_the_caches_are_full() -> None:
    rig = Rig(kv_cache_bytes=2500)
    job = rig.add(answers=2, max_tokens=2000, tokens=2000, text="x")
    rig.step(6000)
    assert isinstance(rig.ends[job], RequestFinished)
    assert rig.batch.preempted_total == 1
    assert rig.texts[job, 0] == rig.texts[job, 1] == "x" * 2000


def test_a_row_that_is_alone_and_searches_grow_past_the_limit() -> None:
    rig = Rig(kv_cache_bytes=500)
    job = rig.add(max_tokens=LONG, tokens=LONG, text="x")
    rig.step(LONG + 5)
    assert isinstance(rig.ends[job], RequestFinished)
    assert (rig.batch.preempted_total, rig.engine.calls["flush"]) == (0, 0)


@pytest.mark.parametrize(("lines", "preempted"), [(4, 0), (7, 0), (8, 1)])
def test_the_background_stands_still_while_anybody_else_has_a_row_or_waits(
    lines: int, preempted: int
) -> None:
    rig = Rig()
    jobs = [rig.add(priority=BACKGROUND_PRIORITY) for _ in range(lines)]
    rig.step(12)
    assert rig.batch.rows == lines, "nobody else wants them"
    before = dict(rig.texts)
    person = rig.add(max_tokens=30)
    late = rig.add(priority=BACKGROUND_PRIORITY)
    while person not in rig.ends:
        rig.step()
        assert rig.engine.calls["preempt"] == preempted, "as few give their rows back as it takes"
    stood = {place: text for place, text in rig.texts.items() if place[0] != person}
    # The last step is the person's too, so that nothing more came of the others.
    assert stood == before, "they have stood still"
    rig.now = 61.0
    rig.step(200)
    assert [rig.texts[job, 0] for job in jobs] == [TEXT] * lines
    waited = rig.failed(late) is ErrorCode.QUEUE_TIMEOUT
    assert waited == (lines == 8), "it had no place, and waits no longer than others for one"
    assert not rig.batch.busy
    assert rig.batch.preempted_total == preempted, "each pause counts, whatever it is for"


def test_the_background_gives_back_the_memory_that_a_person_needs() -> None:
    rig = Rig(kv_cache_bytes=1000)
    jobs = [rig.add(priority=BACKGROUND_PRIORITY) for _ in range(2)]
    rig.step(12)
    assert rig.batch.rows == 2
    person = rig.add(max_tokens=30)
    while person not in rig.ends:
        rig.step()
    assert rig.engine.calls["preempt"] == 1, "one of them was enough"
    rig.step(200)
    assert [rig.texts[job, 0] for job in jobs] == [TEXT] * 2


@pytest.mark.parametrize(("max_tokens", "preempted"), [(600, 1), (1000, 0)])
def test_the_background_gives_nothing_back_that_is_not_enough(
    max_tokens: int, preempted: int
) -> None:
    rig = Rig(kv_cache_bytes=2400)
    rig.add(priority=BACKGROUND_PRIORITY)
    rig.step(3)
    rig.add(max_tokens=800)
    rig.step()
    assert rig.batch.rows == 2
    rig.add(max_tokens=max_tokens)
    rig.step()
    assert rig.batch.rows == 2
    assert rig.batch.preempted_total == preempted


def test_while_memory_is_short_the_background_makes_no_room_that_nobody_can_have() -> None:
    rig = Rig()
    rig.add(priority=BACKGROUND_PRIORITY)
    rig.step(3)
    rig.add()
    rig.step()
    rig.batch.paused = True
    rig.add()
    rig.step()
    assert (rig.batch.rows, rig.batch.preempted_total) == (2, 0)


def test_the_time_of_a_person_is_not_counted_to_the_rows_that_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0

    def sleep(for_s: float) -> None:
        nonlocal now_s
        now_s += for_s

    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(scripted_engine, "time", SimpleNamespace(sleep=sleep))
    rig = Rig()
    line = rig.add(priority=BACKGROUND_PRIORITY, max_tokens=5, step_s=0.001)
    rig.step(3)
    person = rig.add(max_tokens=10, step_s=0.01)
    rig.step(100)
    ends = [rig.ends[one] for one in (line, person)]
    assert all(isinstance(end, RequestFinished) for end in ends)
    spent_s = [end.compute_s for end in ends if isinstance(end, RequestFinished)]
    assert spent_s == pytest.approx([0.005, 0.1])


@pytest.mark.parametrize(("stored", "preempts"), [(0, True), (30, True), (30, False)])
def test_what_a_request_has_read_itself_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, stored: int, preempts: bool
) -> None:
    """It finds that when it comes back, and no other request had computed it."""
    rig, found = Rig(), stored
    line = rig.add(priority=BACKGROUND_PRIORITY, prefill_s=0.04, max_tokens=5)
    step = rig.engine.step

    def reading(interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        output = step(interrupted)
        if output.prefill_tokens:
            output.read, output.cached_tokens = next(iter(rig.engine._rows)), found
        output.started = [one._replace(cached_tokens=found) for one in output.started]
        return output

    monkeypatch.setattr(rig.engine, "step", reading)
    rig.step()
    if preempts:
        found = 9000
        rig.add(answers=8, max_tokens=5)
    rig.step(100)
    assert rig.batch.preempted_total == preempts
    end = rig.ends[line]
    assert isinstance(end, RequestFinished) and end.usage.cached_tokens == stored


def test_a_search_of_the_background_keeps_its_rows() -> None:
    rig = Rig()
    search = rig.add(priority=BACKGROUND_PRIORITY, beam=BeamSearch(2, 1.0, frozenset({0})))
    rig.step(3)
    person = rig.add(max_tokens=5)
    rig.step(200)
    assert {search, person} == set(rig.ends)
