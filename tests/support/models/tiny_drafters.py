"""Tiny models that are easy to foresee, and drafters that do, in folders of the real form.

A target knows after each token which one comes next as a rule: the next number. Most of its layers
change nothing. One layer of a ``qwen3_5`` does, as in any model. The drafters are right because
they were built from the target's weights: nothing is trained.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from tests.support.models.text_models import VOCABULARY, make_text_model

COUNTED: Final = 250
"""The tokens below this number follow one another, in a circle."""

_HIDDEN: Final = 64
_HEAD: Final = 16
_DEPTH: Final = 4
_BASE: Final = 10_000.0
_LIVING: Final = 1
"""The layer of ``qwen3_5`` that does something; it is one of attention."""

_SILENT: Final = re.compile(r"(o_proj|out_proj|down_proj)\.weight$")
_SIZES: Final[Mapping[str, Any]] = {
    "hidden_size": _HIDDEN,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": _HIDDEN // _HEAD,
    "num_key_value_heads": _HIDDEN // _HEAD,
    "head_dim": _HEAD,
    "rms_norm_eps": 1e-6,
    "rope_theta": _BASE,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
}

Weights = dict[str, mx.array]


def make_target(folder: Path, model_type: str) -> Path:
    """Write a target (``llama``, ``qwen3``, ``qwen3_5``) into ``folder``, and return that."""
    make_text_model(folder, model_type)
    weights = _read(folder)
    living = f"layers.{_LIVING}." if model_type == "qwen3_5" else "none"
    embeddings = _embeddings()
    for name, array in weights.items():
        if _SILENT.search(name) and living not in name:
            weights[name] = mx.zeros_like(array)
        elif name.endswith("embed_tokens.weight"):
            weights[name] = embeddings
        elif name.endswith("lm_head.weight"):
            weights[name] = _head(embeddings)
        elif re.search(r"(^|\.)model\.norm\.weight$", name):
            weights[name] = mx.ones_like(array)
    _write(folder, weights)
    return folder


def make_heads(folder: Path, target: Path) -> Path:
    """Write the heads for further tokens of a ``qwen3_5``, as mlx-vlm splits them off."""
    text = _config(target)["text_config"] | {"mtp_num_hidden_layers": 1}
    config = {"model_type": "qwen3_5_mtp", "text_config": text, "block_size": 3}
    return _make(folder, config, _head_weights(_read(target)))


def add_heads(folder: Path, target: Path) -> Path:
    """Write a ``qwen3_5`` as it is published: with its heads, and named as by its makers."""
    weights = _read(target)
    both = {f"mtp.{name}": array for name, array in _head_weights(weights).items()}
    both |= {
        name.replace("language_model.model.", "model.language_model.").replace(
            "language_model.lm_head", "lm_head"
        ): array
        for name, array in weights.items()
    }
    # Their norms are stored as what they add to one, and the convolutions with another order.
    for name, array in both.items():
        if array.ndim == 1 and "norm" in name and "linear_attn" not in name:
            both[name] = array - 1.0
        elif "conv1d" in name:
            both[name] = array.moveaxis(2, 1)
    config = _config(target)
    config["text_config"]["mtp_num_hidden_layers"] = 1
    for file in target.iterdir():
        if file.suffix not in (".safetensors",):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_bytes(file.read_bytes())
    _make(folder, config, both, form="pt")
    return folder


def make_eagle(folder: Path, target: Path, **changed: Any) -> Path:
    """Write an EAGLE-3 drafter in the form of the speculators library, which knows six of seven
    tokens. ``changed``: other values in its config.json, with random weights of such shapes."""
    known = [token for token in range(COUNTED) if token % 7]
    config: dict[str, Any] = {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": len(known),
        "target_hidden_size": _HIDDEN,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "tie_word_embeddings": False,
        "transformer_layer_config": {"model_type": "llama", **_SIZES},
    } | changed
    head = _head(_embeddings())
    weights = _random(
        {
            "fc.weight": (_HIDDEN, 3 * config["target_hidden_size"]),
            "layers.0.mlp.gate_proj.weight": (32, _HIDDEN),
            "layers.0.mlp.up_proj.weight": (32, _HIDDEN),
        }
    )
    attention = "layers.0.self_attn"
    weights |= {
        # It says again what the token before says: all it needs to see is that token.
        "fc.weight": mx.zeros_like(weights["fc.weight"]),
        f"{attention}.q_proj.weight": _constant(10.0, 0, 2 * _HIDDEN),
        f"{attention}.k_proj.weight": _constant(10.0, 0, 2 * _HIDDEN),
        f"{attention}.v_proj.weight": mx.eye(_HIDDEN, 2 * _HIDDEN),
        f"{attention}.o_proj.weight": 20 * mx.eye(_HIDDEN),
        "layers.0.mlp.down_proj.weight": mx.zeros((_HIDDEN, 32)),
        "embed_tokens.weight": _embeddings(),
        "lm_head.weight": head[mx.array(known)],
        "d2t": mx.array([token - place for place, token in enumerate(known)], mx.int64),
        "t2d": mx.array([token in known for token in range(VOCABULARY)]),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    weights |= {f"layers.0.{name}.weight": mx.ones(_HIDDEN) for name in norms}
    return _make(folder, config, weights | {"norm.weight": mx.ones(_HIDDEN)})


def make_dflash(folder: Path, **changed: Any) -> Path:
    """Write a DFlash drafter, which is right with the first token of each block. ``changed``:
    other values in its config.json."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 4,
        "num_target_layers": _DEPTH,
        "layer_types": ["full_attention"],
        "tie_word_embeddings": False,
        "dflash_config": {"mask_token_id": COUNTED, "target_layer_ids": [0, 2]},
        **_SIZES,
    } | changed
    weights = _random(
        {
            "fc.weight": (_HIDDEN, 2 * _HIDDEN),
            "layers.0.mlp.gate_proj.weight": (32, _HIDDEN),
            "layers.0.mlp.up_proj.weight": (32, _HIDDEN),
        }
    )
    attention = "layers.0.self_attn"
    weights |= {
        # Each place looks at the one before.
        f"{attention}.q_proj.weight": _constant(1.0, 0, _HIDDEN),
        f"{attention}.k_proj.weight": _constant(1.0, 1, _HIDDEN),
        f"{attention}.v_proj.weight": mx.eye(_HIDDEN),
        f"{attention}.o_proj.weight": 50 * mx.eye(_HIDDEN),
        f"{attention}.q_norm.weight": mx.full(_HEAD, 40.0),
        f"{attention}.k_norm.weight": mx.full(_HEAD, 10.0),
        "layers.0.mlp.down_proj.weight": mx.zeros((_HIDDEN, 32)),
        "layers.0.input_layernorm.weight": mx.ones(_HIDDEN),
        "layers.0.post_attention_layernorm.weight": mx.ones(_HIDDEN),
        "hidden_norm.weight": mx.ones(_HIDDEN),
        "norm.weight": mx.ones(_HIDDEN),
    }
    return _make(folder, config, weights)


