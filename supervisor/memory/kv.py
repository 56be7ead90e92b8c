"""What a model keeps for each token of a sequence, read from its config.json. Pure.

Follows what mlx-vlm 0.7.10 does with such a configuration, which is not always what the
configuration says: a window that it doesn't keep to is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final

from lmx.protocol.models.memory import KvLayers

Section = Mapping[str, Any]

_MOST_LAYERS: Final = 4096
_MOST: Final = 2**31
_STATE_NUMBER_BYTES: Final = 4
"""Recurrent states are float32 whatever the weights are."""

_SECTIONS: Final = ("thinker_config", "text_config", "language_config", "llm_config")
_CONTEXT_KEYS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")

_SLIDE: Final = frozenset(
    {
        *("afmoe", "cohere2", "cohere2_moe", "cohere_compass", "exaone4", "exaone_moe", "flint"),
        *("gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "gpt_oss"),
        *("kolibri1", "laguna", "llama", "mellum", "mimo_v2_flash", "ministral3", "mistral"),
        *("mistral3", "muse_glimmer", "muse_spark", "olmo3", "recurrent_gemma", "spark2_5"),
        *("step3p5", "step3p7"),
    }
)
"""Model types whose windows mlx-vlm keeps to; the others' caches hold every token."""

_CHUNKED: Final = frozenset({"llama4", "llama4_text"})
"""Of four layers three hold a chunk, whatever the configuration says."""

_EXPAND: Final = frozenset(
    {
        *("deepseek_v2", "deepseek_vl_v2", "deepseekocr", "deepseekocr_2", "kimi_vl"),
        *("minicpm3", "mistral4", "unlimited_ocr", "youtu_llm"),
    }
)
"""Model types with latent attention whose caches hold all heads' keys and values all the same."""

_RECURRENT: Final = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv7"})
_UNKNOWN_STATE: Final = 128
"""Numbers of recurrent state for each of the hidden ones, where the configuration tells nothing:
what the known kinds come to."""


class _Holds(Enum):
    ALL = auto()
    WINDOW = auto()
    STATE = auto()
    STATE_AND_ALL = auto()
    NOTHING = auto()


def text_section(config: Section) -> Section:
    """Return the part that describes the language model; the whole where it isn't nested."""
    for name in _SECTIONS:
        part = config.get(name)
        if isinstance(part, dict) and part:
            return text_section(part)
    return config


def count(section: Section, *names: str) -> int:
    """Return the first of these that is a number above 0, else 0."""
    for name in names:
        value = section.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST:
            return value
    return 0


def native_context(config: Section) -> int | None:
    """Return the context length in tokens that a configuration declares."""
    return count(text_section(config), *_CONTEXT_KEYS) or count(config, *_CONTEXT_KEYS) or None


def kv_layers(config: Section, element_bytes: int) -> tuple[KvLayers, ...]:
    """Return what each sequence takes in each layer; empty where the configuration says nothing.

    ``element_bytes``: of the activations, whose type the caches have. Raises ``ValueError`` for
    numbers that no model has.
    """
    text = text_section(config)
    types = {str(part.get("model_type", "")).lower() for part in (config, text)}
    shapes = Counter(
        _layer(text, types, index, holds, element_bytes)
        for index, holds in enumerate(_holdings(text, types))
        if holds is not _Holds.NOTHING
    )
    return tuple(KvLayers(number, *shape) for shape, number in shapes.items() if any(shape))


def _layer(
    text: Section, types: set[str], index: int, holds: _Holds, element_bytes: int
) -> tuple[int, int | None, int]:
    """Return bytes a token, window and fixed bytes."""
    state_bytes = _state_bytes(text, element_bytes)
    match holds:
        case _Holds.STATE:
            return 0, None, state_bytes
        case _Holds.STATE_AND_ALL:
            return _token_numbers(text, types, index, True) * element_bytes, None, state_bytes
        case _Holds.WINDOW:
            window = count(
                text, "sliding_window", "sliding_window_size", "attention_window_size",
                "attention_chunk_size",
            )  # fmt: skip
            return _token_numbers(text, types, index, False) * element_bytes, window or None, 0
        case _:
            return _token_numbers(text, types, index, True) * element_bytes, None, 0


