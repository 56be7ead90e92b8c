"""The size of prefill chunks: running streams wait no longer than they may."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.mlx.decoding.pace import (
    LEAST_TOKENS,
    MOST_TOKENS,
    PrefillPace,
    layers_at_once,
    pauses,
)


class Machine:
    """A device whose chunks take ``chunk_s``, and so long for each token, more when deeper."""

    def __init__(self, chunk_s: float, token_s: float, double_depth: float) -> None:
        self._chunk_s = chunk_s
        self._token_s = token_s
        self._double_depth = double_depth

    def takes_s(self, tokens: int, depth: int) -> float:
        return self._chunk_s + tokens * self._token_s * (1 + depth / self._double_depth)


def prefill(
    pace: PrefillPace, machine: Machine, prompt: int, decode_s: float, cached: int = 0
) -> list[tuple[int, float]]:
    """Run one prompt through; return each chunk's tokens and how long the step took."""
    decoding = decode_s > 0
    done, steps = cached, []
    while done < prompt:
        most_tokens = pace.chunk(done, decoding=decoding)
        tokens = min(most_tokens, prompt - done)
        took_s = machine.takes_s(tokens, done)
        pace.prefilled(tokens, took_s, done, decoding=decoding, most_tokens=most_tokens)
        steps.append((tokens, took_s + decode_s))
        done += tokens
    return steps


@given(
    max_stall_s=st.floats(0.05, 10),
    decode_share=st.floats(0.01, 0.4),
    chunk_share=st.floats(0, 0.1),
    fitting_tokens=st.floats(16, 10_000),
    double_depth=st.floats(2_000, 1e9),
    prompts=st.lists(st.integers(1, 20_000), min_size=1, max_size=4),
)
def test_no_stream_waits_longer_than_it_may(
    max_stall_s: float,
    decode_share: float,
    chunk_share: float,
    fitting_tokens: float,
    double_depth: float,
    prompts: list[int],
) -> None:
    """Whatever the machine: if the least chunk fits at all, so does every chunk chosen."""
    deepest = 1 + max(prompts) / double_depth
    token_s = (0.5 - decode_share) * max_stall_s / fitting_tokens / deepest
    decode_s = decode_share * max_stall_s
    machine = Machine(chunk_share * max_stall_s, max(token_s, 1e-9), double_depth)
    pace = PrefillPace(max_stall_s)
    pace.decoded(decode_s)
    for prompt in prompts:
        steps = prefill(pace, machine, prompt, decode_s)
        assert all(took_s <= max_stall_s for _, took_s in steps)
        sizes = [tokens for tokens, _ in steps]
        assert all(LEAST_TOKENS <= size <= MOST_TOKENS for size in sizes[:-1])
        assert all(after <= 2 * before for before, after in pairwise(sizes))


def test_the_time_is_used() -> None:
    """Small chunks would be safe, and slow. How much of the limit is kept in reserve is learned."""
    pace, machine = PrefillPace(1.0), Machine(0.01, 0.001, 1e9)
    pace.decoded(0.05)
    steps = prefill(pace, machine, 2_000, 0.05)
    assert max(took_s for _, took_s in steps) == pytest.approx(0.75, abs=0.05)
    prefill(pace, machine, 40_000, 0.05)
    steps = prefill(pace, machine, 5_000, 0.05)
    assert max(took_s for _, took_s in steps) == pytest.approx(0.86, abs=0.03)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_yields_is_read_in_small_chunks(on_gpu: bool) -> None:
    """Nobody waits for it, and somebody may come. What others read is as before."""
    pace, machine = PrefillPace(0.4, on_gpu=on_gpu), Machine(0.0, 0.001, 1e9)
    pace.decoded(0.001)
    for decoding in (False, True):
        for _ in range(20):
            tokens = pace.chunk(0, decoding=decoding, yields=True)
            took_s = machine.takes_s(tokens, 0)
            pace.prefilled(tokens, took_s, 0, decoding=decoding, yields=True)
        assert 0.25 * pace.part_s < took_s <= pace.part_s <= 0.1
    prefill(pace, machine, 20_000, 0)
    assert pace.chunk(0, decoding=False) > 0.9 * 1000 * pace.budget_s(False) >= 900


