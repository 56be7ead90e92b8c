"""A tiny Pocket TTS with random weights."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from tests.support.models.whisper_models import byte_tokenizer

_HIDDEN: Final = 32

_CONFIG: Final[dict[str, Any]] = {
    "model_type": "pocket_tts",
    "flow_lm": {
        "dtype": "float32",
        "flow": {"dim": 16, "depth": 1},
        "transformer": {
            "hidden_scale": 2,
            "max_period": 10000,
            "d_model": _HIDDEN,
            "num_heads": 2,
            "num_layers": 1,
        },
        "lookup_table": {
            "dim": _HIDDEN,
            "n_bins": 0,
            "tokenizer": "huggingface",
            "tokenizer_path": "tokenizer.json",
        },
        "ldim": 8,
    },
    "mimi": {
        "dtype": "float32",
        "sample_rate": 24000,
        "channels": 1,
        "frame_rate": 12.5,
        "seanet": {
            "dimension": 16,
            "channels": 1,
            "n_filters": 4,
            "n_residual_layers": 1,
            "ratios": [6, 5, 4],
            "kernel_size": 7,
            "residual_kernel_size": 3,
            "last_kernel_size": 3,
            "dilation_base": 2,
            "pad_mode": "constant",
            "compress": 2,
        },
        "transformer": {
            "d_model": 16,
            "input_dimension": 16,
            "output_dimensions": [16],
            "num_heads": 2,
            "num_layers": 1,
            "layer_scale": 0.01,
            "context": 50,
            "dim_feedforward": 16,
            "max_period": 10000.0,
        },
        "quantizer": {"dimension": 8, "output_dimension": 16},
    },
}


def make_tiny_pocket(folder: Path, seed: int = 0) -> Path:
    """Write a folder of a Pocket TTS without an encoder of sounds, whose tokens are bytes, and two
    voices. It makes noise, until the time for the text is over."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from lmx.worker.mlx.voices.pocket import Model, ModelConfig

    (folder / "voices").mkdir(parents=True)
    tokenizer = byte_tokenizer()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads(json.dumps(_CONFIG))
    config["flow_lm"]["lookup_table"]["n_bins"] = tokenizer["added_tokens"][-1]["id"] + 1
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(seed)
    config["mimi"]["encoder_enabled"] = False
    model = Model(ModelConfig.from_dict(config | {"model_path": str(folder)}))
    weights = {name: np.array(value) for name, value in tree_flatten(model.parameters())}
    weights["mimi.decoder.final_conv1d.conv.conv.weight"] *= 2e6  # Else nothing is heard.
    save_file(weights, folder / "model.safetensors")
    random = np.random.default_rng(seed)
    for name in ("alba", "am_echo"):
        voice = random.normal(0, 0.3, (1, 5, _HIDDEN)).astype(np.float32)
        save_file({"audio_prompt": voice}, folder / "voices" / f"{name}.safetensors")
    return folder
