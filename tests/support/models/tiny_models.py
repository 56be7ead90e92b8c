"""Model folders with tiny random weights, for what an architecture does rather than says.

Loadable like any downloaded folder: config.json, safetensors, a byte-level tokenizer with a
chat template. Made in well under a second, the same bytes at every call.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.utils import get_model_and_args
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
VOCABULARY = 256 + len(_SPECIAL)
CONTEXT_TOKENS = 512

# fmt: off
_COMMON: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
    "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT_TOKENS,
    "tie_word_embeddings": True, "torch_dtype": "float32"}
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4, "full_attention_interval": 2, "partial_rotary_factor": 0.5,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 0,
    "num_experts_per_tok": 0, "decoder_sparse_step": 1, "shared_expert_intermediate_size": 0,
    "mlp_only_layers": [], "moe_intermediate_size": 0}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _COMMON | {"model_type": "llama"},
    "qwen3": _COMMON | {"model_type": "qwen3"},
    # Its window is shorter than the tests' conversations, so that it slides.
    "gemma3": _COMMON
    | {
        "model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 16},
    # Recurrent layers, of two kinds, beside attention.
    "qwen3_next": _COMMON | _LINEAR | {"model_type": "qwen3_next"},
    # The same with positions in three dimensions, as its siblings with eyes have.
    "qwen3_5": _COMMON | _LINEAR | {"model_type": "qwen3_5_text"},
    "lfm2": _COMMON
    | {
        "model_type": "lfm2", "norm_eps": 1e-6, "conv_bias": False, "conv_L_cache": 3,
        "block_dim": 64, "block_ff_dim": 128, "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv"]},
    # Recurrent layers alone.
    "mamba2": _COMMON
    | {
        "model_type": "mamba2", "num_heads": 8, "head_dim": 16, "state_size": 16, "conv_kernel": 4,
        "n_groups": 1, "use_bias": False, "use_conv_bias": True, "layer_norm_epsilon": 1e-6,
        "time_step_limit": [0.0, 100.0], "time_step_rank": "auto", "residual_in_fp32": False},
}

# Wrong in a batch, in mlx-vlm 0.7.10.
UNBATCHED_CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": _COMMON
    | {
        "model_type": "gemma2",
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }}

# Heads so wide that keys and values can be quantized.
QUANTIZABLE_CONFIGS: dict[str, dict[str, Any]] = {
    f"{kind}-64": config | {"head_dim": 64}
    for kind, config in CONFIGS.items()
    if kind in ("gemma3", "llama", "qwen3_5", "qwen3_next")
}

# Half a gigabyte of experts, of which a token meets few: large in memory, and soon loaded.
LARGE_CONFIGS: dict[str, dict[str, Any]] = {
    "experts": _COMMON
    | {
        "model_type": "qwen3_moe",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_experts": 128,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 680,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }}

# Little to compute, and caches as wide as those of a model of some billion weights.
CACHING_CONFIGS: dict[str, dict[str, Any]] = {
    "wide": _COMMON
    | {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
    }}
# fmt: on

_MANY = 1 << 24
"""Only a layer's experts have more weights in one array."""


def make_tiny_model(
    folder: Path,
    kind: str,
    context_tokens: int = CONTEXT_TOKENS,
    dtype: mx.Dtype = mx.float32,
) -> Path:
    """Write the model ``kind`` (a key of the configs) into ``folder``, and return that."""
    folder.mkdir(parents=True, exist_ok=True)
    known = CONFIGS | UNBATCHED_CONFIGS | QUANTIZABLE_CONFIGS | CACHING_CONFIGS | LARGE_CONFIGS
    config = known[kind] | {"eos_token_id": 256, "max_position_embeddings": context_tokens}
    (folder / "config.json").write_text(json.dumps(config))
    module, _ = get_model_and_args(dict(config))
    model = module.Model(module.ModelConfig.from_dict(dict(config)))
    mx.random.seed(0)
    weights = {
        # Large, because a fresh model's logits are so even that any rounding decides; but for
        # the embeddings: those are tied, and large ones repeat the last token for ever.
        name: ((0.05 if "embed" in name else 0.3) * _noise(array.shape)).astype(dtype)
        for name, array in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    make_tokenizer().save_pretrained(folder)
    return folder


def _noise(shape: Sequence[int]) -> mx.array:
    """Return random numbers. Half a gigabyte of them would take five seconds, so the experts of a
    layer are all the same."""
    if math.prod(shape) < _MANY:
        return mx.random.normal(shape)
    return mx.broadcast_to(mx.random.normal(shape[1:]), shape)


def make_word_tokenizer(words: Sequence[str], chat_template: str | None = None) -> Any:
    """One token for each byte (0 to 255), and for each of these words, from 256 on. It writes every
    text in bytes: the words are for those who draw them. The last token is EOS."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = [level.pre_tokenize_str(word)[0][0] for word in words]
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *spelled]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_SPECIAL[0])
    fast.chat_template = chat_template
    return fast


def make_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """One token for each byte (0 to 255), and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_SPECIAL[0])
    fast.add_special_tokens({"additional_special_tokens": _SPECIAL[1:]})
    fast.chat_template = chat_template
    return fast
