"""The caches of a batch that has one row left, as those of a single row.

Written for mlx-vlm 0.7.10.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_vlm.models.cache import ArraysCache, BatchKVCache, BatchRotatingKVCache, CacheList

from lmx.worker.mlx_forward import PromptCache


def can_be_single(cache: PromptCache) -> bool:
    """Return whether all layers are of kinds that a row can be taken out of."""
    return all(
        can_be_single(layer.caches)
        if isinstance(layer, CacheList)
        else type(layer) in (ArraysCache, BatchKVCache, BatchRotatingKVCache)
        for layer in cache
    )


def single_row(cache: PromptCache, index: int) -> PromptCache:
    """Return one row's cache. Uses the batch's up."""
    return [_single(layer, index) for layer in cache]


def _single(layer: Any, index: int) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*single_row(layer.caches, index))
    if isinstance(layer, ArraysCache) or layer.keys is None:
        # The same kind for one row as for many; or a layer that borrows another one's.
        layer.filter(mx.array([index], mx.int32))
        return layer
    return layer.extract(index)
