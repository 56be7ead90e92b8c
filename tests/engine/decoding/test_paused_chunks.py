"""Chunks of prompts that pause between two layers: others come between, and nothing changes."""

import random
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.engine.values import SequenceRequest
from lmx.worker.mlx.batching import prefill_queue
from lmx.worker.mlx.decoding import pace
from lmx.worker.mlx.decoding import prefill as prefills
from lmx.worker.mlx.decoding.pace import layers_at_once
from lmx.worker.mlx.decoding.prefill import PrefillChunk, PromptPrefill
from lmx.worker.mlx.model.forward import cache_states
from tests.support.models.text_models import make_text_model
from tests.support.models.tiny_models import CACHING_CONFIGS, CONFIGS, make_tiny_model
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, spec_of
from tests.support.rigs.matrices import combinations

LONG: Final = random.Random(1).choices(range(1, 200), k=900)
SMALL: Final = [[5, 6, 7], [8, 9, 10, 11], [30, 20, 10]]

# Plain attention, windows, states beside attention, convolutions, states alone, experts.
MODELS: Final = ["llama", "gemma3", "qwen3_next", "lfm2", "mamba2", "qwen3_moe"]
MANY_LAYERS: Final = "wide"


@pytest.fixture(autouse=True)
def one_layer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick it is."""
    monkeypatch.setattr(prefills, "layers_at_once", lambda count, took_s: 1)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def folder(kind: str) -> Path:
        make = make_tiny_model if kind in CONFIGS | CACHING_CONFIGS else make_text_model
        return make(tmp_path_factory.mktemp("tiny") / kind, kind)

    return folder


@pytest.fixture
def runner(folder_of: Callable[[str], Path]) -> Iterator[EngineRunner]:
    """Of a model with so many layers that a chunk is not done after a few of them."""
    yield engine(folder_of(MANY_LAYERS))


def engine(folder: Path) -> EngineRunner:
    return EngineRunner(
        spec_of(folder, max_decode_stall_s=10, prefix_cache=PrefixCacheSpec(64 << 20))
    )


def prefill_of(runner: EngineRunner, sequence_id: int) -> PromptPrefill:
    inner: Any = runner.generator
    prefill: PromptPrefill = inner._rows._prompts._prompts[sequence_id].prefill
    return prefill


def pause(runner: EngineRunner, **more: Any) -> int:
    """Admit a row whose prompt's first chunk pauses behind its first layer."""
    row = runner.admit(LONG, HOT, 12, **more)
    assert runner.step(lambda: True).read == row
    chunk = prefill_of(runner, row).chunk
    assert chunk is not None and 0 < chunk.done_tokens < chunk.tokens
    return row


def test_what_comes_before_the_first_layer_says_nothing_of_the_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is quick: two layers at once would be all of a small model."""
    now_s, computed = 0.0, []

    def evaluate(layers: list[float]) -> None:
        nonlocal now_s
        now_s += sum(layers)
        computed.append(layers)

    monkeypatch.setattr(prefills, "layers_at_once", layers_at_once)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(mx, "eval", evaluate)
    chunk = PrefillChunk(9, 9, [0.001, 0.3, 0.3, 0.001, 0.001, 0.001], mx.array(0))
    assert chunk.compute(lambda _spent_s, _next_s: False)
    assert computed == [[0.001], [0.3], [0.3], [0.001], [0.001, 0.001]]
    assert chunk.layer_s == pytest.approx(0.3)


@pytest.mark.parametrize("kind", MODELS)
def test_a_chunk_that_pauses_leaves_the_same_caches(
    folder_of: Callable[[str], Path], kind: str
) -> None:
    """To the bit, with another prompt's chunks between its layers."""
    forward: Any = engine(folder_of(kind)).generator
    forward = forward._rows._forward

    def begin(prompt: list[int]) -> PromptPrefill:
        return PromptPrefill(forward, SequenceRequest(0, prompt, 1, GREEDY), forward.new_cache(), 0)

    whole, paused, other = begin(LONG), begin(LONG), begin(LONG[::-1])
    pauses = 0
    while not whole.ready:
        whole.advance(250, (600,))
        chunk = paused.begin(250, (600,))
        before = -1
        while not chunk.compute(lambda _spent_s, _next_s: True):
            pauses += 1
            assert before < chunk.done_tokens < chunk.tokens
            assert paused.done_tokens == chunk.end - chunk.tokens
            before = chunk.done_tokens
            if not other.ready:
                other.advance(40, ())
        assert chunk.done_tokens == chunk.tokens
        paused.complete()
        assert paused.done_tokens == whole.done_tokens
        states = [
            [array for _, array in tree_flatten(cache_states(one.prompt_cache))]
            for one in (whole, paused)
        ]
        assert len(states[0]) == len(states[1]) > 0
        assert all(mx.array_equal(*pair).item() for pair in zip(*states, strict=True))
    assert pauses >= 4 * (len(whole.prompt_cache) - 1)


@pytest.mark.parametrize(("kind", "interrupt"), combinations(MODELS, ["always", "at times"]))
def test_rows_are_as_alone_wherever_chunks_pause(
    folder_of: Callable[[str], Path], kind: str, interrupt: str
) -> None:
    runner = engine(folder_of(kind))
    prompts = [LONG, *SMALL, LONG[:300]]
    expected = [runner.alone(prompt, HOT, 12, cache_salt="alone") for prompt in prompts]
    chance, rows = random.Random(2), []
    for prompt in prompts:
        rows.append(runner.admit(prompt, HOT, 12))
        for _ in range(3):
            runner.step(lambda: interrupt == "always" or chance.random() < 0.5)
    while runner.live:
        runner.step(lambda: interrupt == "always" or chance.random() < 0.5)
    assert [runner.tokens[row] for row in rows] == expected


