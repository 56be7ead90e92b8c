"""Attention in both directions: among the placeholders of a picture, as Gemma 4 has it, and in a
whole prompt.

Written for mlx-vlm 0.7.10, whose class lets a picture's tokens see those behind them only if the
whole prompt is processed at once, and without a word not otherwise.
"""

from typing import Any, Final

import mlx.core as mx

from lmx.worker.mlx.module_calls import replace_methods

_OVERLAY: Final = "_apply_blockwise_bidirectional_overlay"

_WHOLE_PROMPTS: Final = frozenset({"paligemma"})
"""Types whose tokens of a prompt all see each other."""


def needs_whole_prompt(model: Any) -> bool:
    """Return whether the tokens of a prompt see those behind them, so that a prompt must be
    processed at once, and no prompt can begin with what was computed of another one."""
    config = getattr(model, "config", None)
    text = getattr(config, "text_config", None)
    is_one = getattr(config, "model_type", None) in _WHOLE_PROMPTS
    return is_one and bool(getattr(text, "use_bidirectional_attention", True))


def patch_bidirectional_mask(language_model: Any) -> bool:
    """Return whether the tokens of a picture see each other in both directions, so that a picture
    must be processed at once. If so, the model is made to do that behind other tokens too."""
    trunk: Any = getattr(language_model, "model", None)
    if not hasattr(trunk, _OVERLAY):
        return False
    if getattr(trunk.config, "use_bidirectional_attention", None) != "vision":
        return False
    plain = type(trunk)
    if plain.__dict__.get(_OVERLAY) is not _overlay:
        replace_methods(trunk, **{_OVERLAY: _overlay})
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
