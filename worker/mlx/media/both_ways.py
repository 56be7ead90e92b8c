"""Attention among the placeholders of a picture in both directions, as Gemma 4 has it.

Written for mlx-vlm 0.7.10, whose class lets a picture's tokens see those behind them only if the
whole prompt is processed at once, and without a word not otherwise.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

_OVERLAY: Final = "_apply_blockwise_bidirectional_overlay"


def sees_both_ways(language_model: Any) -> bool:
    """Return whether the tokens of a picture see each other in both directions, so that a picture
    must be processed at once. If so, the model is made to do that behind other tokens too."""
    trunk: Any = getattr(language_model, "model", None)
    if not hasattr(trunk, _OVERLAY):
        return False
    if getattr(trunk.config, "use_bidirectional_attention", None) != "vision":
        return False
    plain = type(trunk)
    if plain.__dict__.get(_OVERLAY) is not _overlay:
        # Python looks the method up in the class. Attributes and weights stay as they are.
        trunk.__class__ = type(plain.__name__, (plain,), {_OVERLAY: _overlay})
    return True


def _overlay(trunk: Any, base: mx.array, token_types: mx.array) -> mx.array:
    """Return a mask in which each picture of a chunk is open in itself. The keys of the chunk are
    the last ones of the mask."""
    length = token_types.shape[1]
    if base.shape[-2] != length or base.shape[-1] < length:
        raise ValueError(f"a mask of {base.shape} does not fit a chunk of {length} tokens")
    blocks = trunk._block_sequence_ids_for_mask(token_types)
    queries, keys = mx.expand_dims(blocks, -1), mx.expand_dims(blocks, -2)
    same = mx.expand_dims((queries != -1) & (queries == keys), 1)
    earlier = mx.zeros((*same.shape[:-1], base.shape[-1] - length), mx.bool_)
    return base | mx.concatenate([earlier, same], axis=-1)
