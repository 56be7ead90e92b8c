"""Sliding windows of models whose class in mlx-lm lets every layer see all tokens.

Written for mlx-lm 0.32.2. These classes make one mask for all layers, of the first layer's cache. A
cache that slides makes a mask of its window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache

from lmx.worker.mlx.memory.windows import window_layers
from lmx.worker.mlx.module_calls import replace_methods


def patch_windows(model: Any, config: Mapping[str, Any]) -> None:
    """Give the layers of mlx-lm's ``model`` the windows that its config.json describes."""
    slides = window_layers(config, len(model.layers))
    if not slides:
        return

    def make_cache(_: Any) -> list[Any]:
        window = config["sliding_window"]
        return [RotatingKVCache(max_size=window) if one else KVCache() for one in slides]

    replace_methods(model, make_cache=make_cache)
    for layer, slides_too in zip(model.layers, slides, strict=True):
        if slides_too != slides[0]:
            _mask_alone(layer)


def _mask_alone(layer: Any) -> None:
    plain = type(layer)

    def call(patched: Any, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        as_array = isinstance(mask, mx.array)
        own = create_attention_mask(x, cache, return_array=as_array)
        found: mx.array = plain.__call__(patched, x, own, cache)
        return found

    replace_methods(layer, __call__=call)
