"""Drawing one token a row from weights, by numbers that depend on seed and position alone.

Not a noise array over the vocabulary, as in Gumbel sampling: two numbers a row, which the host
makes for all rows at once. So a draw needs no random state that could depend on the company a
row is in, and rounding in the logits changes a token only where it falls on the very border of
two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lmx.worker.mlx_filters import LANES, lane_sums

WORD: Final = 0xFFFF_FFFF_FFFF_FFFF


def position_keys(
    seeds: npt.NDArray[np.uint64], positions: Sequence[int]
) -> npt.NDArray[np.uint64]:
    """Return the 64-bit keys of draws: the same for the same seed and position (splitmix64)."""
    steps = np.asarray(positions, np.uint64) + np.uint64(1)
    mixed: npt.NDArray[np.uint64] = seeds + steps * np.uint64(0x9E37_79B9_7F4A_7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return mixed ^ (mixed >> np.uint64(31))


def uniforms(seeds: npt.NDArray[np.uint64], positions: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return two numbers for each row, [rows, 2], in [0, 1) and in steps of 2^-24."""
    keys = position_keys(seeds, positions)
    parts = np.stack([keys >> np.uint64(40), (keys >> np.uint64(16)) & np.uint64(0xFF_FFFF)], 1)
    return (parts.astype(np.float64) / 2**24).astype(np.float32)


def draw(weights: mx.array, numbers: mx.array) -> mx.array:
    """Return a column for each row, with chances in proportion to the weights; [rows, 1].

    A column of weight 0 is never drawn; each row has one that is above. Of a whole vocabulary,
    which has a multiple of LANES columns, first a lane is drawn and then one of its columns:
    one running sum of so many float32 would lose the unlikely ones.
    """
    first, second = numbers[:, :1], numbers[:, 1:]
    if weights.shape[-1] <= LANES or weights.shape[-1] % LANES:
        return _first_beyond(weights, first)
    lane = _first_beyond(lane_sums(weights), first)
    by_lane = weights.reshape(weights.shape[0], -1, LANES)
    column = _first_beyond(mx.take_along_axis(by_lane, lane[:, :, None], axis=-1)[..., 0], second)
    return column * LANES + lane


def _first_beyond(weights: mx.array, number: mx.array) -> mx.array:
    """Return the first column whose sum of weights up to it goes beyond ``number`` of all.

    Rounding can leave none where sums are made in parallel: then it is the heaviest.
    """
    sums = mx.cumsum(weights, axis=-1)
    beyond = (sums > number * sums[:, -1:]) & (weights > 0)
    first = mx.argmax(beyond, axis=-1, keepdims=True)
    heaviest = mx.argmax(weights, axis=-1, keepdims=True)
    return mx.where(beyond.any(axis=-1, keepdims=True), first, heaviest)
