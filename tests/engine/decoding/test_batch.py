"""The MLX engine through its interface: what a worker relies on."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlx.core as mx
import numpy as np
import pytest
from mlx_vlm.utils import load
from structlog.testing import capture_logs

from lmx.protocol.errors import ErrorCode, OperationError, RequestError
from lmx.protocol.messages.data import BACKGROUND_PRIORITY
from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.protocol.messages.tasks import Detokenize, Detokenized, Rerank
from lmx.protocol.states import LoadPhase
from lmx.worker.engine.values import PromptSource, SequenceRequest, SequenceSampling
from lmx.worker.lifecycle import load_engine
from lmx.worker.mlx import engine as mlx_batch
from lmx.worker.mlx.batching import batch_engine
from lmx.worker.mlx.decoding import batch_mode
from lmx.worker.mlx.decoding.batch_mode import can_batch
from lmx.worker.mlx.decoding.pace import LEAST_TOKENS
from lmx.worker.mlx.decoding.prefill import PrefillChunk, PromptPrefill
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.prefix import cache
from lmx.worker.mlx.prefix.store import PrefixStore
from tests.support.models.tiny_models import CONTEXT_TOKENS, VOCABULARY, make_tiny_model
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, Plain, spec_of

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def shared_tiny(tiny_dir: Path) -> EngineRunner:
    return EngineRunner(spec_of(tiny_dir))


@pytest.fixture
def tiny(shared_tiny: EngineRunner) -> Iterator[EngineRunner]:
    yield shared_tiny
    shared_tiny.clear()


@pytest.fixture
def real(shared_real: EngineRunner) -> Iterator[EngineRunner]:
    yield shared_real
    shared_real.clear()


class Broken:
    """A constraint that allows everything, until it raises: in ``mask`` or in ``accept``."""

    def __init__(self, masks: int = 1000, accepts: int = 1000) -> None:
        self._masks = masks
        self._accepts = accepts

    def mask(self) -> Any:
        self._masks -= 1
        if self._masks < 0:
            raise RuntimeError("mask")
        return np.full(-(-VOCABULARY // 32), 0xFFFFFFFF, np.uint32)

    def accept(self, token: int) -> None:
        self._accepts -= 1
        if self._accepts < 0:
            raise RuntimeError("accept")

    def fork(self) -> "Broken":
        return Broken(self._masks, self._accepts)


def test_load_shows_its_progress_and_the_facts(real: EngineRunner) -> None:
    fractions = [fraction for phase, fraction in real.phases if phase is LoadPhase.WEIGHTS]
    assert fractions[0] == 0
    assert fractions[-1] == pytest.approx(1)
    assert len(fractions) > 5
    assert fractions == sorted(fractions, key=lambda fraction: fraction or 0)
    assert real.phases[-1] == (LoadPhase.WARMUP, None)
    assert real.facts.context_tokens == 8192
    assert real.facts.vocabulary_size == 49152
    assert real.facts.eos_token_ids
    assert real.facts.reasoning is None
    assert real.resident.memory_bytes() > 500_000_000


def test_rows_advance_together(tiny: EngineRunner) -> None:
    first = tiny.admit("a", GREEDY, 20)
    second = tiny.admit("b", GREEDY, 20)
    tiny.until(lambda: tiny.tokens[second])
    lead = len(tiny.tokens[first]) - len(tiny.tokens[second])
    while tiny.live:
        assert first not in tiny.live or len(tiny.tokens[first]) == lead + len(tiny.tokens[second])
        tiny.step()
    assert len(tiny.tokens[first]) == len(tiny.tokens[second]) == 20


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_prompt_of_one_token_leaves_the_caches_of_a_batch_in_16_bits(
    kind: str, is_first: bool, tmp_path: Path
) -> None:
    """It joins rows that decode, or another row joins it before it has made a token."""
    runner = EngineRunner(spec_of(make_tiny_model(tmp_path, kind, dtype=mx.bfloat16)))
    prompts = [[1], [2, 3, 4]] if is_first else [[2, 3, 4], [1]]
    first = runner.admit(prompts[0], GREEDY, 40, priority=BACKGROUND_PRIORITY)
    runner.until(lambda: first in runner.started if is_first else runner.tokens[first])
    # After a row of others it is the turn of the next prompt, and not that of the first row.
    runner.finish_row(runner.admit([5, 6], GREEDY, 2))
    second = runner.admit(prompts[1], GREEDY, 40, priority=BACKGROUND_PRIORITY)
    runner.until(lambda: runner.tokens[second])
    engine: Any = runner.generator
    caches = engine._rows._buckets.only.prompt_cache
    assert [layer.keys.shape[0] for layer in caches] == [2] * len(caches)
    assert {array.dtype for layer in caches for array in (layer.keys, layer.values)} == {
        mx.bfloat16
    }


def test_rows_continue_while_a_long_prompt_is_prefilled(tiny: EngineRunner) -> None:
    row = tiny.admit("a", GREEDY, 100)
    tiny.until(lambda: tiny.tokens[row])
    prompt = tiny.encode("x" * 150)
    long = tiny.admit(prompt, GREEDY, 2)
    chunks, made = [], []
    while long not in tiny.started:
        before = len(tiny.tokens[row])
        step = tiny.step()
        # Whose time and energy a step takes.
        assert step.read == (long if step.prefill_tokens else None)
        if step.prefill_tokens:
            chunks.append(step.prefill_tokens)
            made.append(0)
        elif made:
            made[-1] += len(tiny.tokens[row]) - before
    assert sum(chunks) == len(prompt)
    # The spec allows hardly any stall. The last token decodes with the others.
    assert max(chunks) <= LEAST_TOKENS + 1
    assert set(made[:-1]) == {1}
    tiny.remove(row)
    tiny.finish()


def test_the_last_token_of_a_prompt_takes_no_pass_of_its_own(
    tiny: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass over one token reads all weights, as one over a token of every row does."""
    other = tiny.admit("a", GREEDY, 100)
    tiny.until(lambda: tiny.tokens[other])
    passes: list[list[int]] = []

    def noting(run: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def run_noted(forward: Forward, tokens: mx.array, *more: Any) -> mx.array:
            passes.append(list(tokens.shape))
            return run(forward, tokens, *more)

        return run_noted

    monkeypatch.setattr(Forward, "prompt", noting(Forward.prompt))
    monkeypatch.setattr(Forward, "decode", noting(Forward.decode))
    tiny.finish_row(tiny.admit([5, 6, 7, 8, 9], GREEDY, 3))
    tiny.remove(other)
    after = passes[passes.index([1, 4]) + 1 :]
    assert after == [[2, 1]] * 4, "the last token of the prompt and three of the answer"


def test_no_token_waits_for_the_next_prompts_chunk(
    tiny: EngineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn when a chunk begins was given out before."""
    expected = tiny.alone("a", GREEDY, 100)
    rows = tiny.generator._rows  # type: ignore[attr-defined]
    begin, waiting = PromptPrefill.begin, []

    def watched(prefill: PromptPrefill, *given: Any) -> PrefillChunk:
        waiting.append(rows._buckets.ahead)
        return begin(prefill, *given)

    monkeypatch.setattr(PromptPrefill, "begin", watched)
    row = tiny.admit("a", GREEDY, 100)
    for prompt in ("x" * 150, "y" * 50, "z" * 150):
        tiny.step()
        tiny.admit(prompt, GREEDY, 2)
    tiny.finish()
    assert len(waiting) > 20
    assert not any(waiting)
    assert tiny.tokens[row] == expected


def test_after_the_last_chunk_every_row_has_its_token_in_one_step(tiny: EngineRunner) -> None:
    """Rows that have waited for a chunk don't wait for two steps behind it. After that, the steps
    run ahead again."""
    row = tiny.admit("a", GREEDY, 100)
    tiny.until(lambda: tiny.tokens[row])
    long = tiny.admit("x" * 50, GREEDY, 20)
    tiny.until(lambda: long in tiny.started)
    assert {token.sequence_id for token in tiny.step().tokens} == {row, long}
    made = [len(tiny.step().tokens) for _ in range(4)]
    assert made == [0, 2, 2, 2]
    tiny.remove(row)
    tiny.finish()


def test_a_short_prompt_passes_no_more_important_one(tiny: EngineRunner) -> None:
    beside = tiny.admit("a", GREEDY, 400)
    tiny.until(lambda: tiny.tokens[beside])
    important = tiny.admit("x" * 300, GREEDY, 2, priority=-1)
    tiny.step()
    short = tiny.admit("y", GREEDY, 2)
    tiny.until(lambda: important in tiny.started)
    assert short not in tiny.started
    tiny.finish_row(short)
    tiny.remove(beside)
    tiny.finish()


def test_a_long_prompt_does_not_starve(tiny: EngineRunner) -> None:
    """While short ones keep coming, it gets its share."""
    long = tiny.admit(list(range(1, 201)), GREEDY, 2)
    short = 0
    while long not in tiny.started:
        if len(tiny.live) < 3:
            short += 1
            tiny.admit([short % 200 + 1] * 20, GREEDY, 2)
        tiny.step()
        assert short < 400
    tiny.finish()


@pytest.mark.parametrize("kind", ["whole", "begins alike"])
def test_what_two_prompts_share_is_read_once(tiny_dir: Path, kind: str) -> None:
    """Also while both of them are under way."""
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(1 << 26)))
    common = [token % 200 + 1 for token in range(300)]
    prompts = [common] * 3 if kind == "whole" else [[*common, *range(n, n + 20)] for n in (1, 2, 3)]
    plain = EngineRunner(spec_of(tiny_dir))
    expected = [plain.alone(prompt, GREEDY, 4) for prompt in prompts]
    rows = [runner.admit(prompt, GREEDY, 4) for prompt in prompts]
    read = 0
    while runner.live:
        read += runner.step().prefill_tokens
    assert [runner.tokens[row] for row in rows] == expected
    assert read <= len(common) + 3 * 25


@pytest.mark.parametrize("cached", [False, True], ids=["no prefix cache", "prefix cache"])
def test_answers_to_one_prompt_fork_its_prefill(tiny_dir: Path, cached: bool) -> None:
    cache_spec = PrefixCacheSpec(1 << 26) if cached else None
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=cache_spec))
    prompt = runner.encode("one prompt for all of them " * 5)
    samplings = [SequenceSampling(1.0, seed=seed) for seed in (1, 2, 3)]
    expected = [runner.alone(prompt, sampling, 12) for sampling in samplings]
    fresh = EngineRunner(spec_of(tiny_dir, prefix_cache=cache_spec))
    rows = [fresh.admit(prompt, sampling, 12) for sampling in samplings]
    read = 0
    while fresh.live:
        read += fresh.step().prefill_tokens
    assert [fresh.tokens[row] for row in rows] == expected
    assert read == len(prompt) + 2


def test_twins_whose_first_is_removed_continue(tiny: EngineRunner) -> None:
    prompt = tiny.encode("x" * 150)
    expected = tiny.alone(prompt, GREEDY, 4)
    rows = [tiny.admit(prompt, GREEDY, 4) for _ in range(3)]
    tiny.step()
    tiny.remove(rows[0])
    tiny.finish()
    assert [tiny.tokens[row] for row in rows[1:]] == [expected] * 2


def test_a_prompts_embeddings_are_not_kept(tiny_dir: Path) -> None:
    """Of a long prompt they are as large as a part of its KV cache."""
    runner = EngineRunner(spec_of(tiny_dir))
    forward = runner.generator._rows._forward  # type: ignore[attr-defined]
    tokens = mx.array([[7] * 200])
    part = forward.embed_part(tokens, 40, 60)
    whole = forward.embed(tokens)
    assert part["inputs_embeds"].shape[1] == 20
    assert mx.array_equal(part["inputs_embeds"], whole["inputs_embeds"][:, 40:60])
    del whole
    row = SequenceRequest(0, [7] * 20_000, 1, GREEDY)
    before = mx.get_active_memory()
    prefill = PromptPrefill(forward, row, forward.new_cache(), 0)
    prefill.advance(64, ())
    all_of_them = len(row.prompt) * part["inputs_embeds"].nbytes // 20
    assert mx.get_active_memory() - before < all_of_them / 4


@pytest.mark.long
def test_a_step_lasts_as_long_as_its_chunk(real: EngineRunner) -> None:
    """Else the chunks' work would pile up in the last one, and nothing could get between."""
    shares = []
    # What comes between a step's beginning and end makes it longer, never shorter.
    for prompt in ("one two three", "four five six", "seven eight nine"):
        other = real.admit("a", GREEDY, 100)
        while not real.tokens[other]:
            real.step()
        row = real.admit(prompt, GREEDY, 2)
        took_s = []
        while row not in real.started:
            # Of the processor: how long it takes says how busy the machine is.
            began_s = time.process_time()
            real.step()
            took_s.append(time.process_time() - began_s)
        real.remove(other)
        real.finish()
        assert len(took_s) >= 4
        shares.append(max(took_s) / sum(took_s))
    assert min(shares) < 0.6


def test_the_last_row_is_served_while_all_others_decode(tiny: EngineRunner) -> None:
    rows = [tiny.admit("a", GREEDY, 40) for _ in range(4)]
    for _ in range(60):
        if tiny.live:
            tiny.step()
    assert [len(tiny.tokens[row]) for row in rows] == [40] * 4


def test_a_row_ends_by_itself_after_its_tokens(tiny: EngineRunner) -> None:
    """Nobody removes it here."""
    tiny.generator.admit(SequenceRequest(999, tiny.encode("a"), 3, GREEDY))
    made = [token for _ in range(10) for token in tiny.generator.step().tokens]
    assert [sequence_id for sequence_id, _, _ in made] == [999] * 3
    tiny.generator.remove(999)


def test_seeds_decide(tiny: EngineRunner) -> None:
    def draw(seed: int) -> list[int]:
        return tiny.alone(QUESTION, SequenceSampling(1.0, 1.0, seed), 16)

    assert draw(5) == draw(5)
    assert len({tuple(draw(seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 30])
def test_a_removed_row_frees_its_place(tiny: EngineRunner, steps: int) -> None:
    """Waiting, in prefill, or decoding; alone or beside another row."""
    expected = tiny.alone("b", GREEDY, 5)
    for beside in (False, True):
        other = tiny.admit("c", GREEDY, 100) if beside else None
        while other is not None and not tiny.tokens[other]:
            tiny.step()
        row = tiny.admit("y" * 60, GREEDY, 400)
        for _ in range(steps):
            tiny.step()
        tiny.remove(row)
        assert tiny.generator.can_admit()
        if other is not None:
            made = [token.sequence_id for _ in range(3) for token in tiny.step().tokens]
            assert set(made) == {other}
            tiny.remove(other)
        assert not tiny.generator.step().tokens
        assert tiny.alone("b", GREEDY, 5) == expected


def test_a_removed_rows_memory_comes_back(tiny: EngineRunner) -> None:
    tiny.resident.rest()
    before = mx.get_active_memory()
    for steps in (3, 40):
        row = tiny.admit("z" * 300, GREEDY, 100)
        for _ in range(steps):
            tiny.step()
        assert mx.get_active_memory() > before
        tiny.remove(row)
        tiny.resident.rest()
        assert mx.get_active_memory() <= before


@pytest.mark.parametrize(
    ("broken", "made"),
    [(Broken(masks=0), 0), (Broken(masks=5), 4), (Broken(accepts=4), 4)],
    ids=["first mask", "later mask", "accept"],
)
def test_a_row_whose_constraint_raises_fails_alone(
    tiny: EngineRunner, broken: Broken, made: int
) -> None:
    expected = tiny.alone("b", GREEDY, 20)
    beside = tiny.admit("b", GREEDY, 20)
    tiny.until(lambda: tiny.tokens[beside])
    row = tiny.admit("a", HOT, 20, constraint=broken)
    tiny.finish()
    assert isinstance(tiny.failed.pop(row), RuntimeError)
    assert len(tiny.tokens[row]) == made
    assert row in tiny.started
    assert tiny.tokens[beside] == expected
    assert tiny.alone("b", GREEDY, 20) == expected


@pytest.mark.parametrize("calls", [0, 1], ids=["first chunk", "last chunk"])
def test_a_row_whose_prefill_raises_fails_alone(
    tiny: EngineRunner, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """As for an array that is too large for the device; where another row decodes."""
    expected = tiny.alone("b", GREEDY, 20)
    beside = tiny.admit("b", GREEDY, 20)
    tiny.until(lambda: tiny.tokens[beside])
    row = tiny.admit(list(range(2 * LEAST_TOKENS + 1)), HOT, 20)
    forward = Forward.prompt
    results = iter([forward] * calls)

    def too_large(*_: Any) -> Any:
        raise RuntimeError("too large")

    monkeypatch.setattr(Forward, "prompt", lambda *given: next(results, too_large)(*given))
    while row not in tiny.failed:
        assert {token.sequence_id for token in tiny.step().tokens} <= {beside}
    monkeypatch.undo()
    assert str(tiny.failed.pop(row)) == "too large"
    assert row not in tiny.started
    assert tiny.generator.can_admit()
    tiny.finish()
    assert tiny.tokens[beside] == expected
    assert tiny.alone("b", GREEDY, 20) == expected


def test_a_row_may_fill_the_context(tiny: EngineRunner) -> None:
    prompt_tokens = len(tiny.encode("z" * 480))
    room = CONTEXT_TOKENS - prompt_tokens
    assert len(tiny.alone("z" * 480, GREEDY, room)) == room


def test_rest_gives_memory_back(tiny: EngineRunner) -> None:
    tiny.alone("z" * 300, GREEDY, 3)
    assert mx.get_cache_memory() > 0
    tiny.resident.rest()
    assert mx.get_cache_memory() == 0


def test_shrinking_between_steps_gives_memory_back_and_changes_no_token(tiny_dir: Path) -> None:
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(64 << 20)))
    runner.alone("z" * 300, GREEDY, 3)
    row = runner.admit("y" * 300, GREEDY, 60)
    runner.until(lambda: len(runner.tokens[row]) >= 20)
    runner.resident.shrink()
    assert mx.get_cache_memory() == 0
    runner.finish()
    assert runner.tokens[row] == EngineRunner(spec_of(tiny_dir)).alone("y" * 300, GREEDY, 60)
    runner.resident.regrow()
    runner.alone("x" * 300, GREEDY, 3)
    following = runner.admit("x" * 300, GREEDY, 3)
    runner.finish()
    assert runner.started[following].cached_tokens > 0
    assert runner.resident.peak_memory_bytes() > 0


def test_a_cancelled_rows_work_is_there_for_its_next_turn(tiny_dir: Path) -> None:
    """With one row, whose caches are a single row's, and beside another one."""
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(64 << 20)))
    for text, beside in (("q" * 40, False), ("r" * 40, True)):
        if beside:
            runner.admit("elsewhere", HOT, 200)
        row = runner.admit(text, HOT, 200)
        while len(runner.tokens.get(row, ())) < 20:
            runner.step()
        history = runner.encode(text) + runner.tokens[row]
        runner.remove(row)
        runner.clear()
        following = runner.admit([*history, 7, 8, 9], GREEDY, 5)
        runner.finish()
        assert runner.started[following].cached_tokens == len(history)
        answer = runner.tokens[following]
        assert answer == Plain(tiny_dir).likeliest([*history, 7, 8, 9], answer)


@pytest.mark.parametrize(
    ("reason", "ends"),
    [
        ("[malloc] Unable to allocate 9 bytes.", False),
        ("[METAL] Command buffer execution failed: Innocent Victim", True),
    ],
)
def test_a_row_whose_work_cannot_be_kept_continues(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, reason: str, ends: bool
) -> None:
    """Neither its prompt nor its answer is kept. A device that has failed is another matter."""
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(64 << 20)))
    expected = runner.alone("b" * 40, GREEDY, 20, cache_salt="alone")

    def full(*_: Any) -> None:
        raise RuntimeError(reason)

    beside = runner.admit("elsewhere" * 4, GREEDY, 40)
    runner.until(lambda: runner.tokens[beside])
    monkeypatch.setattr(PrefixStore, "add", full)
    row = runner.admit("b" * 40, GREEDY, 20)
    if ends:
        runner.until(lambda: row in runner.failed)
        with pytest.raises(RuntimeError, match="METAL"):
            runner.finish()
        return
    with capture_logs() as logs:
        runner.finish()
    assert not runner.failed
    assert runner.tokens[row] == expected
    assert [line["event"] for line in logs].count("prefix_cache.not_stored") == 3
    monkeypatch.undo()
    assert runner.alone("b" * 40, GREEDY, 20) == expected