def test_small_requests_have_their_first_tokens_before_a_long_prompts_chunk_ends(
    runner: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two in a row, and then one that comes while rows decode."""
    # On a machine that stands still it could be owed the time of a whole chunk.
    monkeypatch.setattr(prefill_queue, "_owed_s", lambda *_, **__: 0.0)
    alone = [runner.alone(prompt, HOT, 20) for prompt in SMALL]
    expected = runner.alone(LONG, HOT, 12)
    long = pause(runner, cache_salt="cold")
    chunk, rows = prefill_of(runner, long).chunk, []
    for prompt in SMALL:
        rows.append(runner.admit(prompt, HOT, 20))
        runner.until(lambda: runner.tokens[rows[-1]])
        assert prefill_of(runner, long).chunk is chunk
    runner.finish()
    assert [runner.tokens[row] for row in rows] == alone
    assert runner.tokens[long] == expected


def test_the_turn_of_the_oldest_is_a_layer_while_a_small_request_waits(
    runner: EngineRunner,
) -> None:
    """Not a whole chunk: nobody has to say that somebody waits."""
    long = pause(runner)
    rows: Any = runner.generator
    prompts = rows._rows._prompts
    small = runner.admit(SMALL[0], HOT, 2)
    prompts._turn = 3
    chunk = prefill_of(runner, long).chunk
    before = chunk.done_tokens if chunk else 0
    assert runner.step().read == long
    assert chunk is not None and before < chunk.done_tokens < chunk.tokens
    runner.until(lambda: runner.tokens[small])
    assert prefill_of(runner, long).chunk is chunk
    runner.clear()


def test_a_long_prompt_does_not_starve_though_somebody_always_waits(runner: EngineRunner) -> None:
    long, small = runner.admit(LONG[:200], GREEDY, 2), 0
    while long not in runner.started:
        if len(runner.live) < 3:
            small += 1
            runner.admit([small % 200 + 1] * 20, GREEDY, 2)
        runner.step(lambda: True)
        assert small < 2000
    runner.clear()


@pytest.mark.long
def test_a_row_is_cancelled_in_a_pause(runner: EngineRunner) -> None:
    expected = [runner.alone(prompt, HOT, 12, cache_salt="alone") for prompt in (LONG, SMALL[0])]
    long = pause(runner)
    small = runner.admit(SMALL[0], HOT, 12)
    runner.step(lambda: True)
    runner.remove(long)
    runner.finish()
    assert runner.tokens[small] == expected[1]
    inner: Any = runner.generator
    assert inner._rows.idle
    assert runner.alone(LONG, HOT, 12) == expected[0]


@pytest.mark.long
def test_a_row_is_preempted_in_a_pause_and_keeps_the_chunk(runner: EngineRunner) -> None:
    expected = runner.alone(LONG, HOT, 12, cache_salt="alone")
    long = pause(runner)
    chunk = prefill_of(runner, long).chunk
    assert chunk is not None
    runner.flush()
    made = runner.generator.preempt(long)
    assert made is not None and not made
    small = runner.admit(SMALL[0], HOT, 12)
    runner.finish_row(small)
    runner.generator.admit(runner.requests[long])
    step = runner.step()
    assert step.read == long and (step.cached_tokens or 0) >= chunk.end
    runner.finish_row(long)
    assert runner.tokens[long] == expected
    assert runner.started[long].cached_tokens == step.cached_tokens


@pytest.mark.long
def test_a_row_whose_chunk_can_not_be_completed_is_preempted_all_the_same(
    runner: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is short then, and no other row is concerned."""

    def fail(_: PromptPrefill) -> None:
        raise RuntimeError("no buffer of this size")

    expected = [runner.alone(prompt, HOT, 12, cache_salt="alone") for prompt in (LONG, SMALL[0])]
    long = pause(runner)
    small = runner.admit(SMALL[0], HOT, 12)
    with monkeypatch.context() as patch:
        patch.setattr(PromptPrefill, "complete", fail)
        assert runner.generator.preempt(long) == []
    runner.finish_row(small)
    runner.generator.admit(runner.requests[long])
    runner.finish_row(long)
    assert [runner.tokens[row] for row in (long, small)] == expected


def test_a_prompt_that_comes_in_a_pause_finds_what_it_waited_for(
    runner: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin with 300 tokens, and the chunk that pauses has more."""
    monkeypatch.setattr(pace.PrefillPace, "chunk", lambda *_, **__: 500)
    pause(runner)
    other = runner.admit([*LONG[:300], 7, 7, 7], HOT, 2)
    runner.finish()
    assert runner.started[other].cached_tokens >= 250


@pytest.mark.long
def test_memory_runs_short_in_a_pause(runner: EngineRunner) -> None:
    expected = runner.alone(LONG, HOT, 12, cache_salt="alone")
    long = pause(runner)
    runner.resident.shrink()
    runner.resident.regrow()
    runner.finish()
    assert runner.tokens[long] == expected


def test_a_prompt_with_logprobs_pauses_too(runner: EngineRunner) -> None:
    plain = runner.admit(LONG[:200], GREEDY, 3, prompt_logprobs=1)
    runner.finish()
    row = runner.admit(LONG[:200], GREEDY, 3, prompt_logprobs=1)
    while row in runner.live:
        runner.step(lambda: True)
    scores = [[one.logprob for one in runner.started[each].prompt_scores] for each in (plain, row)]
    assert len(scores[0]) == 199
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)
