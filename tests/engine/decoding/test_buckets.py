"""Rows of unlike length decode apart: nobody's tokens change, and none is padded to a long one."""

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.protocol.messages.data import BACKGROUND_PRIORITY
from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.worker.mlx.batching import buckets
from lmx.worker.mlx.decoding.decode import DecodeBatch, DecodeStep
from lmx.worker.mlx.decoding.prefill import PrefillChunk, PromptPrefill
from lmx.worker.scheduling import length_buckets
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, spec_of
from tests.support.rigs.matrices import combinations

pytestmark = pytest.mark.long

LONG = [token % 200 + 1 for token in range(2600)]
"""Longer than any row that it could decode with."""


MODELS = ["llama", "gemma3", "qwen3_next"]
WITH: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefix cache": {"prefix_cache": PrefixCacheSpec(64 << 20)},
    "speculation": {"speculation": SpeculationSpec()},
}
everywhere = pytest.mark.parametrize(("model", "beside"), combinations(MODELS, list(WITH)))


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], EngineRunner]:
    """Makes an engine once for each model and what it has beside."""

    @cache
    def folder(model: str) -> Path:
        return make_tiny_model(tmp_path_factory.mktemp("tiny"), model)

    @cache
    def made(model: str, beside: str) -> EngineRunner:
        return EngineRunner(spec_of(folder(model), max_decode_stall_s=10, **WITH[beside]))

    return made


@pytest.fixture
def runner(
    model: str, beside: str, runners: Callable[[str, str], EngineRunner]
) -> Iterator[EngineRunner]:
    yield runners(model, beside)
    runners(model, beside).clear()


@everywhere
def test_short_rows_are_not_padded_to_the_long_one(runner: EngineRunner) -> None:
    long = runner.admit(LONG, GREEDY, 400)
    runner.until(lambda: runner.tokens[long])
    rows = [runner.admit([token, 2, 3], GREEDY, 400) for token in (4, 5, 6)]
    runner.until(lambda: all(runner.tokens[row] for row in rows))
    inner: Any = runner.generator
    lengths = [[len(row.tokens) for row in bucket.rows] for bucket in inner._rows._buckets.active]
    assert [len(bucket) for bucket in lengths] == [3, 1]
    before = len(runner.tokens[long])
    runner.until(lambda: len(runner.tokens[long]) >= before + 5)
    runner.clear()
    assert runner.generator.step().tokens == []


@everywhere
def test_rows_that_have_become_alike_decode_together_and_as_alone(
    runner: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length_buckets, "_MAX_MORE_TOKENS", 64)
    asked = [(LONG[:20], 9), (LONG[:90], 40), (LONG[7:207], 40)]
    expected = [runner.alone(prompt, HOT, tokens) for prompt, tokens in asked]
    rows = [runner.admit(prompt, HOT, tokens) for prompt, tokens in asked]
    inner: Any = runner.generator
    shared: set[tuple[int, ...]] = set()
    while runner.live:
        runner.step()
        for bucket in inner._rows._buckets.active:
            shared.add(tuple(sorted(row.sequence_id for row in bucket.rows)))
    assert [runner.tokens[row] for row in rows] == expected
    assert (rows[0], rows[1]) in shared and (rows[1], rows[2]) in shared


@everywhere
def test_the_background_stands_still_for_others_and_loses_nothing(runner: EngineRunner) -> None:
    prompts = [[5, 6, 7], list(range(1, 40)), LONG]
    expected = [runner.alone(prompt, HOT, 30) for prompt in prompts]
    asked = [8, 9, 10]
    answer = runner.alone(asked, GREEDY, 12)
    lines = [runner.admit(prompt, HOT, 30, priority=BACKGROUND_PRIORITY) for prompt in prompts]
    runner.until(lambda: len(runner.tokens[lines[0]]) >= 5)
    for _ in range(2):
        # In the middle of the long prompt, and of all answers.
        runner.flush()
        before = [list(runner.tokens[line]) for line in lines]
        person = runner.admit(asked, GREEDY, 12)
        while len(runner.tokens[person]) < 12:
            made = runner.step()
            assert made.read in (None, person)
        assert runner.tokens[person] == answer
        assert [runner.tokens[line] for line in lines] == before, "they have stood still"
        runner.until(lambda: bool(runner.tokens[lines[2]]))
    runner.finish()
    assert [runner.tokens[line] for line in lines] == expected


def test_a_person_waits_for_no_line_but_for_the_prompt_that_both_have(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "llama")
    runner = EngineRunner(spec_of(model, prefix_cache=PrefixCacheSpec(64 << 20)))
    line = runner.admit([*LONG[:500], 7], GREEDY, 5, priority=BACKGROUND_PRIORITY)
    other = runner.admit(LONG[::-1], GREEDY, 5, priority=BACKGROUND_PRIORITY)
    person = runner.admit([*LONG[:500], 8], GREEDY, 5)
    read: dict[int | None, int] = {}
    while len(runner.tokens[person]) < 5:
        made = runner.step()
        read[made.read] = read.get(made.read, 0) + made.prefill_tokens
    assert other not in read
    assert read[line] == 501 and read[person] == 1, "the last token is each one's own"
    runner.finish()


