"""Applies grammars' bit masks over the vocabulary to logits.

It uses plain array operations, which are the same on a CPU and on Metal.
"""

from collections.abc import Mapping
from typing import Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

_BITS: Final = 32
_ALL: Final = 0xFFFF_FFFF


def fit_mask(mask: npt.NDArray[np.uint32], vocabulary: int) -> npt.NDArray[np.uint32]:
    """Return a copy with exactly the bits of ``vocabulary``: [ceil(vocabulary / 32)].

    Tokens that the mask doesn't cover (a model may have more logits than its tokenizer has tokens)
    are not allowed. Raises ValueError for a value that is no packed mask.
    """
    if mask.ndim != 1 or mask.dtype != np.uint32:
        raise ValueError(f"a mask must be a row of uint32, not {mask.dtype} {mask.shape}")
    words = np.zeros(-(-vocabulary // _BITS), np.uint32)
    used = min(len(words), len(mask))
    words[:used] = mask[:used]
    if vocabulary % _BITS:
        words[-1] &= np.uint32((1 << vocabulary % _BITS) - 1)
    return words


def allows_other_than(words: npt.NDArray[np.uint32], tokens: frozenset[int]) -> bool:
    """Return whether a fitted mask allows a token that is not among ``tokens``."""
    rest = words.copy()
    for token in tokens:
        if 0 <= token < len(rest) * _BITS:
            rest[token // _BITS] &= ~np.uint32(1 << token % _BITS)
    return bool(rest.any())


def only_token(words: npt.NDArray[np.uint32]) -> int | None:
    """Return the token that a fitted mask allows; None: it allows several, or none."""
    if np.count_nonzero(words) != 1:
        return None
    place = int(np.argmax(words != 0))
    word = int(words[place])
    return None if word & (word - 1) else place * _BITS + word.bit_length() - 1


def mask_rows(logits: mx.array, masks: Mapping[int, npt.NDArray[np.uint32]]) -> mx.array:
    """Return logits [rows, vocabulary] that are -inf where a row's fitted mask has no bit.

    ``masks`` maps rows to masks; rows without one stay as they are.
    """
    rows, vocabulary = logits.shape
    words = np.full((rows, -(-vocabulary // _BITS)), _ALL, np.uint32)
    for row, mask in masks.items():
        words[row] = mask
    bits = mx.left_shift(mx.array(1, mx.uint32), mx.arange(_BITS, dtype=mx.uint32))
    allowed = (mx.array(words)[:, :, None] & bits) != 0
    # All rows are masked at once, even those without a mask: that takes less time than to
    # take a few rows out and to put them back.
    return mx.where(allowed.reshape(rows, -1)[:, :vocabulary], logits, -mx.inf)
