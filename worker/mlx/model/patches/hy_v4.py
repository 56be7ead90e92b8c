"""Hy V4, of which mlx-vlm's class chooses the wrong tokens to attend to.

Written for mlx-vlm 0.7.10. Its indexer is compiled once for all lengths, but the place at which it
parts the scores is counted from the end of the first text that it meets. For every other length it
takes other tokens, or fewer: what an answer is then depends on the length of the first prompt after
the load.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import mlx.core as mx

_MODULE: Final = "mlx_vlm.models.hy_v4"


def patch_hy_v4(model: Any) -> None:
    """Make the indexers right if it is a Hy V4 of mlx-vlm's."""
    if type(model).__module__.startswith(f"{_MODULE}."):
        indexer: Any = importlib.import_module(f"{_MODULE}.indexer")
        indexer._partition_scores = _partition_scores


def _partition_scores(top_k: int, masked: bool) -> Callable[..., mx.array]:
    """Return the same as mlx-vlm's function does, but not compiled."""

    def partition(
        queries: mx.array, keys: mx.array, weights: mx.array, mask: mx.array | None = None
    ) -> mx.array:
        scores = mx.maximum(queries @ keys.swapaxes(-1, -2), 0)
        scores = (scores * weights.swapaxes(-1, -2)[..., None]).sum(axis=1, keepdims=True)
        if masked and mask is not None:
            scores = mx.where(mask, scores, -mx.inf)
        return mx.argpartition(scores, kth=-top_k, axis=-1)

    return partition
