"""Adapters with random matrices, in folders as mlx-lm and PEFT write them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model

KEYS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
SCALE = 4.0


def make_adapter(
    folder: Path,
    base: Path,
    *,
    keys: Sequence[str] = KEYS,
    dora: bool = False,
    rank: int = 4,
    seed: int = 0,
) -> Path:
    """Write an adapter of the model in ``base`` as ``mlx_lm.lora`` does, and return its folder."""
    model, _ = load_model(base)
    parameters = {"rank": rank, "scale": SCALE, "dropout": 0.0, "keys": list(keys)}
    model.freeze()
    linear_to_lora_layers(model, -1, parameters, use_dora=dora)
    mx.random.seed(seed)
    drawn = [
        (name, array * mx.random.uniform(0.8, 1.2, array.shape) if name.endswith(".m")
         else 0.2 * mx.random.normal(array.shape))
        for name, array in tree_flatten(model.trainable_parameters())
    ]  # fmt: skip
    model.update(tree_unflatten(drawn))
    kind = "dora" if dora else "lora"
    config = {"fine_tune_type": kind, "num_layers": -1, "lora_parameters": parameters}
    write_adapter(folder, config, dict(tree_flatten(model.trainable_parameters())))
    return folder


def write_adapter(folder: Path, config: dict[str, Any], weights: dict[str, mx.array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "adapter_model" if "peft_type" in config else "adapters"
    mx.save_safetensors(str(folder / f"{name}.safetensors"), weights)


def as_peft(folder: Path, adapter: Path) -> Path:
    """Write mlx-lm's adapter as PEFT would write the same one."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights: Any = mx.load(str(adapter / "adapters.safetensors"))
    names = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "m": "lora_magnitude_vector"}
    peft = {}
    for name, array in weights.items():
        layer, _, leaf = name.rpartition(".")
        peft[f"base_model.model.{layer}.{names[leaf]}"] = array if array.ndim < 2 else array.T
    rank = config["lora_parameters"]["rank"]
    reported = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": SCALE * rank,
        "bias": "none",
        "target_modules": ["q_proj"],
        "use_dora": config["fine_tune_type"] == "dora",
    }
    write_adapter(folder, reported, peft)
    return folder


def adapted_logits(base: Path, adapter: Path, prompt: Sequence[int]) -> Any:
    """Return mlx-lm's logits after each token of a prompt, with an adapter."""
    model, _ = load_model(base)
    model = load_adapters(model, str(adapter))
    model.eval()
    logits = model(mx.array([list(prompt)]), cache=make_prompt_cache(model))[0]
    return np.array(logits.astype(mx.float32))