def test_a_machine_that_slept_is_soon_trusted_again() -> None:
    """A chunk that took a thousand times as long says no more than one that took twice as long."""
    pace, machine = PrefillPace(1.0), Machine(0.0, 0.001, 1e9)
    pace.decoded(0.05)
    prefill(pace, machine, 40_000, 0.05)
    before = pace.chunk(0, decoding=True)
    pace.prefilled(before, 1_000.0, 0, decoding=True)
    assert pace.chunk(0, decoding=True) == LEAST_TOKENS
    for _ in range(25):
        tokens = pace.chunk(0, decoding=True)
        pace.prefilled(tokens, machine.takes_s(tokens, 0), 0, decoding=True)
    assert pace.chunk(0, decoding=True) == pytest.approx(before, rel=0.05)


def test_the_end_of_a_prompt_is_judged_by_what_it_was_allowed() -> None:
    """Though another prompt's chunk was chosen and read while it paused."""
    pace, machine = PrefillPace(1.0), Machine(0.05, 0.001, 1e9)
    prefill(pace, machine, 40_000, 0)
    before = pace.chunk(0, decoding=False)
    assert before > 500
    pace.chunk(0, decoding=False, yields=True)
    pace.prefilled(20, machine.takes_s(20, 0), 0, decoding=False, most_tokens=before)
    assert pace.chunk(0, decoding=False) == before


def test_late_chunks_make_the_next_ones_smaller() -> None:
    """One of them little, every third one more; and when none is late any more, it is as before."""
    pace, steady = PrefillPace(1.0), Machine(0.0, 0.001, 1e9)
    pace.decoded(0.01)
    prefill(pace, steady, 60_000, 0.01)
    calm = pace.chunk(0, decoding=True)

    def chunk_after_a_late_one() -> int:
        for late in (1.5, 1.0, 1.0):
            tokens = pace.chunk(0, decoding=True)
            pace.prefilled(tokens, late * steady.takes_s(tokens, 0), 0, decoding=True)
        return pace.chunk(0, decoding=True)

    assert 0.85 * calm < chunk_after_a_late_one() < calm
    sizes = [chunk_after_a_late_one() for _ in range(10)]
    assert sizes[-1] < 0.85 * calm
    prefill(pace, steady, 60_000, 0.01)
    assert pace.chunk(0, decoding=True) == pytest.approx(calm, rel=0.05)


def test_one_late_decode_step_makes_no_chunk_smaller() -> None:
    """It says little of the next one; two of three say that they take longer."""
    pace, steady = PrefillPace(1.0), Machine(0.0, 0.001, 1e9)
    for _ in range(3):
        pace.decoded(0.1)
    prefill(pace, steady, 60_000, 0.1)
    calm = pace.chunk(0, decoding=True)
    pace.decoded(0.4)
    assert pace.chunk(0, decoding=True) == calm
    pace.decoded(0.4)
    assert pace.chunk(0, decoding=True) == pytest.approx(calm - 300, abs=2)


@given(noise=st.floats(0, 0.3), seed=st.integers(0, 1_000))
def test_on_a_slow_machine_whose_chunks_scatter_the_limit_holds(noise: float, seed: int) -> None:
    """Here a chunk's fixed cost is most of the time that there is: an eighth more of it is a
    third more tokens. What scatters by more than a seventh is a little over it at times."""
    pace, random, limit_s = PrefillPace(0.5), Random(seed), 0.5
    most_s = limit_s if noise <= 0.15 else 1.1 * limit_s
    machine, done, decode_s = Machine(0.1, 0.006, 1e9), 0, 0.13
    pace.decoded(decode_s)
    while done < 1_000:
        tokens = pace.chunk(done, decoding=True)
        took_s = machine.takes_s(tokens, done) * (1 + noise * random.random())
        assert decode_s + took_s <= most_s
        pace.prefilled(tokens, took_s, done, decoding=True)
        decode_s = 0.13 * (1 + noise * random.random())
        pace.decoded(decode_s)
        done += tokens


def test_alone_a_prompt_takes_larger_chunks_still_in_sight() -> None:
    pace = PrefillPace(0.1)
    steps = prefill(pace, Machine(0.01, 0.001, 1e9), 10_000, 0)
    assert max(took_s for _, took_s in steps) == pytest.approx(1.0, abs=0.1)


def test_a_fast_machine_takes_the_most_at_once() -> None:
    steps = prefill(PrefillPace(1.0), Machine(0.001, 1e-6, 1e9), 20_000, 0.001)
    assert max(tokens for tokens, _ in steps) == MOST_TOKENS


def test_what_was_measured_is_carried_over() -> None:
    pace, machine = PrefillPace(1.0), Machine(0.0, 0.001, 1e9)
    prefill(pace, machine, 3_000, 0.01)
    first, _ = prefill(pace, machine, 3_000, 0.01)[0]
    assert first > 500


