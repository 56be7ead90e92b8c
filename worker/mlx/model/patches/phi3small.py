"""Phi-3 small, of which mlx-lm's class makes the attention by blocks wrong.

Written for mlx-lm 0.32.2. It counts the blocks of a chunk's queries from the end of the chunk, and
adds the causal mask, which is of truth values, to the scores: within a block a token sees those
behind it. A token that comes alone is right. In the authors' kernels blocks begin with the text.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

from lmx.worker.mlx.module_calls import replace_methods

_MODULE: Final = "mlx_lm.models.phi3small"


def patch_phi3small(model: Any) -> None:
    """Make the attention right if it is a Phi-3 small of mlx-lm's. Rows may not be read together:
    the blocks of one with padding would begin with the padding."""
    if type(model).__module__ != _MODULE:
        return
    for layer in model.layers:
        if layer.self_attn.block_sparse:
            replace_methods(layer.self_attn, _block_sparse_attention=_attend)


def _attend(
    attention: Any, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any
) -> mx.array:
    del mask  # It is causal, as the blocks' is.
    return mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=scale, mask=_seen(attention, queries.shape[2], keys.shape[2])
    )


def _seen(attention: Any, queries: int, keys: int) -> mx.array:
    """Return which keys each of the last ``queries`` tokens sees, [heads, queries, keys]."""
    asking, asked = mx.arange(keys - queries, keys)[:, None], mx.arange(keys)
    block = asked // attention.blocksparse_block_size
    near = asking // attention.blocksparse_block_size - block
    heads = mx.arange(1, attention.n_heads + 1)[:, None, None]
    strided = (block + heads) % attention.blocksparse_vert_stride == 0
    seen: mx.array = (near < attention.blocksparse_num_local_blocks) | strided
    return seen & (asking >= asked)
