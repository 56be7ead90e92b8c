"""With quantized keys and values a row's tokens are the same whatever happens to the row."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.worker.engine.values import BeamSearch
from lmx.worker.mlx.model.batch_slots import single_row
from lmx.worker.mlx.model.quantized_cache import (
    BatchQuantizedCache,
    Packing,
    QuantizedCache,
    leaves,
)
from lmx.worker.mlx.prefix.state import CacheLayout
from tests.support.models.tiny_models import VOCABULARY, make_tiny_model
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, spec_of

pytestmark = pytest.mark.long

KINDS = ("llama-64", "gemma3-64", "qwen3_next-64")
# Some are read in one chunk with other rows' tokens between them, some slide out of a window, and
# one has nothing to be read before it decodes.
LENGTHS = (40, 3, 75, 18, 1)
COUNT = 16


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(1000 * seed + length).choices(range(VOCABULARY), k=length)


QUICK = (("llama-64", 8), ("gemma3-64", 4), ("qwen3_next-64", 4))
"""Those that `make test-all` has. Four bits are packed as eight are; `make conformance` has all."""

CASES = [
    pytest.param((kind, bits), marks=() if (kind, bits) in QUICK else pytest.mark.conformance)
    for kind in KINDS
    for bits in (8, 4)
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind, bits = request.param
    return make_tiny_model(tmp_path_factory.mktemp(kind), kind), bits


@pytest.fixture(scope="module")
def shared(model: tuple[Path, int]) -> EngineRunner:
    folder, bits = model
    return EngineRunner(spec_of(folder, kv_bits=bits, prefix_cache=PrefixCacheSpec(64 << 20)))


@pytest.fixture
def runner(shared: EngineRunner) -> Iterator[EngineRunner]:
    yield shared
    shared.clear()


def cold(runner: EngineRunner, *asked: Any, **more: Any) -> list[int]:
    """What a row makes alone, of a prompt that is read in one chunk."""
    return runner.alone(*asked, cache_salt=f"cold {len(runner.requests)}", **more)


def caches(runner: EngineRunner) -> set[type]:
    rows: Any = runner.generator
    return {type(leaf) for leaf in leaves(rows._rows._buckets.only.prompt_cache)}


def test_rows_that_join_and_leave_are_what_they_are_alone(runner: EngineRunner) -> None:
    """The others decode, so that their prompts are read in chunks."""
    samplings = [GREEDY, HOT, GREEDY, replace(HOT, seed=7), GREEDY]
    expected = [
        cold(runner, prompt_of(length), one, COUNT)
        for length, one in zip(LENGTHS, samplings, strict=True)
    ]
    leaving = runner.admit(prompt_of(33), HOT, 500, cache_salt="leaves")
    rows = []
    for number, (length, sampling) in enumerate(zip(LENGTHS, samplings, strict=True)):
        rows.append(runner.admit(prompt_of(length), sampling, COUNT, cache_salt="joins"))
        for _ in range(number + 1):
            runner.step()
        if number == 2:
            # How many steps a prompt takes depends on how quick the machine is.
            while BatchQuantizedCache not in caches(runner):
                assert len(runner.tokens[leaving]) < 400, "no row has joined it"
                runner.step()
            runner.remove(leaving)
    runner.finish_row(rows[0])
    runner.finish()
    assert [runner.tokens[row] for row in rows] == expected


def test_the_last_row_of_a_batch_is_a_single_one_again(runner: EngineRunner) -> None:
    expected = cold(runner, prompt_of(30, 1), HOT, 30)
    row = runner.admit(prompt_of(30, 1), HOT, 30, cache_salt="single")
    other = runner.admit(prompt_of(50, 1), HOT, 10, cache_salt="single")
    runner.finish_row(other)
    assert QuantizedCache in caches(runner)
    runner.finish()
    assert runner.tokens[row] == expected


def test_a_row_continues_from_what_was_stored(runner: EngineRunner) -> None:
    """Out of a batch, as it is: nothing is rounded twice."""
    first = [prompt_of(40, 2), prompt_of(60, 2)]
    rows = [runner.admit(prompt, HOT, 30, cache_salt="turns") for prompt in first]
    runner.finish()
    for prompt, row in zip(first, rows, strict=True):
        second = [*prompt, *runner.tokens[row], *prompt_of(9, 3)]
        expected = cold(runner, second, HOT, COUNT)
        again = runner.admit(second, HOT, COUNT, cache_salt="turns")
        runner.finish()
        assert runner.started[again].cached_tokens >= len(prompt)
        assert runner.tokens[again] == expected


def test_answers_to_one_prompt_share_its_reading(runner: EngineRunner) -> None:
    prompt = prompt_of(50, 4)
    samplings = [HOT, replace(HOT, seed=5), GREEDY]
    expected = [cold(runner, prompt, one, COUNT) for one in samplings]
    rows = [runner.admit(prompt, one, COUNT, cache_salt="duplicates") for one in samplings]
    runner.finish()
    assert [runner.tokens[row] for row in rows] == expected


def test_a_preempted_row_continues(runner: EngineRunner) -> None:
    prompt = prompt_of(60, 5)
    expected = cold(runner, prompt, HOT, 30)
    row = runner.admit(prompt, HOT, 30, cache_salt="preempted")
    other = runner.admit(prompt_of(20, 5), HOT, 400, cache_salt="preempted")
    runner.until(lambda: len(runner.tokens[row]) >= 12)
    runner.flush()
    made = runner.generator.preempt(row)
    assert made is not None
    runner.step()
    asked = runner.requests[row]
    back = [*prompt, *made]
    runner.generator.admit(
        replace(asked, prompt=back, max_tokens=30 - len(made), generated_tokens=len(made))
    )
    runner.finish_row(row)
    runner.remove(other)
    assert runner.tokens[row] == expected


def test_a_search_keeps_its_beams(runner: EngineRunner) -> None:
    beam = BeamSearch(3, 1.0, frozenset())
    found = []
    for company in (False, True):
        if company:
            runner.admit(prompt_of(12), HOT, 12)
        row = runner.admit(prompt_of(24), GREEDY, 8, beam=beam)
        runner.finish()
        found.append([list(one.tokens) for one in runner.found[row]])
    assert found[0] == found[1]
    assert len(found[0]) == 3


def test_a_model_that_can_batch_only_with_expanded_numbers_does_so(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3_5-64")
    runner = EngineRunner(spec_of(folder, kv_bits=8, max_decode_stall_s=10))
    inner: Any = runner.generator
    packings = inner._rows._forward.kv_quantization.packings
    assert {packing.expanded for packing in packings if packing is not None} == {True}
    expected = [runner.alone(prompt_of(length), GREEDY, COUNT) for length in LENGTHS]
    rows = [runner.admit(prompt_of(length), GREEDY, COUNT) for length in LENGTHS]
    assert len(runner.live) == len(rows), "they don't wait for each other"
    runner.finish()
    assert [runner.tokens[row] for row in rows] == expected


def test_rows_of_different_lengths_are_whole_in_one_batch_and_out_of_it() -> None:
    """A batch knows its length too: by it, padding is cut off."""
    mx.random.seed(0)
    packing = Packing(8, 32)
    rows = [QuantizedCache(packing) for _ in range(2)]
    for row, tokens in zip(rows, (5, 300), strict=True):
        row.update_and_fetch(*mx.random.normal((2, 1, 2, tokens, 32)))
    batch = QuantizedCache.merge(rows)
    assert [row.size() for row in rows] == [5, 300]
    assert batch.size() == 300
    assert batch.offset.tolist() == [5, 300]
    more = mx.random.normal((2, 2, 2, 3, 32))
    batch.update_and_fetch(*more)
    assert batch.size() == 303
    for place, row in enumerate(rows):
        row.update_and_fetch(*more[:, place : place + 1])
        again = batch.extract(place)
        assert again.size() == row.size()
        for whole, part in zip(row.state, again.state, strict=True):
            assert all(mx.array_equal(one, other) for one, other in zip(whole, part, strict=True))
    assert QuantizedCache.merge([QuantizedCache(packing)]).size() == 0
    (single,) = single_row([QuantizedCache.merge([QuantizedCache(packing)] * 2)], 1)
    assert type(single) is QuantizedCache
    half_full = QuantizedCache.merge([QuantizedCache(packing), rows[0]])
    assert [half_full.extract(place).size() for place in range(2)] == [0, rows[0].size()]


def test_keys_that_a_model_makes_wait_for_others_are_stored() -> None:
    """``mx.depends`` makes a list of a tuple: some models with an indexer do that to their keys."""
    layout = CacheLayout(lambda: [QuantizedCache(Packing(8, 32))])
    row = QuantizedCache(Packing(8, 32))
    row.update_and_fetch(*mx.random.normal((2, 1, 2, 5, 32)))
    kept = layout.run([row], None, 0, 5)
    row.keys = mx.depends(row.keys, [mx.zeros(1)])
    again = layout.run([row], None, 0, 5)
    assert kept.keys() == again.keys()
    assert all(mx.array_equal(again[name], array) for name, array in kept.items())


@pytest.mark.parametrize("bits", [8, pytest.param(4, marks=pytest.mark.conformance)])
def test_guesses_change_no_answer(tmp_path: Path, bits: int) -> None:
    """The rows keep different numbers of guesses, and the wrong ones are taken back."""
    folder = make_tiny_model(tmp_path, "llama-64")
    plain = EngineRunner(spec_of(folder, kv_bits=bits, max_decode_stall_s=10))
    guessing = EngineRunner(
        spec_of(folder, kv_bits=bits, max_decode_stall_s=10, speculation=SpeculationSpec())
    )
    drafted = accepted = 0
    answers = []
    prompts = [prompt_of(8, seed) * 6 for seed in (6, 7)]
    for runner in (plain, guessing):
        rows = [runner.admit(prompt, GREEDY, 60) for prompt in prompts]
        while runner.live:
            for drafts in runner.step().drafts:
                drafted += drafts.drafted_tokens
                accepted += drafts.accepted_tokens
        answers.append([runner.tokens[row] for row in rows])
    assert answers[0] == answers[1]
    assert 0 < accepted < drafted


def test_what_was_stored_with_other_bits_is_not_found_on_disk(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama-64")
    disk = PrefixCacheSpec(64 << 20, str(tmp_path / "prefixes"), 64 << 20)
    prompt = prompt_of(80)
    cached: dict[int | None, list[int]] = {}
    for bits in (None, 8, 4, 8):
        runner = EngineRunner(spec_of(folder, kv_bits=bits, prefix_cache=disk))
        row = runner.admit(prompt, GREEDY, 4)
        runner.finish()
        runner.resident.close()
        cached.setdefault(bits, []).append(runner.started[row].cached_tokens)
    assert cached == {None: [0], 8: [0, len(prompt) - 1], 4: [0]}
    mx.clear_cache()