def test_rows_that_decode_wait_for_no_disk(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while a prefix may come from it, nor when it has taken too long. A row alone
    waits."""
    waits: list[float] = []
    monkeypatch.setattr(PrefixStore, "wait", lambda _, timeout_s: waits.append(timeout_s))
    monkeypatch.setattr(PrefixStore, "bring", lambda *_: False)
    monkeypatch.setattr(cache, "_READ_WAIT_S", 0.01)
    monkeypatch.setattr(batch_engine, "_FETCH_WAIT_S", 0.0)
    spec = PrefixCacheSpec(64 << 20, str(tmp_path), 1 << 20)
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=spec))
    prompt = list(range(40))
    runner.alone(prompt, GREEDY, 2)
    runner.alone(prompt, GREEDY, 2)
    assert waits
    waits.clear()
    beside = runner.admit("b", GREEDY, 100)
    runner.until(lambda: runner.tokens[beside])
    waits.clear()
    row = runner.admit(prompt, GREEDY, 2)
    runner.finish_row(row)
    assert not waits


def test_a_scored_prompt_begins_at_its_start(tiny_dir: Path) -> None:
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(64 << 20)))
    prompt = runner.encode("p" * 60)
    runner.alone(prompt, GREEDY, 2)
    row = runner.admit(prompt, GREEDY, 2, prompt_logprobs=0)
    runner.finish()
    assert runner.started[row].cached_tokens == 0
    assert len(runner.started[row].prompt_scores) == len(prompt) - 1


def test_speculation_changes_no_token(tiny_dir: Path) -> None:
    """As long as rows are few, and when more join. It gets some right: the model repeats
    itself."""
    runner = EngineRunner(spec_of(tiny_dir, speculation=SpeculationSpec(max_rows=1)))
    drafted = accepted = 0
    row = runner.admit("abc" * 20, GREEDY, 120)
    while row in runner.live:
        for drafts in runner.step().drafts:
            drafted += drafts.drafted_tokens
            accepted += drafts.accepted_tokens
        if len(runner.tokens[row]) > 60 and len(runner.tokens) == 1:
            runner.admit("b", HOT, 10)
    runner.finish()
    answer = runner.tokens[row]
    assert len(answer) == 120
    assert answer == Plain(tiny_dir).likeliest(runner.encode("abc" * 20), answer)
    assert 0 < accepted <= drafted


def test_special_tokens_are_text_only_as_markers(tiny: EngineRunner) -> None:
    assert tiny.generator.token_bytes(ord("a")) == b"a" or tiny.encode("a")
    special = min(tiny.facts.eos_token_ids)
    assert tiny.generator.token_bytes(special) == b"<|end|>"
    assert tiny.generator.token_bytes(VOCABULARY + 5) == b""
    detokenizer = tiny.generator.detokenizer(True)
    assert detokenizer.add(special) + detokenizer.flush() == ""


def test_the_bytes_of_tokens_are_those_of_the_text(real: EngineRunner) -> None:
    text = "naïve 漢字 🙂 tabs\tand\nlines"
    source = PromptSource(text=text)
    tokens = real.generator.encode(source).tokens
    assert b"".join(map(real.generator.token_bytes, tokens)).decode() == text


def test_it_tokenizes_and_refuses_other_tasks(tiny: EngineRunner) -> None:
    reply = tiny.tasks.plan(Detokenize(1, "r", 1.0, tokens=tuple(tiny.encode("hello"))))
    assert isinstance(reply, Detokenized)
    assert "hello" in reply.text
    with pytest.raises(RequestError) as caught:
        tiny.tasks.plan(Rerank(1, "r", 1.0, "q", ("d",)))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VALUE


def test_a_context_beyond_the_models_is_refused(tiny_dir: Path) -> None:
    with pytest.raises(OperationError, match="lower it") as caught:
        load_engine(spec_of(tiny_dir, context_length=CONTEXT_TOKENS + 1), lambda *_: None)
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_a_configured_context_is_kept(tiny_dir: Path) -> None:
    engine = load_engine(spec_of(tiny_dir, context_length=100), lambda *_: None)
    assert engine.facts.context_tokens == 100


def test_a_model_that_cannot_run_is_not_loaded(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first row is the warm-up's."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(Forward, "prompt", broken)
    monkeypatch.setattr(mlx_batch, "can_batch", lambda _: True)
    with pytest.raises(RuntimeError, match="broken"):
        load_engine(spec_of(tiny_dir), lambda *_: None)


def test_an_unknown_tool_parser_is_refused(tiny_dir: Path) -> None:
    with pytest.raises(OperationError, match="nonsense") as caught:
        load_engine(spec_of(tiny_dir, tool_parser="nonsense"), lambda *_: None)
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_rows_of_a_model_that_cannot_batch_take_turns(tmp_path: Path) -> None:
    """None waits until another one has ended, a long prompt is read between their tokens, and each
    answer is as alone."""
    folder = make_tiny_model(tmp_path, "gemma2")
    runner = EngineRunner(spec_of(folder))
    asked = [("a", GREEDY), ("bcd", HOT), ("z" * 300, GREEDY)]
    expected = [runner.alone(text, sampling, 12) for text, sampling in asked]
    rows = [runner.admit(text, sampling, 12) for text, sampling in asked[:2]]
    while not all(runner.tokens[row] for row in rows):
        runner.step()
    rows.append(runner.admit(*asked[2], 12))
    made = {row: len(runner.tokens[row]) for row in rows}
    while not runner.tokens[rows[2]]:
        runner.step()
        lead = [len(runner.tokens[row]) for row in rows[:2] if row in runner.live]
        assert not lead or max(lead) - min(lead) <= 1
    assert all(len(runner.tokens[row]) > made[row] for row in rows[:2]), "they waited for a prompt"
    runner.finish()
    assert [runner.tokens[row] for row in rows] == expected
    assert expected[0] == Plain(folder).likeliest(runner.encode("a"), expected[0])


def test_a_model_that_keeps_something_of_the_last_row_serves_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that can batch has several."""
    decode = Forward.decode
    last: list[mx.array] = []

    def keeping(self: Forward, tokens: mx.array, *more: Any) -> mx.array:
        logits = decode(self, tokens, *more)
        before, last[:] = list(last), [tokens]
        return logits if not before else logits + 100 * mx.sin(logits * before[0][0, 0])

    folder = make_tiny_model(tmp_path, "gemma2")
    with capture_logs() as logs:
        monkeypatch.setattr(Forward, "decode", keeping)
        runner = EngineRunner(spec_of(folder), fresh=True)
        monkeypatch.undo()
    assert [line["off"] > 0.1 for line in logs if line["event"] == "batching.serial_probed"] == [
        True
    ]
    row = runner.admit("a", GREEDY, 4)
    runner.step()
    assert not runner.generator.can_admit()
    runner.finish()
    assert runner.generator.can_admit()
    answer = runner.tokens[row]
    assert answer == Plain(folder).likeliest(runner.encode("a"), answer)


def test_trying_whether_a_model_can_batch_takes_each_prompt_once(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every load pays for it."""
    forward = Forward(load(str(tiny_dir))[0])
    taken: list[int] = []
    prompt = Forward.prompt

    def count(self: Forward, tokens: mx.array, *more: Any) -> mx.array:
        taken.append(tokens.size)
        return prompt(self, tokens, *more)

    monkeypatch.setattr(Forward, "prompt", count)
    assert can_batch(forward)
    assert sum(taken) == 64 + 4


@pytest.mark.parametrize("error", [IndexError, AssertionError, NotImplementedError, ValueError])
def test_what_a_library_raises_in_the_trial_is_no_failed_load(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    forward = Forward(load(str(tiny_dir))[0])
    monkeypatch.setattr(batch_mode, "joined", Mock(side_effect=error("no batch")))
    assert not can_batch(forward)