def test_the_background_reads_in_small_chunks_while_persons_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in large ones when nobody has come for a while."""
    runner = EngineRunner(spec_of(make_tiny_model(tmp_path / "model", "llama")))
    inner: Any = runner.generator
    rows, read = inner._rows, []
    choose = rows._pace.chunk

    def chunk(depth_tokens: int, *, decoding: bool, yields: bool) -> int:
        read.append(yields)
        tokens: int = choose(depth_tokens, decoding=decoding, yields=yields)
        return tokens

    monkeypatch.setattr(rows._pace, "chunk", chunk)

    def yielded(priority: int) -> set[bool]:
        read.clear()
        runner.admit(LONG, GREEDY, 2, priority=priority)
        runner.finish()
        return set(read)

    assert yielded(BACKGROUND_PRIORITY) == {False}
    assert yielded(0) == {False}
    rows._foreground_s += 3600  # However long this takes, it is recent.
    assert yielded(BACKGROUND_PRIORITY) == {True}
    rows._foreground_s -= 7200
    assert yielded(BACKGROUND_PRIORITY) == {False}


def test_the_longer_rows_pay_for_the_change_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_model(tmp_path / "model", "llama")
    runner = EngineRunner(spec_of(model, max_decode_stall_s=10))
    long = runner.admit(LONG, GREEDY, 1000)
    runner.until(lambda: runner.tokens[long])
    short = runner.admit([4, 5, 6], GREEDY, 1000)
    # Every step takes a second, and so does the wait for what was drawn ahead.
    monkeypatch.setattr(buckets, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    runner.until(lambda: len(runner.tokens[short]) >= 20)
    before = len(runner.tokens[short]), len(runner.tokens[long])
    runner.until(lambda: len(runner.tokens[short]) >= before[0] + 100)
    made = len(runner.tokens[long]) - before[1]
    runner.clear()
    # The two seconds are half of the time that at least four steps take.
    assert 18 <= made <= 25


def test_a_prompt_is_read_though_the_longer_rows_are_always_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a step of the long row costs less than half of one of the short rows, it is due after
    each of those: prompts and longer rows take turns."""
    monkeypatch.setattr(length_buckets, "_SHARE", 1e9)
    runner = EngineRunner(spec_of(make_tiny_model(tmp_path / "model", "llama")))
    long = runner.admit(LONG, GREEDY, 1000)
    runner.until(lambda: runner.tokens[long])
    short = runner.admit([4, 5, 6], GREEDY, 1000)
    runner.until(lambda: runner.tokens[short])
    runner.admit(list(range(1, 100)), GREEDY, 5)
    before = len(runner.tokens[short]), len(runner.tokens[long])
    kinds: list[str] = []
    for _ in range(16):
        made = runner.step()
        kinds.append("chunk" if made.prefill_tokens else "rows")
    runner.clear()
    assert kinds.count("chunk") >= 3
    assert len(runner.tokens[short]) - before[0] >= 7
    assert len(runner.tokens[long]) - before[1] >= 3


def test_short_rows_wait_for_one_step_of_others_and_read_nothing_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though longer rows are always due, and a prompt is being read. A step of the short rows reads
    as many entries of the caches as without the others, but for the room of a row that left."""
    monkeypatch.setattr(length_buckets, "_SHARE", 1e9)
    runner = EngineRunner(spec_of(make_tiny_model(tmp_path / "model", "llama")))
    long = runner.admit(LONG, GREEDY, 1000)
    runner.until(lambda: runner.tokens[long])
    done: list[str] = []
    padding: list[int] = []
    step, begin = DecodeBatch.step, PromptPrefill.begin

    def stepped(self: DecodeBatch, **more: Any) -> DecodeStep:
        longest = max(len(row.cached) for row in self.rows)
        short = longest < len(LONG)
        done.append("short" if short else "long")
        if short:
            padding.append(self.prompt_cache[0].size() - longest)
        return step(self, **more)

    def begun(self: PromptPrefill, *arguments: Any) -> PrefillChunk:
        done.append("chunk")
        return begin(self, *arguments)

    monkeypatch.setattr(DecodeBatch, "step", stepped)
    monkeypatch.setattr(PromptPrefill, "begin", begun)
    lasting = runner.admit(list(range(1, 19)), GREEDY, 1000)
    others = [runner.admit(list(range(2, 2 + tokens)), GREEDY, 2 * tokens) for tokens in (12, 15)]
    for row in (*others, runner.admit(list(range(1, 200)), GREEDY, 3)):
        runner.finish_row(row)
    assert lasting in runner.live
    runner.clear()
    assert {"short", "long", "chunk"} == set(done)
    first, last = done.index("short"), len(done) - done[::-1].index("short")
    between = "".join(name[0] for name in done[first:last]).split("s")
    assert max(map(len, between)) == 1, between
    assert len(padding) > 20 and max(padding) <= 64
