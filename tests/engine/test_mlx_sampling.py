"""The row sampler against the probabilities that it claims to draw from."""

from typing import cast

import mlx.core as mx
import pytest

from lmx.worker.engine import RowSampling
from lmx.worker.mlx_sampling import position_key, sample_rows

pytestmark = pytest.mark.engine

DRAWS = 20_000
LOGITS = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0]


def as_list(array: mx.array) -> list[float]:
    return cast("list[float]", array.tolist())


def frequencies(temperature: float, top_p: float) -> list[float]:
    """Return how often each token comes, over many positions of one seed."""
    logits = mx.array([LOGITS])
    logprobs = mx.broadcast_to(logits - mx.logsumexp(logits), (DRAWS, len(LOGITS)))
    rows = [RowSampling(temperature, top_p, 42)] * DRAWS
    drawn = as_list(sample_rows(logprobs, rows, range(DRAWS)))
    return [drawn.count(token) / DRAWS for token in range(len(LOGITS))]


def softmax(temperature: float) -> list[float]:
    return as_list(mx.softmax(mx.array(LOGITS) / temperature))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_agrees_with_softmax(temperature: float) -> None:
    # Four standard deviations of a frequency at most 0.5.
    assert frequencies(temperature, 1.0) == pytest.approx(softmax(temperature), abs=0.015)


def test_top_p_keeps_the_likeliest_in_proportion() -> None:
    # softmax: 0.55 0.20 0.12 0.07 0.03 0.00; 0.7 is reached by the first two.
    first, second, *_ = softmax(1.0)
    total = first + second
    expected = [first / total, second / total, 0, 0, 0, 0]
    assert frequencies(1.0, 0.7) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("top_p", [0.0, 1e-9, 0.3])
def test_the_likeliest_token_is_always_kept(top_p: float) -> None:
    assert frequencies(1.0, top_p)[0] == 1


def test_each_row_has_its_own_parameters() -> None:
    mx.random.seed(3)
    logits = mx.random.normal((8, 1000))
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    rows = [
        RowSampling(0.0, 1.0, 1),
        RowSampling(1.0, 1.0, 2),
        RowSampling(0.7, 0.9, 3),
        RowSampling(0.0, 0.5, 4),
        RowSampling(1.3, 1.0, 5),
        RowSampling(0.7, 0.5, 6),
        RowSampling(1.0, 1.0, 7),
        RowSampling(1.0, 0.9, 8),
    ]
    positions = list(range(8))
    together = sample_rows(logprobs, rows, positions).tolist()
    alone = [
        sample_rows(logprobs[i : i + 1], [row], [positions[i]]).item() for i, row in enumerate(rows)
    ]
    assert together == alone
    assert together[0] == mx.argmax(logprobs[0]).item()
    assert together[3] == mx.argmax(logprobs[3]).item()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_sixteen_bit_logits_are_drawn_in_32(dtype: mx.Dtype) -> None:
    logprobs = mx.broadcast_to(mx.array([LOGITS]).astype(dtype), (DRAWS, len(LOGITS)))
    rows = [RowSampling(1.0, 1.0, 42)] * DRAWS
    drawn = as_list(sample_rows(logprobs, rows, range(DRAWS)))
    assert drawn.count(0) / DRAWS == pytest.approx(softmax(1.0)[0], abs=0.015)


def test_keys_differ_by_seed_and_position_and_take_any_integer() -> None:
    keys = {position_key(seed, position) for seed in range(-50, 50) for position in range(50)}
    assert len(keys) == 5000
    assert 0 <= position_key(-(2**70), 10**6) < 2**64
