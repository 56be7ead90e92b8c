"""Embedding and rerank models with tiny random weights, and plain references for them.

Folders like downloaded ones: config.json, safetensors, a byte-level tokenizer, and where asked
for the files of sentence-transformers.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["[SEP]", "[PAD]", "[CLS]", "<|im_start|>", "<|im_end|>"]
SEP, PAD, CLS = 256, 257, 258
_VOCABULARY = 256 + len(SPECIAL)
HIDDEN = 32
POSITIONS = 64
_HEADS = 4

_Array = np.ndarray[Any, Any]


def make_bert(folder: Path, *, labels: int | None = None, seed: int = 0, **config: Any) -> Path:
    """Write a BERT of two layers; with ``labels`` a classifier, as cross-encoders are."""
    weights = _bert_weights(np.random.default_rng(seed), labels)
    values = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification" if labels else "BertModel"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": _HEADS,
        "intermediate_size": 48,
        "max_position_embeddings": POSITIONS,
        "vocab_size": _VOCABULARY,
        "layer_norm_eps": 1e-12,
        "pad_token_id": PAD,
        "type_vocab_size": 2,
        **({"num_labels": labels} if labels else {}),
        **config,
    }
    return _write(folder, values, weights, pairs=True)


def make_qwen3(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """Write a Qwen3 of two layers, as Qwen3-Embedding and Qwen3-Reranker have them."""
    random = np.random.default_rng(seed)
    weights = {
        "model.embed_tokens.weight": _normal(random, _VOCABULARY, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, "f4"),
    }
    for layer in range(2):
        name = f"model.layers.{layer}"
        for part in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{part}.weight"] = np.ones(HIDDEN, "f4")
        for part in ("q_norm", "k_norm"):
            weights[f"{name}.self_attn.{part}.weight"] = np.ones(8, "f4")
        for part, rows in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16), ("o_proj", 32)):
            weights[f"{name}.self_attn.{part}.weight"] = _normal(random, rows, HIDDEN)
        for part in ("gate_proj", "up_proj"):
            weights[f"{name}.mlp.{part}.weight"] = _normal(random, 48, HIDDEN)
        weights[f"{name}.mlp.down_proj.weight"] = _normal(random, HIDDEN, 48)
    values = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 1024,
        "vocab_size": _VOCABULARY,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 260,
        **config,
    }
    return _write(folder, values, weights, pairs=False)


def make_modernbert(folder: Path, *, labels: int | None = None, seed: int = 0) -> Path:
    """Write a ModernBERT of three layers, of which two see 4 tokens before and after their own."""
    random = np.random.default_rng(seed)
    weights = {
        "embeddings.tok_embeddings.weight": _normal(random, _VOCABULARY, HIDDEN),
        "embeddings.norm.weight": np.ones(HIDDEN, "f4"),
        "final_norm.weight": np.ones(HIDDEN, "f4"),
    }
    for layer in range(3):
        name = f"layers.{layer}"
        for part in ("attn_norm", "mlp_norm")[layer == 0 :]:
            weights[f"{name}.{part}.weight"] = np.ones(HIDDEN, "f4")
        weights[f"{name}.attn.Wqkv.weight"] = _normal(random, 3 * HIDDEN, HIDDEN)
        weights[f"{name}.attn.Wo.weight"] = _normal(random, HIDDEN, HIDDEN)
        weights[f"{name}.mlp.Wi.weight"] = _normal(random, 2 * 48, HIDDEN)
        weights[f"{name}.mlp.Wo.weight"] = _normal(random, HIDDEN, 48)
    if labels:
        weights["head.dense.weight"] = _normal(random, HIDDEN, HIDDEN)
        weights["head.norm.weight"] = np.ones(HIDDEN, "f4")
        weights["classifier.weight"] = _normal(random, labels, HIDDEN)
        weights["classifier.bias"] = _normal(random, labels)
    values = {
        "model_type": "modernbert",
        "architectures": ["ModernBertForSequenceClassification" if labels else "ModernBertModel"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": 3,
        "num_attention_heads": _HEADS,
        "intermediate_size": 48,
        "max_position_embeddings": POSITIONS,
        "local_attention": 8,
        "vocab_size": _VOCABULARY,
        "pad_token_id": PAD,
        **({"num_labels": labels} if labels else {}),
    }
    return _write(folder, values, weights, pairs=True)


def change_weights(
    folder: Path, dtype: mx.Dtype, change: Callable[[str, mx.array], mx.array] = lambda _, one: one
) -> Path:
    """Write the weights in another type, each after a change of it."""
    file = str(folder / "model.safetensors")
    weights = cast("dict[str, mx.array]", mx.load(file))
    changed = {name: change(name, one).astype(dtype) for name, one in weights.items()}
    mx.eval(changed)
    mx.save_safetensors(file, changed, {"format": "mlx"})
    return folder


def add_sentence_transformers(
    folder: Path, pooling: str = "mean", *, normalize: bool = True, max_tokens: int | None = None
) -> Path:
    """Add the files that say how vectors are made."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": index, "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    if max_tokens is not None:
        settings = json.dumps({"max_seq_length": max_tokens})
        (folder / "sentence_bert_config.json").write_text(settings)
    return folder


