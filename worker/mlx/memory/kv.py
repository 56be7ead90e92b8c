"""What a model's caches keep for each token of a sequence, by its config.json. Pure.

Follows what mlx-lm 0.32.2 and mlx-vlm 0.7.10 do with such a configuration, which is not always what
the configuration says: a window that they don't keep to is none. Where only one of them keeps less,
it is the more that counts.
"""

from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from lmx.protocol.models.checkpoint import CheckpointConfig, Section, count
from lmx.protocol.models.memory import KvLayers
from lmx.worker.mlx.memory.drafters import head_layers
from lmx.worker.mlx.memory.windows import window_keys, window_layers

STEP_TOKENS: Final = 256
"""mlx-vlm's caches grow by whole steps."""

GROUP_SIZES: Final = (64, 32)
"""This many quantized numbers have a scale and a bias in common: the first size of these that
divides the widths of keys and values. Larger groups take less memory. No other size can be had for
the usual widths."""

_MOST_LAYERS: Final = 4096
_STATE_NUMBER_BYTES: Final = 4
"""Recurrent states are float32 whatever the weights are."""

_SLIDE: Final = frozenset(
    {
        *("afmoe", "cohere2", "cohere2_moe", "cohere_compass", "exaone4", "exaone_moe", "flint"),
        *("gear", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text"),
        *("gemma4_unified", "gpt_oss"),
        *("kolibri1", "laguna", "llama", "mellum", "mimo_v2", "mimo_v2_flash"),
        *("ministral3", "mistral", "mistral3", "muse_glimmer", "muse_spark", "olmo3"),
        *("recurrent_gemma", "spark2_5"),
        *("baichuan_m1", "iquestloopcoder", "plamo3", "step3p5", "step3p7"),
    }
)
"""Model types whose windows mlx-vlm keeps to; the others' caches hold every token."""

_CHUNKED: Final = "llama4"
"""Of four layers three hold a chunk, whatever the configuration says. Of a ``llama4_text`` by
itself all hold every token."""

_TWO_CACHES: Final = frozenset({"longcat_flash", "longcat_flash_ngram", "longcat_flash_sparse"})
"""Model types whose layers have two caches each."""

_ONE_INDEX: Final = "longcat_flash_sparse"
"""Its two caches have one indexer, which keeps keys alone."""

_GROUPED_LINEAR: Final = frozenset({"bailing_hybrid", "bailing_moe_linear", "bailing_moe_v3"})
"""Model types in which the last layer of each group has attention, and the others a state."""

_LOOPING: Final = "iquestloopcoder"
"""Its layers run twice, the second time with a window."""

_REPEATING: Final = "nanbeige"
"""Its layers run as many times as its configuration says."""

_EXPAND: Final = frozenset(
    {
        *("deepseek_v2", "deepseek_vl_v2", "deepseekocr", "deepseekocr_2", "kimi_vl"),
        *("minicpm3", "unlimited_ocr", "youtu_llm"),
    }
)
"""Model types with latent attention whose caches hold all heads' keys and values all the same."""

_EXPANDS_WITH_VISION: Final = "mistral4"
"""mlx-vlm's class of it does so, and mlx-lm's, which is taken for text alone, does not."""

_REPEAT: Final = frozenset({"falcon_ocr", "falcon_perception"})
"""Model types whose caches hold keys and values once for each head that reads them."""

_USUAL_PATTERNS: Final = {"cohere2": 4, "exaone4": 4, "gemma3": 6, "gemma3_text": 6}
"""Of so many layers one sees all tokens, where a configuration leaves out what is its default."""

_POOLING: Final = "deepseek_v4"
"""Its layers keep a window, and of all tokens what is pooled of several."""

_PROJECTING: Final = "glm5_next"
"""Keeps latents of all tokens, and all heads' keys and values of the first ``_PROJECTED_TOKENS`` of
a prompt."""

_PROJECTED_TOKENS: Final = 32_768

_CONVOLVING: Final = "inkling"
"""Each of its layers keeps the last inputs of four convolutions besides keys and values."""

_EVERY_FOURTH: Final = frozenset({_CHUNKED, _PROJECTING})
"""Model types of whose layers each fourth holds all tokens, if the configuration names none."""

_RECURRENT: Final = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv7", "z1t"})
_UNKNOWN_STATE: Final = 128
"""Numbers of recurrent state for each of the hidden ones, where the configuration says nothing:
what the known kinds come to."""


class _Holds(Enum):
    ALL = auto()
    WINDOW = auto()
    STATE = auto()
    STATE_AND_ALL = auto()
    NOTHING = auto()


def kv_layers(
    config: CheckpointConfig, element_bytes: int, bits: int | None = None
) -> tuple[KvLayers, ...]:
    """Return what each sequence takes in each layer; empty where the configuration says nothing.

    ``element_bytes``: of one number of the activations, whose type the caches have. ``bits``: of
    one number in those caches that are quantized. Raises ``ValueError`` for numbers that no model
    has.
    """
    types = {config.model_type, config.text_model_type}
    shapes = Counter(
        shape
        for index, holds in enumerate(_holdings(config, types))
        if holds is not _Holds.NOTHING
        for shape in _layer(config, types, index, holds, element_bytes, bits)
    )
    return tuple(
        KvLayers(number, *shape[:3], STEP_TOKENS, shape.read_bytes)
        for shape, number in shapes.items()
        if any(shape)
    )


def quantization_group(*widths: int) -> int | None:
    """Return how many numbers of keys and values of these widths are quantized together. None: they
    can't be quantized."""
    for size in GROUP_SIZES:
        if all(width > 0 and width % size == 0 for width in widths):
            return size
    return None


class _Shape(NamedTuple):
    """What a layer takes, as in :class:`KvLayers`."""

    token_bytes: int
    window_tokens: int | None
    fixed_bytes: int
    read_bytes: int = 0


class _Content(NamedTuple):
    """What a cache keeps of each token."""

    heads: int
    key_width: int
    value_width: int

    @property
    def numbers(self) -> int:
        return self.heads * (self.key_width + self.value_width)


def _layer(
    config: CheckpointConfig,
    types: set[str],
    index: int,
    holds: _Holds,
    element_bytes: int,
    bits: int | None,
) -> Sequence[_Shape]:
    """Return what a layer's caches take: one shape for those that are alike in what they keep."""
    if holds is _Holds.STATE:
        return [_Shape(0, None, _state_bytes(config, types, element_bytes))]
    if _POOLING in types:
        return _pooled(config.text, index, element_bytes)
    slides = holds is _Holds.WINDOW
    contents = _contents(config, types, index, all_tokens=not slides)
    token_bytes = _plain_bytes(contents, element_bytes)
    if slides and (types & (_SLIDE | {_CHUNKED}) or window_keys(config.model_type)):
        return [_Shape(token_bytes, _window_tokens(config.text, types), 0)]
    fixed = _state_bytes(config, types, element_bytes) if holds is _Holds.STATE_AND_ALL else 0
    if _CONVOLVING in types:
        inputs = config.hidden_size + contents[0].heads * contents[0].key_width
        kernel = count(config.text, "sconv_kernel_size") or 4
        fixed = (kernel - 1) * 2 * inputs * _STATE_NUMBER_BYTES
    indexer_bytes, unquantizable = _indexer(config, types, index, element_bytes)
    stored_bytes = token_bytes
    if bits is not None and not unquantizable:
        stored_bytes = sum(_stored_bytes(content, element_bytes, bits) for content in contents)
    read_bytes = token_bytes if stored_bytes < token_bytes else 0
    shapes = [_Shape(stored_bytes + indexer_bytes, None, fixed, read_bytes)]
    if _PROJECTING in types:
        widths = count(config.text, "qk_nope_head_dim") + count(config.text, "v_head_dim")
        projected_bytes = config.attention_heads * widths * element_bytes
        shapes.append(_Shape(projected_bytes, _PROJECTED_TOKENS, 0))
    return shapes


def _pooled(text: Section, index: int, element_bytes: int) -> Sequence[_Shape]:
    """Return what a layer keeps that pools its tokens by 4, with an indexer that does so too, or by
    128, or has a window alone. The tokens that are not yet pooled wait with their gates."""
    width = count(text, "head_dim")
    window = _Shape(width * element_bytes, count(text, "sliding_window") or None, 0)
    ratios = text.get("compress_ratios")
    given = ratios[index] if isinstance(ratios, list) and index < len(ratios) else 4
    ratio = count({"ratio": given}, "ratio")
    if not ratio:
        return [window]
    overlap = 1
    if ratio == 4:  # Its windows overlap.
        width, overlap = width + count(text, "index_head_dim"), 2
    pooled_bytes = -(-width * element_bytes // ratio)
    return [window, _Shape(pooled_bytes, None, 2 * ratio * overlap * width * element_bytes)]


def _indexer(
    config: CheckpointConfig, types: set[str], index: int, element_bytes: int
) -> tuple[int, bool]:
    """Return how many bytes of a token the indexer of a layer keeps that has a cache of its own
    kind, and whether that kind keeps keys and values which can't be quantized."""
    text = config.text
    if isinstance(sparse := text.get("sparse_attention_config"), dict):
        places = sparse.get("sparse_attention_freq")
        if isinstance(places, list) and index < len(places) and places[index]:
            width = count(sparse, "sparse_index_dim") or count(text, "index_head_dim", "head_dim")
            by_mlx_lm = "minimax_m3_vl" in types and "vision_config" not in config.whole
            return width * element_bytes, not by_mlx_lm
    if width := count(text, "indexer_head_dim"):
        # A key, a share of the key of its block, and three positions.
        ratio = count(text, "indexer_compress_ratio") or 4
        return width * element_bytes * (ratio + 1) // ratio + 3 * 4, True
    if _PROJECTING in types:
        # A share of the key of its pool, and whether it is padding.
        pool = count(text, "index_kpool") or 16
        return count(text, "index_head_dim") * element_bytes // pool + 1, False
    return 0, False


def _plain_bytes(contents: Sequence[_Content], element_bytes: int) -> int:
    return sum(content.numbers for content in contents) * element_bytes


def _stored_bytes(content: _Content, element_bytes: int, bits: int) -> int:
    """Return what each token takes in a quantized cache; in a plain one, if it can't be
    quantized."""
    group = quantization_group(content.key_width, content.value_width)
    if group is None:
        return content.numbers * element_bytes
    # Each group has a scale and a bias.
    return content.numbers * bits // 8 + content.numbers // group * 2 * element_bytes


def _window_tokens(text: Section, types: set[str]) -> int | None:
    chunk = count(text, "attention_chunk_size")
    if chunk and _CHUNKED in types:
        # What comes after a chunk is in a step of its own.
        return chunk + STEP_TOKENS
    window = count(
        text, "sliding_window", "sliding_window_size", "attention_window_size", "window_size",
        "loop_window_size",
    )  # fmt: skip
    return window or None


def _holdings(config: CheckpointConfig, types: set[str]) -> Sequence[_Holds]:
    layers, text = config.layers, config.text
    if heads := head_layers(config):
        return [_Holds.ALL] * min(heads, _MOST_LAYERS)
    if layers > _MOST_LAYERS:
        raise ValueError(f"{layers} layers")
    named = _named(text, types, layers) or [_by_rule(text, types, index) for index in range(layers)]
    if window_keys(config.model_type):
        slides = window_layers(config.whole, layers) or [False] * layers
        named = [_Holds.WINDOW if one else _Holds.ALL for one in slides]
    if types & _TWO_CACHES:
        named = [*named, *named]
    if _LOOPING in types:
        named = [*named, *([_Holds.WINDOW] * len(named))]
    named = named * _rounds(text, types, len(named))
    # The last layers use the caches of others.
    shared = count(text, "num_kv_shared_layers", "num_kv_reuse_layers")
    return named[: len(named) - shared] if shared < len(named) else named


def _rounds(text: Section, types: set[str], layers: int) -> int:
    """Return how often a model goes through its layers, each time with caches of their own."""
    rounds = count(text, "H_cycles") * (count(text, "L_cycles") + 1)
    if _REPEATING in types:
        weights = text.get("loop_loss_weights")
        further = len(weights) if isinstance(weights, list) else 0
        rounds = further + 1 if further else count(text, "num_loops")
    if rounds * layers > _MOST_LAYERS:
        raise ValueError(f"{rounds} rounds through {layers} layers")
    return max(1, rounds)


def _named(text: Section, types: set[str], layers: int) -> list[_Holds]:
    """Return what each layer holds, where the configuration names each; else nothing."""
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str | list) and pattern:
        letters = {"M": _Holds.STATE, "*": _Holds.ALL}
        return [letters.get(str(letter), _Holds.NOTHING) for letter in pattern[:_MOST_LAYERS]]
    blocks = text.get("block_configs")
    if isinstance(blocks, list) and blocks:
        return [
            _Holds.ALL if _group_heads(text, index) else _Holds.NOTHING for index in range(layers)
        ]
    places = text.get("full_attn_idxs")
    if isinstance(places, list) and not text.get("layer_types"):
        return [_Holds.ALL if index in places else _Holds.STATE for index in range(layers)]
    places = text.get("sliding_window_layers") or text.get("local_layer_ids")
    if isinstance(places, list):
        return [_Holds.WINDOW if index in places else _Holds.ALL for index in range(layers)]
    pattern = text.get("hybrid_layer_pattern")
    if isinstance(pattern, list) and pattern:
        return [_Holds.WINDOW if each == 1 else _Holds.ALL for each in pattern[:layers]]
    for key in ("layer_types", "layers_block_type", "block_types", "_block_types"):
        names = text.get(key)
        if isinstance(names, list) and names:
            return [_by_name(str(names[index % len(names)]), types) for index in range(layers)]
    return []


def _by_name(name: str, types: set[str]) -> _Holds:
    if name == "attention" and "recurrent_gemma" in types:
        return _Holds.WINDOW
    if "sliding" in name or "chunked" in name or "local" in name:
        return _Holds.WINDOW
    if name == "hybrid" or ("attention" in name and "linear" not in name):
        return _Holds.ALL
    return _Holds.STATE


def _by_rule(text: Section, types: set[str], index: int) -> _Holds:
    """Return what a layer holds, where a number or the model's type decides it."""
    linear = text.get("linear_attn_config")
    full = linear.get("full_attn_layers") if isinstance(linear, dict) else None
    if isinstance(full, list) and not types & _EVERY_FOURTH:
        return _Holds.ALL if index + 1 in full else _Holds.STATE
    if types & _RECURRENT:
        return _Holds.STATE
    if "falcon_h1" in types:
        return _Holds.STATE_AND_ALL
    if (rule := _period(text, types)) is None:
        return _pattern(text, types, index)
    period, place = rule
    others = _Holds.WINDOW if _CHUNKED in types else _Holds.STATE
    return _Holds.ALL if index % period == place else others


def _period(text: Section, types: set[str]) -> tuple[int, int] | None:
    """Return of how many layers one holds all tokens, and which of them. None: it is not said, or
    the others have windows."""
    if types & _EVERY_FOURTH:
        return 4, 3
    if types & _GROUPED_LINEAR and (group := count(text, "layer_group_size")):
        return group, group - 1
    if types & {"plamo2", "plamo2vl"} and (step := count(text, "mamba_step")):
        return step, step // 2
    if interval := count(text, "full_attention_interval"):
        return interval, interval - 1
    if period := count(text, "attn_layer_period"):
        return period, count(text, "attn_layer_offset")
    return None


def _pattern(text: Section, types: set[str], index: int) -> _Holds:
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return _Holds.WINDOW if pattern[index % len(pattern)] == "L" else _Holds.ALL
    every = count(text, "sliding_window_pattern")
    if pattern is None:
        every = next((every for kind, every in _USUAL_PATTERNS.items() if kind in types), 0)
    if every and count(text, "sliding_window", "window_size"):
        return _Holds.ALL if (index + 1) % every == 0 else _Holds.WINDOW
    return _Holds.ALL


def _contents(
    config: CheckpointConfig, types: set[str], index: int, *, all_tokens: bool
) -> Sequence[_Content]:
    """Return what a layer's caches keep of a token. ``all_tokens``: it has no window."""
    text = config.text
    # Of a recurrent model these are other heads, but it is not asked about any.
    heads = config.attention_heads or count(text, "num_heads")
    rank = count(text, "kv_lora_rank")
    rope = count(text, "qk_rope_head_dim")
    if rank and _ONE_INDEX in types:
        return (_Content(1, rank, rope), _Content(1, (count(text, "index_head_dim") + 1) // 2, 0))
    expands = types & _EXPAND or (_EXPANDS_WITH_VISION in types and "vision_config" in config.whole)
    if rank and not expands:
        # The indexer keeps its keys in the place of values too, if it has a cache like others.
        indexer = 0 if _PROJECTING in types else count(text, "index_head_dim")
        return (_Content(1, rank, rope), _Content(1, indexer, indexer))
    if rank:
        nope = count(text, "qk_nope_head_dim")
        return (_Content(heads, nope + rope, count(text, "v_head_dim") or nope),)
    kv_heads = (0 if types & _REPEAT else _kv_heads(text, types, index)) or heads
    if sharing := count(text, "n_shared_head"):
        kv_heads = -(-heads // sharing)
    width = count(text, "head_dim") or (config.hidden_size // max(1, heads))
    if all_tokens and (wider := count(text, "global_head_dim")):
        width = wider
        if text.get("attention_k_eq_v", "gemma4_unified" in types) is True:
            kv_heads = count(text, "num_global_key_value_heads") or kv_heads
    value_width = count(text, "v_head_dim") or width
    if not all_tokens:
        kv_heads = count(text, "swa_num_key_value_heads") or kv_heads
        width = count(text, "swa_head_dim") or width
        value_width = count(text, "swa_v_head_dim", "v_head_dim") or width
    return (_Content(kv_heads, width, value_width),)


def _group_heads(text: Section, index: int) -> int:
    """Return how many heads of a layer share keys and values, where each layer has a block of its
    own; 0: it has no attention."""
    blocks = text.get("block_configs")
    block = blocks[index % len(blocks)] if isinstance(blocks, list) and blocks else None
    attention = block.get("attention") if isinstance(block, dict) else None
    return count(attention, "n_heads_in_group") if isinstance(attention, dict) else 0


def _kv_heads(text: Section, types: set[str], index: int) -> int:
    if group := _group_heads(text, index):
        return -(-count(text, "num_attention_heads") // group)
    if isinstance(attention := text.get("attn_config"), dict):
        return count(attention, "kv_n_heads")
    for key in ("num_key_value_heads", "num_kv_heads"):
        each = text.get(key)
        if isinstance(each, list) and each:
            return count({"n": each[index % len(each)]}, "n")
    if text.get("multi_query", "gpt_bigcode" in types) is True:
        return 1
    return count(
        text, "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads",
        "num_attention_groups",
    )  # fmt: skip


def _inner_width(config: CheckpointConfig, types: set[str]) -> int:
    """Return the inner size of a Mamba of the first kind, which has no heads; 0 for other types."""
    if types & {"mamba", "falcon_mamba"}:
        return count(config.text, "intermediate_size", "d_inner")
    return count(config.text, "mamba_expand") * config.hidden_size if "jamba" in types else 0


def _state_bytes(config: CheckpointConfig, types: set[str], element_bytes: int) -> int:
    """Return what a recurrent layer keeps of a sequence: the last inputs of its convolution,
    and its state."""
    text = config.text
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
        last, state = (kernel - 1) * config.hidden_size, 0
    elif types & _GROUPED_LINEAR:
        width = config.attention_heads * count(text, "head_dim")
        last = 3 * width * 3 if "bailing_moe_v3" in types else 0
        state = width * count(text, "head_dim")
    elif "z1t" in types:
        heads = count(text, "aft_heads") or 4
        last, state = (count(text, "aft_ksize") or 4) * (config.hidden_size + heads), 0
    elif "rwkv7" in types:
        last, state = 2 * config.hidden_size, config.hidden_size * count(text, "head_dim")
    elif kernel := count(text, "conv1d_width"):
        width = count(text, "lru_width") or config.hidden_size
        last, state = kernel * width, width
    elif width := _inner_width(config, types):
        kernel = count(text, "mamba_d_conv", "conv_kernel", "d_conv")
        size = count(text, "mamba_d_state", "state_size", "d_state")
        last, state = (kernel - 1) * width, width * size
    elif heads := count(text, "mamba_n_heads", "mamba_num_heads", "num_heads"):
        size = count(text, "mamba_d_state", "ssm_state_size", "state_size")
        each = count(text, "mamba_d_head", "mamba_head_dim", "hidden_size_per_head", "head_dim")
        width = heads * each
        groups = count(text, "mamba_n_groups", "n_groups") or 1
        kernel = count(text, "mamba_d_conv", "conv_kernel")
        last, state = (kernel - 1) * (width + 2 * groups * size), width * size
    else:
        last, state = 0, _UNKNOWN_STATE * config.hidden_size
    return max(0, last) * element_bytes + state * _STATE_NUMBER_BYTES