def _embeddings() -> mx.array:
    """Vectors of one length, whose first number is the same."""
    vectors = mx.random.normal((VOCABULARY, _HIDDEN - 1), key=mx.random.key(1))
    vectors = vectors / mx.sqrt(mx.mean(vectors**2, axis=-1, keepdims=True))
    return mx.concatenate([mx.ones((VOCABULARY, 1)), vectors], axis=-1)


def _head(embeddings: mx.array) -> mx.array:
    """A head that finds the next number likeliest, and leaves the others a chance."""
    head = mx.zeros_like(embeddings)
    head[1:COUNTED] = embeddings[: COUNTED - 1]
    head[0] = embeddings[COUNTED - 1]
    return 0.12 * head


def _constant(scale: float, turned: int, width: int) -> mx.array:
    """Queries or keys that are the same for each token, turned by so many places."""
    one = mx.fast.rope(
        mx.ones((1, 1, 1, _HEAD)), _HEAD, traditional=False, base=_BASE, scale=1.0, offset=turned
    )
    weight = mx.zeros((_HIDDEN, width))
    weight[:, 0] = scale * mx.tile(one.reshape(-1), _HIDDEN // _HEAD)
    return weight


def _head_weights(target: Weights) -> Weights:
    inside = re.compile(rf"layers\.{_LIVING}\.(.*)")
    weights = {
        f"layers.0.{found[1]}": array
        for name, array in target.items()
        if (found := inside.search(name))
    }
    return weights | {
        "fc.weight": mx.eye(_HIDDEN, 2 * _HIDDEN),
        "pre_fc_norm_embedding.weight": mx.ones(_HIDDEN),
        "pre_fc_norm_hidden.weight": mx.ones(_HIDDEN),
        "norm.weight": mx.ones(_HIDDEN),
    }


def _random(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    mx.random.seed(2)
    return {name: 0.1 * mx.random.normal(shape) for name, shape in shapes.items()}


def _make(folder: Path, config: Mapping[str, Any], weights: Weights, form: str = "mlx") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    _write(folder, weights, form)
    return folder


def _config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def _read(folder: Path) -> Weights:
    found: Any = mx.load(str(folder / "model.safetensors"))
    return dict(found)


def _write(folder: Path, weights: Weights, form: str = "mlx") -> None:
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": form})
