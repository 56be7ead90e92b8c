"""Scaled rotary embeddings, of which some of mlx-lm's classes read the description and do without.

Written for mlx-lm 0.32.2, whose other classes have them of ``initialize_rope``. That rounds the
places between which YaRN interpolates, also where the description says not to (gpt-oss).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import YarnRoPE, initialize_rope

_PLAIN: Final = frozenset({"glm4_moe", "mixtral", "qwen3_moe"})


def patch_ropes(model: Any, config: Mapping[str, Any]) -> None:
    """Scale the rotary embeddings of mlx-lm's ``model`` as its config.json describes."""
    scaling = config.get("rope_scaling")
    if not scaling:
        return
    for layer in model.layers:
        attention: Any = getattr(layer, "self_attn", None)
        rope: Any = getattr(attention, "rope", None)
        if config.get("model_type") in _PLAIN and type(rope) is nn.RoPE:
            attention.rope = rope = initialize_rope(
                rope.dims,
                base=rope.base,
                traditional=rope.traditional,
                scaling_config=scaling,
                max_position_embeddings=config.get("max_position_embeddings"),
            )
        if scaling.get("truncate") is False and isinstance(rope, YarnRoPE):
            rope._freqs = _not_rounded(rope.dims, model.args.rope_theta, scaling)


def _not_rounded(dims: int, base: float, scaling: Mapping[str, Any]) -> mx.array:
    """Return what divides the places of each pair, [dims / 2]. Source: transformers 5.23's
    ``_compute_yarn_parameters``."""
    original = scaling["original_max_position_embeddings"]

    def place(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(place(scaling.get("beta_fast") or 32), 0)
    high = min(place(scaling.get("beta_slow") or 1), dims - 1)
    plain = base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)
    ramp = (mx.arange(dims // 2, dtype=mx.float32) - low) / max(high - low, 0.001)
    scaled = mx.clip(ramp, 0, 1)
    turns: mx.array = scaled / (scaling["factor"] * plain) + (1 - scaled) / plain
    return 1 / turns