class PlainBert:
    """BERT's forward pass in numpy, one sequence at a time, without padding: what the engine's
    batches are compared with. Reads any BERT folder of sentence-transformers."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        self._heads = config["num_attention_heads"]
        self._layers = config["num_hidden_layers"]
        self._weights = {
            name.removeprefix("bert."): array.astype("f8")
            for name, array in load_file(folder / "model.safetensors").items()
        }

    def hidden(self, tokens: Sequence[int], types: Sequence[int] | None = None) -> _Array:
        """Return the last layer's states, [tokens, hidden]."""
        weights = self._weights
        name = "embeddings"
        states = weights[f"{name}.word_embeddings.weight"][list(tokens)]
        states = states + weights[f"{name}.position_embeddings.weight"][: len(tokens)]
        kinds = list(types) if types is not None else [0] * len(tokens)
        states = states + weights[f"{name}.token_type_embeddings.weight"][kinds]
        states = self._norm(states, f"{name}.LayerNorm")
        for index in range(self._layers):
            states = self._layer(states, f"encoder.layer.{index}")
        return states

    def score(self, tokens: Sequence[int], types: Sequence[int]) -> float:
        """Return a cross-encoder's one logit."""
        pooled = np.tanh(self._linear(self.hidden(tokens, types)[0], "pooler.dense"))
        return float(self._linear(pooled, "classifier")[0])

    def _layer(self, states: _Array, name: str) -> _Array:
        query, key, value = (
            self._linear(states, f"{name}.attention.self.{part}").reshape(
                len(states), self._heads, -1
            )
            for part in ("query", "key", "value")
        )
        scores = np.einsum("ihd,jhd->hij", query, key) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", weights, value).reshape(states.shape)
        mixed = self._linear(mixed, f"{name}.attention.output.dense")
        states = self._norm(mixed + states, f"{name}.attention.output.LayerNorm")
        inner = self._linear(states, f"{name}.intermediate.dense")
        inner = 0.5 * inner * (1 + np.vectorize(math.erf)(inner / np.sqrt(2)))
        inner = self._linear(inner, f"{name}.output.dense")
        return self._norm(inner + states, f"{name}.output.LayerNorm")

    def _linear(self, states: _Array, name: str) -> _Array:
        result: _Array = states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return result

    def _norm(self, states: _Array, name: str) -> _Array:
        centred = states - states.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        result: _Array = scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return result


def make_tokenizer(*, pairs: bool) -> Any:
    """One token for each byte (0 to 255), and the special tokens. With ``pairs`` as BERT's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, sep_token=SPECIAL[0], pad_token=SPECIAL[1], cls_token=SPECIAL[2]
    )
    fast.add_special_tokens({"additional_special_tokens": SPECIAL[3:]})
    if pairs:
        fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
        )
        fast.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        # As some published tokenizers have it; it must not cut anything here.
        fast.backend_tokenizer.enable_truncation(16)
    return fast


def _write(folder: Path, config: dict[str, Any], weights: dict[str, _Array], pairs: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", {"format": "mlx"})
    make_tokenizer(pairs=pairs).save_pretrained(folder)
    return folder


def _bert_weights(random: np.random.Generator, labels: int | None) -> dict[str, _Array]:
    weights = {
        "embeddings.word_embeddings.weight": _normal(random, _VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": _normal(random, POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": _normal(random, 2, HIDDEN),
    }

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = _normal(random, rows, columns)
        weights[f"{name}.bias"] = _normal(random, rows)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + _normal(random, HIDDEN)
        weights[f"{name}.bias"] = _normal(random, HIDDEN)

    norm("embeddings.LayerNorm")
    for layer in range(2):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{name}.attention.self.{part}", HIDDEN, HIDDEN)
        linear(f"{name}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{name}.attention.output.LayerNorm")
        linear(f"{name}.intermediate.dense", 48, HIDDEN)
        linear(f"{name}.output.dense", HIDDEN, 48)
        norm(f"{name}.output.LayerNorm")
    if labels is None:
        return weights
    weights = {f"bert.{name}": array for name, array in weights.items()}
    linear("bert.pooler.dense", HIDDEN, HIDDEN)
    linear("classifier", labels, HIDDEN)
    return weights


def _normal(random: np.random.Generator, *shape: int) -> _Array:
    return (0.3 * random.standard_normal(shape)).astype("f4")
