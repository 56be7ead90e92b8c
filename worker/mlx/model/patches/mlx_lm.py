"""Models of mlx-lm 0.32.2 that are computed wrongly as they are, and what makes them right.

Each patch changes the modules of one model. Its docstring says what is wrong without it.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gpt_oss, ministral3, mistral3
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.rope_utils import YarnRoPE, initialize_rope
from mlx_lm.utils import MODEL_REMAPPING, _get_classes

from lmx.worker.mlx.memory.windows import window_layers
from lmx.worker.mlx.module_calls import replace_methods


def patch_mlx_lm(model: Any, config: Mapping[str, Any], files: Iterable[Path]) -> None:
    """Patch a model whose weights are read from ``files``. ``config`` is its config.json."""
    name = type(model).__module__.removeprefix("mlx_lm.models.")
    if name == "ernie4_5_moe":
        _patch_ernie_experts(model, files)
    elif patch := _PATCHES.get(name):
        patch(model)
    _patch_ropes(model, config)
    _patch_windows(model, config)


class _GptOss(gpt_oss.Model):  # type: ignore[misc]  # mlx-lm has no types.
    """gpt-oss, whose class doesn't know the names of weights that transformers saves without
    quantization."""

    __module__ = gpt_oss.__name__

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        for name in [*weights]:
            if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
                weights[f"{name}.weight"] = weights.pop(name).swapaxes(-1, -2)
        renamed: dict[str, mx.array] = super().sanitize(weights)
        return renamed


class _Ministral3(ministral3.Model):  # type: ignore[misc]  # mlx-lm has no types.
    """Ministral 3, whose class multiplies 8-bit floats as if their codes were their values."""

    __module__ = ministral3.__name__

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        for name, weight in [*weights.items()]:
            scale = weights.pop(f"{name}_scale_inv", None) if weight.dtype == mx.uint8 else None
            if scale is not None:
                weights[name] = (mx.from_fp8(weight, mx.bfloat16) * scale).astype(mx.bfloat16)
        decoded: dict[str, mx.array] = super().sanitize(weights)
        return decoded


class _Mistral3(mistral3.Model):  # type: ignore[misc]  # mlx-lm has no types.
    """Mistral 3, whose language model may be a Ministral 3."""

    __module__ = mistral3.__name__

    def __init__(self, args: mistral3.ModelArgs) -> None:
        super().__init__(args)
        if isinstance(self.language_model, ministral3.Model):
            self.language_model.__class__ = _Ministral3


_CLASSES: Final[Mapping[str, tuple[Any, Any]]] = {
    "gpt_oss": (_GptOss, gpt_oss.ModelArgs),
    "ministral3": (_Ministral3, ministral3.ModelArgs),
    "mistral3": (_Mistral3, mistral3.ModelArgs),
}


def classes_of(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the class of a model, and that of its arguments, as mlx-lm does."""
    if known := _CLASSES.get(MODEL_REMAPPING.get(config["model_type"], config["model_type"])):
        return known
    model, arguments = _get_classes(config)
    return model, arguments


_CORRECTION: Final = re.compile(r"model\.layers\.(\d+)\.mlp\.moe_statics\.e_score_correction_bias")


def _patch_ernie_experts(model: Any, files: Iterable[Path]) -> None:
    """ERNIE 4.5: the class drops what is added to the scores by which experts are chosen. Where the
    weights have no such numbers any more, nothing is added."""
    for file in files:
        weights = mx.load(str(file))
        assert isinstance(weights, dict)
        for name, weight in weights.items():
            found = _CORRECTION.fullmatch(name)
            # The heads for further tokens have numbers of their own, or those behind the layers'.
            if found is not None and int(found[1]) < len(model.layers):
                layer = model.layers[int(found[1])]
                layer.mlp.correction = weight.reshape(-1)
                replace_methods(layer.mlp, __call__=_choose_experts)


def _choose_experts(experts: Any, x: mx.array) -> mx.array:
    scores = experts.gate_act(experts.gate(x).astype(mx.float32))
    order = mx.argpartition(-(scores + experts.correction), kth=experts.k - 1, axis=-1)
    chosen = order[..., : experts.k]
    shares = mx.take_along_axis(scores, chosen, axis=-1)
    shares = shares / mx.maximum(shares.sum(axis=-1, keepdims=True), 1e-12)
    made: mx.array = experts.switch_mlp(x, chosen)
    made = (made * shares[..., None]).sum(axis=-2).astype(made.dtype)
    return made if experts.shared_experts is None else made + experts.shared_experts(x)


