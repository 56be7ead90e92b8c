"""Which tokens a draw is made from: top_k, typical_p, top_p and min_p over weights.

Pure functions of arrays, one row of logits for each row of the batch and parameters of shape
[rows, 1]. No operation mixes rows and none depends on how many there are, so on a CPU a row comes
out the same, bit for bit, alone and with others. A GPU may add up in another order for another
number of rows.

*Weights* are probabilities but for a factor: the likeliest token's is 1. A token that is
filtered out has weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

import mlx.core as mx

from lmx.worker.engine.values import SequenceSampling

LANES: Final = 128
"""Long rows are padded to a multiple of this, and summed in that many lanes at once: five times
as fast on a CPU as along the row. Most vocabularies are such a multiple already."""

_BLOCK: Final = 32
"""Among how many columns one is the maximum when the largest of a vocabulary are looked for."""

_LEVELS_BIT: Final = 4096
_LOWEST: Final = (0x3F80_0000 >> 16) - (2 * _LEVELS_BIT - 1)


_Arrays = TypeVar("_Arrays", bound=Callable[..., mx.array])


class Filters(NamedTuple):
    """The parameters of some rows, each [rows, 1], all shares below 1. None means that no row has
    it."""

    typical_p: mx.array | None
    top_p: mx.array | None
    min_p: mx.array | None

    @classmethod
    def of(cls, rows: Sequence[SequenceSampling]) -> Filters:
        """Return the parameters of rows that have the same :func:`costly_filters`."""

        def column(value: Callable[[SequenceSampling], float]) -> mx.array:
            return mx.array([[value(row)] for row in rows])

        return cls(
            typical_p=column(lambda row: row.typical_p) if rows[0].typical_p < 1 else None,
            top_p=column(lambda row: row.top_p) if rows[0].top_p < 1 else None,
            min_p=column(lambda row: row.min_p) if any(row.min_p > 0 for row in rows) else None,
        )


def costly_filters(row: SequenceSampling) -> tuple[bool, ...]:
    """Return which filters a row has that cost more than one operation. Rows without such a filter
    must not pay for it because others have it."""
    return row.typical_p < 1, row.top_p < 1


def sharpness(temperature: float) -> float:
    """Return the factor of :func:`weigh` for a temperature, which is at least 1e-5."""
    return math.log2(math.e) / temperature


def weigh(logits: mx.array, sharpness: mx.array) -> mx.array:
    """Return the weights of float32 logits."""
    # MLX's exp takes 2.7 times as long on a CPU, and is no more exact; a power that is compiled
    # takes a tenth longer.
    return mx.power(2.0, _exponents(logits, sharpness))


@mx.compile
def _exponents(logits: mx.array, sharpness: mx.array) -> mx.array:
    return (logits - logits.max(axis=-1, keepdims=True)) * sharpness


def pad_to_lanes(logits: mx.array) -> mx.array:
    """Return rows whose number of columns is a multiple of :data:`LANES`, padded by tokens of no
    weight."""
    missing = -logits.shape[-1] % LANES
    if missing == 0:
        return logits
    return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)


def candidates(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Return the ``count`` largest logits of each row, largest first, and their tokens.

    Which of several equal ones come last or are left out is unspecified, but always the same.
    """
    count = min(count, logits.shape[-1])
    if 2 * count * _BLOCK > logits.shape[-1]:
        tokens = _largest(logits, count)
    else:
        # The largest are in the blocks with the largest maxima. To sort these, and the maxima, is
        # much less than to sort a vocabulary.
        padded = pad_to_lanes(logits)
        blocks = padded.reshape(logits.shape[0], _BLOCK, -1)
        best = _largest(blocks.max(axis=1), count)
        offsets = mx.arange(0, padded.shape[-1], blocks.shape[-1], dtype=best.dtype)
        some = (best[:, None, :] + offsets[:, None]).reshape(logits.shape[0], -1)
        places = _largest(mx.take_along_axis(padded, some, axis=-1), count)
        tokens = mx.take_along_axis(some, places, axis=-1)
        logits = padded
    values = mx.take_along_axis(logits, tokens, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return (
        mx.take_along_axis(values, order, axis=-1),
        mx.take_along_axis(tokens, order, axis=-1),
    )


def _largest(values: mx.array, count: int) -> mx.array:
    """Return the columns of the ``count`` largest values of each row, in no order."""
    return mx.argpartition(-values, kth=count - 1, axis=-1)[:, :count]


def filter_sorted(weights: mx.array, top_k: mx.array, filters: Filters) -> mx.array:
    """Filter rows of few weights, the largest first. Each filter sees the weights that the last one
    left."""
    kept = mx.where(mx.arange(weights.shape[-1]) < top_k, weights, 0)
    if filters.typical_p is not None:
        order = mx.argsort(-_typicality(kept), axis=-1)
        share = _keep_first(mx.take_along_axis(kept, order, axis=-1), filters.typical_p)
        kept = mx.put_along_axis(mx.zeros_like(kept), order, share, axis=-1)
    if filters.top_p is not None:
        kept = _keep_first(kept, filters.top_p)
    return _above_min_p(kept, filters.min_p)


def filter_all(weights: mx.array, filters: Filters) -> mx.array:
    """Filter rows of a whole vocabulary, in the order of its tokens, by all filters except top_k.
    Their number of columns is a multiple of :data:`LANES`."""
    if filters.typical_p is not None:
        weights = _keep_best(weights, _typicality(weights), filters.typical_p)
    if filters.top_p is not None:
        weights = _keep_best(weights, weights, filters.top_p)
    return _above_min_p(weights, filters.min_p)


def _row_sums(rows: mx.array) -> mx.array:
    if rows.shape[-1] % LANES == 0:
        rows = rows.reshape(rows.shape[0], -1, LANES).sum(axis=1)
    return rows.sum(axis=-1, keepdims=True)


def _above_min_p(weights: mx.array, min_p: mx.array | None) -> mx.array:
    if min_p is None:
        return weights
    return mx.where(weights >= min_p * weights.max(axis=-1, keepdims=True), weights, 0)


def _fused(function: _Arrays) -> _Arrays:
    """Return the function compiled for Metal: there each operation costs a launch, and those of
    top_p alone are 374. On a CPU they cost less than a compiler takes, and for CUDA mlx compiles
    its dozens of kernels for more than two minutes."""
    return cast("_Arrays", mx.compile(function)) if mx.metal.is_available() else function


@_fused
def _typicality(weights: mx.array) -> mx.array:
    """Return, in (0, 1], how near a token's surprise is to the mean surprise; 0 for weight 0."""
    logs = mx.log(weights)
    total = _row_sums(weights)
    mean_log = _row_sums(mx.where(weights > 0, weights * logs, 0)) / total
    return 1 / (1 + mx.abs(logs - mean_log))


def _target(weights: mx.array, share: mx.array) -> mx.array:
    # The value is never 0, so that the first token is always kept, whatever the share.
    return mx.maximum(share, 1e-12) * _row_sums(weights)


def _keep_first(weights: mx.array, share: mx.array) -> mx.array:
    """Keep the first weights that together reach ``share`` of the row's sum."""
    before = mx.cumsum(weights, axis=-1) - weights
    return mx.where(before < _target(weights, share), weights, 0)


@_fused
def _keep_best(weights: mx.array, scores: mx.array, share: mx.array) -> mx.array:
    """Keep the weights with the best scores that together reach ``share`` of the row's sum.

    Scores, from 0 to 1, are compared by their first 8 significant bits, and tokens whose
    scores are equal by that (less than 1 % apart) are taken in the order of their ids. So the
    last token's level can be searched bit by bit in 13 passes over the row: a quarter of what it
    costs on a CPU to sort a vocabulary. All of a float's bits would take 30.
    """
    target = _target(weights, share)
    level = mx.zeros(target.shape, mx.int32)
    bit = _LEVELS_BIT
    while bit:
        higher = level + bit
        reached = _row_sums(mx.where(scores >= _edge(higher), weights, 0)) >= target
        level = mx.where(reached, higher, level)
        bit //= 2
    above = scores >= _edge(level + 1)
    missing = target - _row_sums(mx.where(above, weights, 0))
    tied = mx.where(above | (scores < _edge(level)), 0, weights)
    before = mx.cumsum(tied, axis=-1) - tied
    return mx.where(above | ((tied > 0) & (before < missing)), weights, 0)


def _edge(level: mx.array) -> mx.array:
    """Return the lowest score of a level: a float's upper half. Level 0 holds all below 2^-64."""
    return mx.where(level > 0, (level + _LOWEST) << 16, 0).view(mx.float32)
