"""The filters over a whole vocabulary, token by token: which are kept."""

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.worker.mlx.sampling.filters import (
    LANES,
    Filters,
    candidates,
    filter_all,
    filter_sorted,
    weigh,
)
from tests.support.rigs.budgets import examples

Floats = npt.NDArray[np.float32]


def only(top_p: float | None = None, typical_p: float | None = None) -> Filters:
    def column(value: float | None) -> mx.array | None:
        return None if value is None else mx.array([[value]])

    return Filters(typical_p=column(typical_p), top_p=column(top_p), min_p=None)


def kept(weights: Floats, filters: Filters) -> list[int]:
    left = np.array(filter_all(mx.array(weights[None]), filters))[0]
    tokens = np.flatnonzero(left)
    assert (left[tokens] == weights[tokens]).all()
    result: list[int] = tokens.tolist()
    return result


def nucleus(weights: Floats, share: float) -> list[int]:
    """The likeliest tokens by the first 8 significant bits of their weights, then by id."""
    coarse = weights.view(np.int32) >> 16
    order = sorted(range(len(weights)), key=lambda token: (-coarse[token], token))
    sums = np.cumsum(weights[order].astype(np.float64))
    count = int((sums < share * sums[-1]).sum()) + 1
    return sorted(order[:count])


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(st.integers(0, 60), min_size=1, max_size=3 * LANES),
    scale=st.sampled_from([1e-3, 0.05, 0.3, 1.0]),
    # Away from where the sums in float32 and float64 could differ.
    share=st.floats(0.01, 0.99).map(lambda share: share + 1e-4),
)
def test_top_p_keeps_the_nucleus(steps: list[int], scale: float, share: float) -> None:
    logits = np.full(-(-len(steps) // LANES) * LANES, -np.inf, np.float32)
    logits[: len(steps)] = np.array(steps) * np.float32(scale)
    weights = np.array(weigh(mx.array(logits[None]), mx.array([[1.0]])))[0]
    sums = np.cumsum(np.sort(weights)[::-1].astype(np.float64)) / weights.sum(dtype=np.float64)
    if np.abs(sums - share).min() > 1e-6:
        assert kept(weights, only(top_p=share)) == nucleus(weights, share)


@pytest.mark.parametrize("filters", [only(top_p=0.3), only(typical_p=0.3)], ids=["top", "typical"])
def test_of_equal_tokens_the_first_are_kept(filters: Filters) -> None:
    assert kept(np.ones(1280, np.float32), filters) == list(range(384))


@pytest.mark.parametrize("top_p", [0.1, 0.8, 0.99])
def test_sorted_candidates_are_filtered_like_a_vocabulary(top_p: float) -> None:
    # No two are nearer than 1 %, so that both ways have the same order.
    logits = np.random.default_rng(1).permutation(256) * 0.02
    row = mx.array(logits.astype(np.float32)[None])
    values, tokens = candidates(row, 256)
    one = mx.array([[1.0]])
    left = filter_sorted(weigh(values, one), mx.array([[256]]), only(top_p=top_p))
    chosen: Any = np.array(tokens)[0, np.flatnonzero(np.array(left)[0])]
    assert sorted(chosen.tolist()) == kept(np.array(weigh(row, one))[0], only(top_p=top_p))


def test_candidates_are_the_largest_in_order() -> None:
    logits = np.random.default_rng(2).standard_normal((3, 500)).astype(np.float32)
    for count in (1, 64, 500, 1024):
        values, tokens = (np.array(array) for array in candidates(mx.array(logits), count))
        expected = np.argsort(-logits, axis=-1)[:, :count]
        assert (tokens == expected).all()
        assert (values == np.take_along_axis(logits, expected, -1)).all()


@settings(max_examples=40, deadline=None)
@given(
    columns=st.integers(1000, 9000),
    levels=st.sampled_from([3, 100, 10**6]),
    count=st.sampled_from([1, 20, 64, 256]),
    seed=st.integers(0, 2**32),
)
def test_candidates_of_a_vocabulary_are_its_largest_logits(
    columns: int, levels: int, count: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    logits = random.integers(levels, size=(2, columns)).astype(np.float32)
    # A mask may leave fewer than are looked for.
    logits[1, random.permutation(columns)[: columns - 10]] = -np.inf
    values, tokens = (np.array(array) for array in candidates(mx.array(logits), count))
    assert (values == -np.sort(-logits, axis=-1)[:, :count]).all()
    for row in range(2):
        reported = values[row] > -np.inf
        assert len(set(tokens[row][reported])) == reported.sum()
        assert (logits[row, tokens[row][reported]] == values[row][reported]).all()
    alone = np.array(candidates(mx.array(logits[:1]), count)[1])
    assert (alone[0] == tokens[0]).all()
