"""What the prefix cache keeps, finds and gives up; with caches that say what they hold."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_vlm.models.cache import BatchKVCache, KVCache, QuantizedKVCache

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.mlx.prefix.cache import PrefixCache
from tests.support.fakes.reported_caches import (
    BYTES_A_TOKEN,
    MIXED,
    PLAIN,
    fill,
    find,
    held_by,
    keep,
    on_disk,
    prompt,
)
from tests.support.rigs.budgets import examples

AMPLE = PrefixCacheSpec(1 << 24)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


# Plain caches.


def test_what_is_found_never_ends_inside_of_a_part_that_is_computed_in_one_go() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    keep(cache, PLAIN, prompt(1, 100), "s")
    asked = prompt(1, 70) + prompt(2, 30)
    for atomic, found in (
        ([(20, 90)], 20),
        ([(20, 70)], 70),
        ([(70, 90)], 70),
        ([(20, 60), (65, 80)], 65),
        ([(20, 66), (65, 80)], 20),
        ([(5, 90)], 0),
    ):
        warm = cache.lookup(asked, "s", atomic)
        assert (warm.cached_tokens if warm else 0) == found
        assert cache.found(asked, "s", atomic) == found


def test_a_plain_cache_is_cut_where_two_prompts_part() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    system = prompt(1, 700)
    first, second = system + prompt(2, 50), system + prompt(3, 90)
    assert find(cache, first) == 0
    keep(cache, PLAIN, first)
    assert find(cache, second) == 700
    keep(cache, PLAIN, second)
    assert find(cache, [*second, 5]) == 790
    assert find(cache, [*first, 5]) == 750
    assert find(cache, first) == 749  # One token is left to be computed.
    assert find(cache, first[:100]) == 99
    assert cache.checkpoints(first, 0) == ()


def test_what_prompts_share_is_kept_once() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    turn = prompt(1, 900)
    keep(cache, PLAIN, turn)
    answered = turn + prompt(2, 100)
    keep(cache, PLAIN, answered)
    keep(cache, PLAIN, answered)
    keep(cache, PLAIN, turn[:500])
    keep(cache, PLAIN, turn[:500] + prompt(3, 40))
    assert cache.bytes_held() == 1040 * BYTES_A_TOKEN


def test_a_few_tokens_are_not_worth_it() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    keep(cache, PLAIN, prompt(1, 15))
    assert cache.bytes_held() == 0
    keep(cache, PLAIN, prompt(1, 100))
    assert find(cache, prompt(1, 15) + prompt(2, 100)) == 0


def test_what_is_given_can_be_written_to_and_what_was_taken_continues() -> None:
    """Neither the caches that lookups gave nor the one that was stored reach into the store."""
    for model in (PLAIN, MIXED):
        cache = PrefixCache(model.make_cache, AMPLE, "n")
        tokens = prompt(1, 256)  # A buffer that is full, so that nothing has to be cut off.
        live = held_by(model, tokens)
        cache.store(tokens, live, "")
        overwrite(live)
        fill(live, tokens + prompt(2, 10))
        for _ in range(2):
            warm = cache.lookup([*tokens, 7], "")
            assert warm is not None
            overwrite(warm.prompt_cache)
        assert find(cache, [*tokens, 7]) == 256


def overwrite(prompt_cache: Sequence[Any]) -> None:
    for layer in prompt_cache:
        if isinstance(layer, KVCache):
            layer.keys[..., :50, :] = mx.zeros((1, 1, 50, 2))
            layer.values[..., :50, :] = mx.zeros((1, 1, 50, 2))
        else:
            layer[0][...] = mx.array([[0]])
            layer[1] = mx.array([[0]], mx.uint32)
    mx.eval([layer.state for layer in prompt_cache])


def test_rows_of_a_batch() -> None:
    cache = PrefixCache(MIXED.make_cache, AMPLE, "n")
    rows = [prompt(1, 40), prompt(2, 300), prompt(3, 77)]
    caches = [held_by(MIXED, row) for row in rows]
    batch = [layers[0].merge(list(layers)) for layers in zip(*caches, strict=True)]
    assert isinstance(batch[0], BatchKVCache)
    for n, row in enumerate(rows):
        cache.store(row, batch, "", row=n)
    for row in rows:
        assert find(cache, [*row, 9]) == len(row)


def test_a_cache_that_is_ahead_of_its_tokens() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    cache.store(prompt(1, 50), held_by(PLAIN, prompt(1, 52)), "")
    assert find(cache, prompt(1, 60)) == 50


def test_room_for_the_rest_of_the_prompt() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    keep(cache, PLAIN, prompt(1, 100))
    warm = cache.lookup(prompt(1, 600), "")
    assert warm is not None and warm.prompt_cache[0].keys.shape[2] == 768


# States.


def test_a_state_is_found_where_it_was_taken() -> None:
    cache = PrefixCache(MIXED.make_cache, AMPLE, "n")
    tokens = prompt(1, 600)
    assert list(cache.checkpoints(tokens, 0)) == [256, 512, 592]
    for length in cache.checkpoints(tokens, 0):
        keep(cache, MIXED, tokens[:length])
    assert find(cache, tokens) == 592
    assert find(cache, tokens[:592]) == 512
    assert find(cache, tokens[:400] + prompt(2, 90)) == 256
    assert find(cache, tokens[:200] + prompt(2, 90)) == 0
    keep(cache, MIXED, tokens)  # Only a few tokens after the last one.
    assert find(cache, [*tokens, 1]) == 592
    keep(cache, MIXED, tokens + prompt(2, 8))
    assert find(cache, tokens + prompt(2, 50)) == 608
    assert list(cache.checkpoints(tokens, 592)) == []


def test_states_are_kept_once() -> None:
    cache = PrefixCache(MIXED.make_cache, AMPLE, "n")
    keep(cache, MIXED, prompt(1, 100))
    held = cache.bytes_held()
    keep(cache, MIXED, prompt(1, 100))
    assert cache.bytes_held() == held
    keep(cache, MIXED, prompt(1, 60))  # Its run is there, its state isn't.
    assert cache.bytes_held() == held + 8
    assert find(cache, prompt(1, 90)) == 60


def test_where_prompts_branch_off_is_a_checkpoint() -> None:
    cache = PrefixCache(MIXED.make_cache, AMPLE, "n")
    system = prompt(1, 200)
    keep(cache, MIXED, system + prompt(2, 50), "s")
    other = system + prompt(3, 50)
    assert list(cache.checkpoints(other, 0, "s")) == [200, 242]
    assert list(cache.checkpoints(other, 0, "t")) == [242]
    keep(cache, MIXED, other[:200], "s")
    assert find(cache, system + prompt(4, 50), "s") == 200


def test_caches_that_nobody_knows_are_left_alone() -> None:
    class Strange:
        pass

    class Model:
        def make_cache(self) -> list[Any]:
            return [KVCache(), Strange()]

    cache = PrefixCache(Model().make_cache, AMPLE, "n")
    tokens = prompt(1, 50)
    cache.store(tokens, [KVCache(), Strange()], "")
    assert cache.lookup(tokens, "") is None and cache.checkpoints(tokens, 0) == ()


def test_a_plain_cache_that_became_another_ends_it() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    tokens = prompt(1, 50)
    cache.store(tokens, [QuantizedKVCache(), QuantizedKVCache()], "")
    keep(cache, PLAIN, tokens)
    assert cache.lookup(tokens, "") is None


# Tenants.


def test_another_salt_never_hits(folder: Path) -> None:
    tokens = prompt(1, 100)
    cache = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    keep(cache, PLAIN, tokens, "a")
    assert find(cache, tokens, "b") == 0 and find(cache, tokens) == 0
    assert find(cache, tokens, "a") == 99
    cache.close()
    again = PrefixCache(PLAIN.make_cache, on_disk(folder), "n")
    assert find(again, tokens, "b") == 0 and find(again, tokens) == 0
    assert find(again, tokens, "a") == 99
    other_model = PrefixCache(PLAIN.make_cache, on_disk(folder), "other")
    assert find(other_model, tokens, "a") == 0


# Memory.


def test_memory_stays_within_its_budget() -> None:
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    limit = 2000 * BYTES_A_TOKEN
    cache = PrefixCache(PLAIN.make_cache, PrefixCacheSpec(limit), "n")
    for seed in range(20):
        keep(cache, PLAIN, prompt(seed, 400))
        assert find(cache, prompt(seed, 400)) == 399
        assert cache.bytes_held() <= limit
        if seed % 5 == 4:
            gc.collect()
            # Small buffers are rounded up.
            assert mx.get_active_memory() - before <= limit + 64 * 1024
    assert cache.bytes_held() == 2000 * BYTES_A_TOKEN
    assert [find(cache, prompt(seed, 400)) for seed in (14, 15, 16)] == [0, 399, 399]


def test_shrinking_gives_up_the_colder_half_and_keeps_to_the_other_until_it_regrows() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    for seed in range(8):
        keep(cache, PLAIN, prompt(seed, 100))
    cache.shrink()
    assert cache.bytes_held() == 400 * BYTES_A_TOKEN
    assert [find(cache, prompt(seed, 100)) for seed in range(8)] == [0] * 4 + [99] * 4
    keep(cache, PLAIN, prompt(8, 100))
    assert cache.bytes_held() == 400 * BYTES_A_TOKEN
    cache.shrink()
    assert cache.bytes_held() == 200 * BYTES_A_TOKEN
    cache.regrow()
    for seed in range(8):
        keep(cache, PLAIN, prompt(seed, 100))
    assert cache.bytes_held() >= 800 * BYTES_A_TOKEN


def test_an_empty_cache_shrinks_to_nothing() -> None:
    cache = PrefixCache(PLAIN.make_cache, AMPLE, "n")
    cache.shrink()
    keep(cache, PLAIN, prompt(1, 100))
    assert cache.bytes_held() == 0
    cache.regrow()
    keep(cache, PLAIN, prompt(1, 100))
    assert find(cache, prompt(1, 100)) == 99


def test_what_is_used_stays() -> None:
    cache = PrefixCache(PLAIN.make_cache, PrefixCacheSpec(1000 * BYTES_A_TOKEN), "n")
    for seed in range(10):
        keep(cache, PLAIN, prompt(seed, 300))
        assert find(cache, prompt(0, 300)) == 299


def test_of_a_prompt_too_long_its_beginning_is_kept() -> None:
    cache = PrefixCache(PLAIN.make_cache, PrefixCacheSpec(1200 * BYTES_A_TOKEN), "n")
    keep(cache, PLAIN, prompt(1, 1500))
    assert find(cache, prompt(1, 1500)) == 1024
    keep(cache, PLAIN, prompt(1, 1500))
    assert cache.bytes_held() <= 1200 * BYTES_A_TOKEN


def test_a_state_too_large_is_not_kept_in_part() -> None:
    cache = PrefixCache(MIXED.make_cache, PrefixCacheSpec(1200 * BYTES_A_TOKEN), "n")
    keep(cache, MIXED, prompt(1, 1500))
    assert cache.bytes_held() == 0


# All of it together, against a model of what is to be found.

WORDS = st.integers(1, 5)
PROMPTS = st.lists(WORDS, min_size=1, max_size=8)
STEPS = st.lists(
    st.tuples(st.sampled_from(["store", "find", "restart"]), st.sampled_from("ab"), PROMPTS),
    max_size=25,
)


@settings(max_examples=examples(150), deadline=None)
@given(states=st.booleans(), ample=st.booleans(), steps=STEPS)
def test_any_sequence_of_stores_and_lookups(
    tmp_path_factory: pytest.TempPathFactory, states: bool, ample: bool, steps: list[Any]
) -> None:
    """Whatever is found is right; with room for all, it is also the longest."""
    folder = tmp_path_factory.mktemp("prefixes")
    model = MIXED if states else PLAIN
    spec = on_disk(folder) if ample else on_disk(folder, 400 * BYTES_A_TOKEN, 40_000)
    cache = PrefixCache(model.make_cache, spec, "n")
    stored: list[tuple[str, list[int]]] = []
    for action, salt, words in steps:
        # Words of 20 tokens: what two prompts share is worth it, or nothing at all.
        tokens = [token for word in words for token in prompt(word, 20)]
        if action == "store":
            keep(cache, model, tokens, salt)
            stored.append((salt, tokens))
        elif action == "restart":
            cache.close()
            cache = PrefixCache(model.make_cache, spec, "n")
        else:
            found = find(cache, [*tokens, 1], salt)
            known = [other for its_salt, other in stored if its_salt == salt]
            best = max((agreed(tokens, other, whole=states) for other in known), default=0)
            assert found <= best
            if ample:
                assert found == best
        assert cache.bytes_held() <= spec.memory_bytes
    cache.close()


def agreed(tokens: Sequence[int], other: Sequence[int], whole: bool) -> int:
    if whole:
        return len(other) if tokens[: len(other)] == other else 0
    pairs = zip(tokens, other, strict=False)
    parted = (n for n, (one, two) in enumerate(pairs) if one != two)
    return next(parted, min(len(tokens), len(other)))
