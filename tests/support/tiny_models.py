"""Model folders with tiny random weights, for what an architecture does rather than says.

Loadable like any downloaded folder: config.json, safetensors, a byte-level tokenizer with a
chat template. Made in well under a second, the same bytes at every call.
"""

import json
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
_VOCABULARY = 256 + len(_SPECIAL)
CONTEXT_TOKENS = 512

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": CONTEXT_TOKENS,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _COMMON | {"model_type": "llama"},
    "qwen3": _COMMON | {"model_type": "qwen3"},
    # Its window is shorter than the tests' conversations, so that it slides.
    "gemma3": _COMMON
    | {
        "model_type": "gemma3_text",
        "sliding_window": 16,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 16,
    },
}


def make_tiny_model(folder: Path, kind: str) -> Path:
    """Write the model ``kind`` (a key of CONFIGS) into ``folder``, and return that."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[kind] | {"eos_token_id": 256}
    (folder / "config.json").write_text(json.dumps(config))
    module, _ = get_model_and_args(dict(config))
    model = module.Model(module.ModelConfig.from_dict(dict(config)))
    mx.random.seed(0)
    weights = {
        # Large, because a fresh model's logits are so even that any rounding decides; but for
        # the embeddings: those are tied, and large ones repeat the last token for ever.
        name: (0.05 if "embed" in name else 0.3) * mx.random.normal(array.shape)
        for name, array in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    make_tokenizer().save_pretrained(folder)
    return folder


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
