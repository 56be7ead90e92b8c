"""With quantized keys and values a row's tokens are the same whatever happens to the row."""

import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
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

# Some are read in one chunk with other rows' tokens between them, some slide out of a window, and
# one has nothing to be read before it decodes.
LENGTHS = (40, 3, 75, 18, 1)
COUNT = 16


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(1000 * seed + length).choices(range(VOCABULARY), k=length)


def test_the_last_row_of_a_batch_is_a_single_one_again(tmp_path: Path) -> None:
    runner = EngineRunner(spec_of(make_tiny_model(tmp_path, "llama-64"), kv_bits=8))
    inner: Any = runner.generator

    def caches() -> set[type]:
        return {type(leaf) for leaf in leaves(inner._rows._buckets.only.prompt_cache)}

    expected = runner.alone(prompt_of(30, 1), HOT, 30)
    row = runner.admit(prompt_of(30, 1), HOT, 30)
    other = runner.admit(prompt_of(50, 1), HOT, 10)
    runner.until(lambda: bool(runner.tokens[row] and runner.tokens[other]))
    assert BatchQuantizedCache in caches()
    runner.finish_row(other)
    assert QuantizedCache in caches()
    runner.finish()
    assert runner.tokens[row] == expected


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
