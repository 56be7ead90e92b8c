"""Takes one row's cache out of that of a batch.

A batch that has one row left keeps its caches as those of a single row, which need no mask.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
from mlx_vlm.models.cache import ArraysCache, BatchKVCache, BatchRotatingKVCache, CacheList

from lmx.worker.mlx.model.batch_slots import SlottedKVCache
from lmx.worker.mlx.model.forward import PromptCache
from lmx.worker.mlx.model.quantized_cache import BatchQuantizedCache

_KINDS: Final = (
    ArraysCache,
    BatchKVCache,
    BatchQuantizedCache,
    BatchRotatingKVCache,
    SlottedKVCache,
)


def can_be_single(cache: PromptCache) -> bool:
    """Return whether all layers are of kinds from which a single row can be taken out."""
    return all(
        can_be_single(layer.caches) if isinstance(layer, CacheList) else type(layer) in _KINDS
        for layer in cache
    )


def single_row(cache: PromptCache, index: int) -> PromptCache:
    """Return one row's cache. It uses up the batch's cache."""
    return [_single(layer, index) for layer in cache]


def _single(layer: Any, index: int) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*single_row(layer.caches, index))
    if isinstance(layer, BatchQuantizedCache):
        return layer.extract(index)
    if isinstance(layer, ArraysCache) or layer.keys is None:
        # The kind is the same for one row as for many; or it holds nothing: the layer borrows
        # another one's cache, or no row has decoded yet.
        layer.filter(mx.array([index], mx.int32))
        return layer
    return layer.extract(index)