def test_short_prompts_and_the_rests_of_long_ones_teach_nothing_wrong() -> None:
    """A few tokens cost nearly as much as many: the next long prompt must not crawl."""
    pace, machine = PrefillPace(1.0), Machine(0.1, 0.0005, 1e9)
    prefill(pace, machine, 5_000, 0.01)
    for _ in range(20):
        prefill(pace, machine, 9, 0.01)
    first, _ = prefill(pace, machine, 5_000, 0.01)[0]
    assert first > 500


def test_a_cached_prefix_is_deep_water() -> None:
    """Behind 50,000 known tokens each new one costs more than it did at the start."""
    pace, machine = PrefillPace(1.0), Machine(0.0, 0.0005, 8_000)
    prefill(pace, machine, 4_000, 0.01)
    steps = prefill(pace, machine, 54_000, 0.01, cached=50_000)
    assert max(took_s for _, took_s in steps) < 1.0


def test_a_machine_that_becomes_slow_is_noticed_at_once() -> None:
    pace = PrefillPace(1.0)
    prefill(pace, Machine(0.0, 0.0001, 1e9), 10_000, 0.01)
    steps = prefill(pace, Machine(0.0, 0.001, 1e9), 10_000, 0.01)
    assert all(took_s < 1.0 for _, took_s in steps[1:])


def test_when_decoding_alone_takes_too_long_prefill_continues() -> None:
    pace = PrefillPace(0.1)
    pace.decoded(1.0)
    steps = prefill(pace, Machine(0.0, 0.001, 1e9), 100, 1.0)
    assert {tokens for tokens, _ in steps[1:-1]} == {LEAST_TOKENS}


def test_a_step_that_took_less_than_decoding_before_makes_no_chunk_free() -> None:
    pace = PrefillPace(1.0)
    pace.decoded(0.5)
    for _ in range(20):
        pace.prefilled(pace.chunk(0, decoding=True), 0.4, 0, decoding=True)
    # So far a chunk's time was the same whatever its size; a token's must have been something.
    assert pace.chunk(0, decoding=True) < MOST_TOKENS


@pytest.mark.parametrize(
    ("spent_s", "limit_s", "owed_s", "awaited", "expected"),
    [
        (0.1, 9.0, 0.0, False, False),  # Nobody waits.
        (0.1, 9.0, 0.0, True, True),
        (0.1, 9.0, 0.2, True, False),  # Others were read for longer than it.
        (0.2, 9.0, 0.2, True, True),
        (0.1, 0.2, 0.0, False, False),  # The next layers fit exactly.
        (0.1, 0.19, 0.0, False, True),
        (0.1, 0.19, 9.0, False, True),  # Rows that decode wait no longer for that.
        (9.0, float("inf"), 0.0, False, False),
    ],
)
def test_a_chunk_pauses_when_somebody_waits_or_its_time_is_over(
    spent_s: float, limit_s: float, owed_s: float, awaited: bool, expected: bool
) -> None:
    assert pauses(spent_s, 0.1, limit_s, owed_s, awaited) is expected


@given(st.integers(1, 100), st.floats(0, 100))
def test_the_next_layers_take_a_fiftieth_of_a_second_or_are_a_single_one(
    count: int, took_s: float
) -> None:
    found = layers_at_once(count, took_s)
    assert 1 <= found <= 2 * count
    assert found == 1 or found * took_s / count <= 0.0201
    if took_s == 0:
        assert found == 2 * count


def test_a_chunk_that_nobody_waits_for_is_so_short_that_a_layer_of_it_fits_between_two_tokens() -> (
    None
):
    pace = PrefillPace(0.3)
    assert pace.budget_s(False) == 1.0
    pace.prefilled(16, 1.0, 0, decoding=False, layer_s=0.5)
    assert 0.5 * pace.budget_s(False) == pytest.approx(pace.budget_s(True))
    pace.decoded(0.05)
    assert 0.5 * pace.budget_s(False) == pytest.approx(pace.budget_s(True))
    for _ in range(2):
        pace.prefilled(16, 1.0, 0, decoding=False, layer_s=0.05)
    assert pace.budget_s(False) == 1.0
    pace.prefilled(16, 1.0, 0, decoding=False, layer_s=0.9)
    assert pace.budget_s(False) == 1.0, "one late layer says little"
    for _ in range(2):
        pace.prefilled(16, 1.0, 0, decoding=False, layer_s=1.0)
    one_layer_s = pace.budget_s(False)
    assert pace.budget_s(True) < one_layer_s < 0.3
    for _ in range(2):
        pace.prefilled(16, 1.0, 0, decoding=False)
    assert pace.budget_s(False) == 1.0, "what can't pause is as long as ever"