def _patch_minicpm(model: Any) -> None:
    """MiniCPM: a head that is the embeddings needs its input divided by the width, as transformers
    does it. The class does so for a head with weights of its own alone."""
    if not model.args.tie_word_embeddings:
        return
    width = model.args.hidden_size / model.args.dim_model_base
    norm = model.model.norm
    plain = type(norm)

    def call(patched: Any, x: mx.array) -> mx.array:
        found: mx.array = plain.__call__(patched, x) / width
        return found

    replace_methods(norm, __call__=call)


def _patch_phi3small(model: Any) -> None:
    """Phi-3 small: the class counts the blocks of a chunk's queries from the end of the chunk, and
    adds the causal mask, which is of truth values, to the scores: within a block a token sees those
    behind it. A token that comes alone is right. In the authors' kernels blocks begin with the
    text. Rows may not be read together: the blocks of one with padding would begin with it."""
    for layer in model.layers:
        if layer.self_attn.block_sparse:
            replace_methods(layer.self_attn, _block_sparse_attention=_attend_to_blocks)


def _attend_to_blocks(
    attention: Any, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any
) -> mx.array:
    del mask  # It is causal, as the blocks' is.
    seen = _seen_blocks(attention, queries.shape[2], keys.shape[2])
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=seen)


def _seen_blocks(attention: Any, queries: int, keys: int) -> mx.array:
    """Return which keys each of the last ``queries`` tokens sees, [heads, queries, keys]."""
    asking, asked = mx.arange(keys - queries, keys)[:, None], mx.arange(keys)
    block = asked // attention.blocksparse_block_size
    near = asking // attention.blocksparse_block_size - block
    heads = mx.arange(1, attention.n_heads + 1)[:, None, None]
    strided = (block + heads) % attention.blocksparse_vert_stride == 0
    seen: mx.array = (near < attention.blocksparse_num_local_blocks) | strided
    return seen & (asking >= asked)


def _patch_plamo3(model: Any) -> None:
    """PLaMo 3: a token of a chunk sees as many tokens before it as the window has, and one that
    comes alone sees one fewer, because the cache does not have it any more."""
    plain = type(model)

    def make_cache(patched: Any) -> list[Any]:
        return [
            RotatingKVCache(max_size=cache.max_size + 1)
            if isinstance(cache, RotatingKVCache)
            else cache
            for cache in plain.make_cache(patched)
        ]

    replace_methods(model, make_cache=make_cache)


_PATCHES: Final[Mapping[str, Callable[[Any], None]]] = {
    "minicpm": _patch_minicpm,
    "minicpm3": _patch_minicpm,
    "phi3small": _patch_phi3small,
    "plamo3": _patch_plamo3,
}
"""By the module of a model's class."""

_PLAIN_ROPES: Final = frozenset({"glm4_moe", "mixtral", "qwen3_moe"})
"""Types whose classes read the description of scaled rotary embeddings and do without them. The
others have them of ``initialize_rope``."""


def _patch_ropes(model: Any, config: Mapping[str, Any]) -> None:
    """Scale the rotary embeddings as config.json describes. ``initialize_rope`` rounds the places
    between which YaRN interpolates, also where the description says not to (gpt-oss)."""
    scaling = config.get("rope_scaling")
    if not scaling:
        return
    for layer in model.layers:
        attention: Any = getattr(layer, "self_attn", None)
        rope: Any = getattr(attention, "rope", None)
        if config.get("model_type") in _PLAIN_ROPES and type(rope) is nn.RoPE:
            attention.rope = rope = initialize_rope(
                rope.dims,
                base=rope.base,
                traditional=rope.traditional,
                scaling_config=scaling,
                max_position_embeddings=config.get("max_position_embeddings"),
            )
        if scaling.get("truncate") is False and isinstance(rope, YarnRoPE):
            rope._freqs = _unrounded_freqs(rope.dims, model.args.rope_theta, scaling)


def _unrounded_freqs(dims: int, base: float, scaling: Mapping[str, Any]) -> mx.array:
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


def _patch_windows(model: Any, config: Mapping[str, Any]) -> None:
    """Give the layers the windows that config.json describes. Some classes let every layer see all
    tokens, and make one mask for all layers, of the first layer's cache. A cache that slides makes
    a mask of its window."""
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
        own = create_attention_mask(x, cache, return_array=isinstance(mask, mx.array))
        found: mx.array = plain.__call__(patched, x, own, cache)
        return found

    replace_methods(layer, __call__=call)
