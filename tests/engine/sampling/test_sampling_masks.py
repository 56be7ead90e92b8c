"""Constraints in the sampler: bit masks, and rows whose constraint fails."""

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from lmx.worker.engine.values import SequenceSampling
from lmx.worker.mlx.sampling.mask import allows_other_than, fit_mask, mask_rows
from lmx.worker.mlx.sampling.sampler import BatchSampler

Mask = npt.NDArray[np.uint32]


class Scripted:
    """A constraint that does what the test says."""

    def __init__(
        self, mask: Callable[[], Mask | None], accept: Callable[[int], None] = lambda _token: None
    ) -> None:
        self._mask = mask
        self._accept = accept

    def mask(self) -> Mask | None:
        return self._mask()

    def accept(self, token: int) -> None:
        self._accept(token)

    def fork(self) -> "Scripted":
        raise AssertionError("nobody forks here")


def packed(tokens: list[int], words: int) -> Mask:
    mask = np.zeros(words, np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


def unpacked(mask: Mask, vocabulary: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)[:vocabulary]
    return np.concatenate([bits, np.zeros(vocabulary - len(bits), bool)])


def drawn(sampler: BatchSampler, logits: mx.array, step: int = 0) -> list[int]:
    rows = logits.shape[0]
    return cast("list[int]", sampler.sample(logits, range(rows), [step] * rows).tolist())


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 100, 1000])
@pytest.mark.parametrize("words", [1, 4, 40])
@pytest.mark.parametrize("masked", [[0, 1, 2], [1], [2, 0]])
def test_masks_are_applied_bit_by_bit(vocabulary: int, words: int, masked: list[int]) -> None:
    random = np.random.default_rng(vocabulary + words)
    logits = random.standard_normal((3, vocabulary)).astype(np.float32)
    masks = {row: random.integers(0, 2**32, words, np.uint32) for row in masked}
    fitted = {row: fit_mask(mask, vocabulary) for row, mask in masks.items()}
    expected = logits.copy()
    for row, mask in masks.items():
        expected[row, ~unpacked(mask, vocabulary)] = -np.inf
    assert (np.array(mask_rows(mx.array(logits), fitted)) == expected).all()


def test_what_a_mask_allows_beside_some_tokens() -> None:
    mask = fit_mask(packed([3, 40], 2), 64)
    assert allows_other_than(mask, frozenset({3}))
    assert allows_other_than(mask, frozenset({40, 5, 9999, -1}))
    assert not allows_other_than(mask, frozenset({3, 40}))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_are_drawn_and_other_rows_are_free(temperature: float) -> None:
    vocabulary = 300
    logits = mx.random.normal((4, vocabulary), key=mx.random.key(1))
    allowed = [7, 250, 280]
    # The mask has bits for 320 tokens, all set beyond the vocabulary.
    mask = packed([*allowed, *range(vocabulary, 320)], 10)
    sampler = BatchSampler()
    for row in range(4):
        constraint = {1: Scripted(lambda: mask), 2: Scripted(lambda: None)}.get(row)
        sampler.add(row, SequenceSampling(temperature, seed=row), [], constraint, None)
    free = BatchSampler()
    for row in range(4):
        free.add(row, SequenceSampling(temperature, seed=row), [], None, None)
    seen = set()
    for step in range(60):
        tokens = drawn(sampler, logits, step)
        seen.add(tokens[1])
        tokens[1] = (unmasked := drawn(free, logits, step))[1]
        assert tokens == unmasked
    assert seen == (set(allowed) if temperature else {max(allowed, key=lambda t: logits[1, t])})
    assert sampler.pop_failed() == []


def raising(*_: Any) -> Any:
    raise RuntimeError("broken grammar")


@pytest.mark.parametrize(
    "mask",
    [
        raising,
        lambda: packed([], 4),
        # Only tokens that the model doesn't have.
        lambda: packed([100, 120], 4),
        lambda: np.zeros(4, np.float32),
        lambda: np.zeros((1, 4), np.uint32),
    ],
)
def test_a_row_whose_mask_is_broken_fails_alone(mask: Callable[[], Any]) -> None:
    logits = mx.random.normal((3, 100), key=mx.random.key(2))
    sampler = BatchSampler()
    sampler.add(0, SequenceSampling(0.0), [], Scripted(lambda: packed([5], 4)), None)
    sampler.add(1, SequenceSampling(0.0), [], Scripted(mask), None)
    sampler.add(2, SequenceSampling(0.0), [], None, None)
    expected = [5, *cast("list[int]", mx.argmax(logits[1:], axis=-1).tolist())]
    assert drawn(sampler, logits) == expected
    ((row, error),) = sampler.pop_failed()
    assert row == 1 and isinstance(error, RuntimeError | ValueError)
    assert drawn(sampler, logits) == expected
    assert sampler.pop_failed() == []


def test_a_row_whose_constraint_refuses_a_token_fails_alone() -> None:
    taken: list[int] = []
    sampler = BatchSampler()
    sampler.add(0, SequenceSampling(0.0), [], Scripted(lambda: packed([5], 4), taken.append), None)
    sampler.add(1, SequenceSampling(0.0), [], Scripted(lambda: packed([6], 4), raising), None)
    logits = mx.zeros((2, 100))
    assert drawn(sampler, logits) == [5, 6]
    sampler.accept(0, 5)
    sampler.accept(1, 6)
    assert [row for row, _ in sampler.pop_failed()] == [1]
    sampler.accept(1, 6)
    assert drawn(sampler, logits) == [5, 0]
    assert sampler.pop_failed() == []
    assert taken == [5]


def test_a_complete_answer_may_end_before_min_tokens() -> None:
    sampling = SequenceSampling(1.0, min_tokens=10, end_ids=frozenset({8, 9}))
    logits = mx.zeros((1, 100))
    for allowed, expected in (([8], {8}), ([8, 9], {8, 9}), ([8, 20], {20})):
        sampler = BatchSampler()
        constraint = Scripted(lambda allowed=allowed: packed(allowed, 4))  # type: ignore[misc]
        sampler.add(0, sampling, [], constraint, None)
        assert {drawn(sampler, logits, step % 10)[0] for step in range(50)} == expected
