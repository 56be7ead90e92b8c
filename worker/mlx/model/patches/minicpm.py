"""Heads of MiniCPM's that are the embeddings: mlx-lm's classes don't scale what they are given.

Written for mlx-lm 0.32.2, which divides by the width for a head with weights of its own alone.
transformers does so for both.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

from lmx.worker.mlx.module_calls import replace_methods

_MODULES: Final = frozenset({"mlx_lm.models.minicpm", "mlx_lm.models.minicpm3"})


def patch_minicpm(model: Any) -> None:
    """Scale the logits if it is a MiniCPM of mlx-lm's whose head is its embeddings."""
    if type(model).__module__ not in _MODULES or not model.args.tie_word_embeddings:
        return
    width = model.args.hidden_size / model.args.dim_model_base
    norm = model.model.norm
    plain = type(norm)

    def call(patched: Any, x: mx.array) -> mx.array:
        found: mx.array = plain.__call__(patched, x) / width
        return found

    replace_methods(norm, __call__=call)
