"""Logprobs, against log-softmax in float64."""

from typing import cast

import mlx.core as mx
import numpy as np
import pytest

from lmx.worker.engine.values import SequenceSampling, TokenScores
from lmx.worker.mlx.sampling.sampler import BatchSampler, prompt_scores


def reference(logits: mx.array, token: int, top: int) -> TokenScores:
    exact = np.array(logits.astype(mx.float32)).astype(np.float64)
    logprobs = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    order = np.argsort(-logprobs, kind="stable")[:top]
    return TokenScores(
        float(logprobs[token]), tuple((int(best), float(logprobs[best])) for best in order)
    )


def assert_close(scores: TokenScores, expected: TokenScores) -> None:
    assert scores.logprob == pytest.approx(expected.logprob, abs=1e-4)
    assert [token for token, _ in scores.top] == [token for token, _ in expected.top]
    assert [logprob for _, logprob in scores.top] == pytest.approx(
        [logprob for _, logprob in expected.top], abs=1e-4
    )


@pytest.mark.parametrize("vocabulary", [10, 300])
def test_each_row_gets_as_many_as_it_asked_for(vocabulary: int) -> None:
    tops = [3, None, 0, 20, 1]
    logits = 3 * mx.random.normal((5, vocabulary), key=mx.random.key(1))
    # Raw logits count: not the temperature, not a bias.
    sampling = SequenceSampling(1.7, top_k=1, logit_bias=((4, 50.0),))
    sampler = BatchSampler()
    for row, top in enumerate(tops):
        sampler.add(row, sampling, [], None, top)
    tokens = sampler.sample(logits, range(5), [0] * 5)
    assert tokens.tolist() == [4] * 5
    pending = sampler.scores(logits, tokens, range(5))
    assert pending is not None
    mx.eval(pending.arrays)
    read = pending.read()
    assert list(read) == [0, 2, 3, 4]
    for row, scores in read.items():
        assert_close(scores, reference(logits[row], 4, tops[row] or 0))
    assert 4 not in [token for token, _ in read[4].top]


def test_nothing_is_made_where_nobody_asked() -> None:
    sampler = BatchSampler()
    sampler.add(0, SequenceSampling(0.0), [], None, None)
    assert sampler.scores(mx.zeros((1, 10)), mx.zeros((1,), mx.uint32), [0]) is None


def test_logprobs_without_alternatives() -> None:
    sampler = BatchSampler()
    sampler.add(0, SequenceSampling(0.0), [], None, 0)
    pending = sampler.scores(mx.zeros((1, 10)), mx.array([3]), [0])
    assert pending is not None and len(pending.arrays) == 1
    assert_close(pending.read()[0], TokenScores(-float(np.log(10)), ()))


def test_equally_likely_tokens_come_in_the_order_of_their_ids() -> None:
    sampler = BatchSampler()
    sampler.add(0, SequenceSampling(0.0), [], None, 5)
    pending = sampler.scores(mx.array([[0.0, 2.0, 0.0, 2.0, 2.0]]), mx.array([0]), [0])
    assert pending is not None
    assert [token for token, _ in pending.read()[0].top] == [1, 3, 4, 0, 2]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_prompt_scores_of_a_long_prompt(dtype: mx.Dtype) -> None:
    random = np.random.default_rng(0)
    # Values that bfloat16 can tell from each other.
    logits = mx.array(np.stack([random.permutation(80) for _ in range(150)]) / 8).astype(dtype)
    tokens = mx.array(random.integers(0, 80, 150))
    scores = prompt_scores(logits, tokens, 2)
    assert len(scores) == 150
    for index, token in enumerate(cast("list[int]", tokens.tolist())):
        assert_close(scores[index], reference(logits[index], token, 2))
        assert scores[index].rank == (logits[index] >= logits[index, token]).sum().item()


def test_equally_likely_tokens_have_the_last_of_their_ranks() -> None:
    logits = mx.array([[0.0, 2.0, 0.0, 2.0, 3.0]] * 3)
    scores = prompt_scores(logits, mx.array([4, 1, 0]), 0)
    assert [one.rank for one in scores] == [1, 3, 5]
