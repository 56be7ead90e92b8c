"""One tiny model of every kind that lmx serves, all with random weights, and their entries in a
configuration."""

from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from tests.support.models.media_models import make_media_model
from tests.support.models.tiny_adapters import SCALE, write_adapter
from tests.support.models.tiny_encoders import make_bert
from tests.support.models.tiny_models import make_tiny_model
from tests.support.models.whisper_models import make_tiny_whisper

_CONTEXT_TOKENS: Final = 4096
TEXT: Final = ("llama", "qwen3", "gemma3", "qwen3_next")
"""Full attention twice, a sliding window, and recurrent layers beside attention."""
ADAPTED: Final = "tuned"
"""The adapter of ``llama``."""
SEES, HEARS, EMBEDS = "qwen3_vl", "whisper", "bert"


def make_zoo(folder: Path) -> list[dict[str, Any]]:
    """Write the models below ``folder``, and return their entries."""
    for name in TEXT:
        make_tiny_model(folder / name, name, _CONTEXT_TOKENS)
    _make_adapter(folder / ADAPTED)
    make_media_model(folder / SEES, SEES)
    make_tiny_whisper(folder / HEARS)
    make_bert(folder / EMBEDS)
    models: list[dict[str, Any]] = [
        {"id": name, "source": str(folder / name)} for name in (*TEXT, SEES, HEARS, EMBEDS)
    ]
    models[0]["adapters"] = {ADAPTED: str(folder / ADAPTED)}
    return models


def _make_adapter(folder: Path) -> None:
    """Write one of ``llama``'s queries: three layers of 64 numbers."""
    mx.random.seed(1)
    matrices = {
        f"model.layers.{layer}.self_attn.q_proj.lora_{side}": 0.2 * mx.random.normal(shape)
        for layer in range(3)
        for side, shape in (("a", (64, 4)), ("b", (4, 64)))
    }
    parameters = {"rank": 4, "scale": SCALE, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    config = {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": parameters}
    write_adapter(folder, config, matrices)