def _holdings(text: Section, types: set[str]) -> Sequence[_Holds]:
    layers = count(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if layers > _MOST_LAYERS:
        raise ValueError(f"{layers} layers")
    named = _named(text, layers) or [_by_rule(text, types, index) for index in range(layers)]
    if not types & (_SLIDE | _CHUNKED):
        named = [_Holds.ALL if holds is _Holds.WINDOW else holds for holds in named]
    # The last ones use the caches of others.
    shared = count(text, "num_kv_shared_layers")
    return named[: len(named) - shared] if shared < len(named) else named


def _named(text: Section, layers: int) -> list[_Holds]:
    """What layers are where the configuration names each of them."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        letters = {"M": _Holds.STATE, "*": _Holds.ALL}
        return [letters.get(letter, _Holds.NOTHING) for letter in pattern[:_MOST_LAYERS]]
    pattern = text.get("hybrid_layer_pattern")
    if isinstance(pattern, list) and pattern:
        return [_Holds.WINDOW if each == 1 else _Holds.ALL for each in pattern[:layers]]
    for key in ("layer_types", "layers_block_type", "block_types", "_block_types"):
        names = text.get(key)
        if isinstance(names, list) and names:
            return [_by_name(str(names[index % len(names)])) for index in range(layers)]
    return []


def _by_name(name: str) -> _Holds:
    if "sliding" in name or "chunked" in name or "local" in name:
        return _Holds.WINDOW
    if "attention" in name and "linear" not in name:
        return _Holds.ALL
    return _Holds.STATE


def _by_rule(text: Section, types: set[str], index: int) -> _Holds:
    """What a layer is where a number or the model's type tells."""
    linear = text.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        return _Holds.ALL if index + 1 in linear["full_attn_layers"] else _Holds.STATE
    if types & _RECURRENT:
        return _Holds.STATE
    if "falcon_h1" in types:
        return _Holds.STATE_AND_ALL
    if types & _CHUNKED:
        return _Holds.ALL if (index + 1) % 4 == 0 else _Holds.WINDOW
    if interval := count(text, "full_attention_interval"):
        return _Holds.ALL if (index + 1) % interval == 0 else _Holds.STATE
    if period := count(text, "attn_layer_period"):
        at = count(text, "attn_layer_offset")
        return _Holds.ALL if index % period == at else _Holds.STATE
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return _Holds.WINDOW if pattern[index % len(pattern)] == "L" else _Holds.ALL
    # Gemma 3 leaves out what is its default.
    every = count(text, "sliding_window_pattern") or (6 if types & {"gemma3", "gemma3_text"} else 0)
    if every and count(text, "sliding_window"):
        return _Holds.ALL if (index + 1) % every == 0 else _Holds.WINDOW
    return _Holds.ALL


def _token_numbers(text: Section, types: set[str], index: int, whole: bool) -> int:
    """Return how many numbers a layer keeps of a token; ``whole``: of all tokens."""
    heads = count(text, "num_attention_heads", "n_head", "n_heads")
    rank = count(text, "kv_lora_rank")
    rope = count(text, "qk_rope_head_dim")
    if rank and not types & _EXPAND:
        return rank + rope + count(text, "index_head_dim")
    if rank:
        nope = count(text, "qk_nope_head_dim")
        return heads * (nope + rope + (count(text, "v_head_dim") or nope))
    kv_heads = _kv_heads(text, index) or heads
    width = count(text, "head_dim") or (count(text, "hidden_size", "n_embd") // max(1, heads))
    if whole and (wider := count(text, "global_head_dim")):
        width = wider
        if text.get("attention_k_eq_v") is True:
            kv_heads = count(text, "num_global_key_value_heads") or kv_heads
    return kv_heads * (width + (count(text, "v_head_dim") or width))


def _kv_heads(text: Section, index: int) -> int:
    each = text.get("num_key_value_heads")
    if isinstance(each, list) and each:
        return count({"n": each[index % len(each)]}, "n")
    if text.get("multi_query") is True:
        return 1
    return count(text, "num_key_value_heads", "num_kv_heads", "n_head_kv")


def _state_bytes(text: Section, element_bytes: int) -> int:
    """Return what a recurrent layer keeps of a sequence: the last inputs of its convolution,
    and its state."""
    if heads := count(text, "linear_num_value_heads"):
        keys = count(text, "linear_num_key_heads") * count(text, "linear_key_head_dim")
        values = heads * count(text, "linear_value_head_dim")
        last = (count(text, "linear_conv_kernel_dim") - 1) * (2 * keys + values)
        state = values * count(text, "linear_key_head_dim")
    elif isinstance(linear := text.get("linear_attn_config"), dict):
        width = count(linear, "num_heads") * count(linear, "head_dim")
        last = 3 * width * (count(linear, "short_conv_kernel_size") - 1)
        state = width * count(linear, "head_dim")
    elif kernel := count(text, "conv_L_cache"):
        last, state = (kernel - 1) * count(text, "hidden_size"), 0
    elif heads := count(text, "mamba_n_heads", "mamba_num_heads", "num_heads"):
        size = count(text, "mamba_d_state", "ssm_state_size", "state_size")
        width = heads * count(text, "mamba_d_head", "mamba_head_dim", "head_dim")
        groups = count(text, "mamba_n_groups", "n_groups") or 1
        kernel = count(text, "mamba_d_conv", "conv_kernel")
        last, state = (kernel - 1) * (width + 2 * groups * size), width * size
    else:
        last, state = 0, _UNKNOWN_STATE * count(text, "hidden_size", "n_embd")
    return max(0, last) * element_bytes + state * _STATE_NUMBER_BYTES
