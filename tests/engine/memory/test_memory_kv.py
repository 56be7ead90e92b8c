"""What the supervisor counts for a KV cache is what mlx-vlm's caches take."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import make_prompt_cache
from text_models import make_text_model
from tiny_models import CONFIGS, make_tiny_model

from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.protocol.models.memory import kv_bytes
from lmx.protocol.states import ModelKind
from lmx.worker.mlx.memory.estimate import estimate
from lmx.worker.mlx.model.library import open_checkpoint

pytestmark = pytest.mark.engine

TOKENS = 512
CHUNK = 128


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_counted_is_what_is_held(tmp_path: Path, kind: str, dtype: str) -> None:
    folder = make_tiny_model(tmp_path / kind, kind)
    shard = folder / "model.safetensors"
    weights = mx.load(str(shard))
    assert isinstance(weights, dict)
    cast = {name: array.astype(getattr(mx, dtype)) for name, array in weights.items()}
    mx.eval(cast)
    mx.save_safetensors(str(shard), cast, {"format": "mlx"})

    found = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT)
    counted = kv_bytes(found.kv_layers, TOKENS)
    assert counted == pytest.approx(_held(folder), rel=0.02)


@pytest.mark.parametrize(
    "model_type",
    ["deepseek_v32", "gear", "gemma3", "gemma3n", "lfm2_moe", "llama4_text", "longcat_flash"],
)
def test_counted_is_what_is_held_by_a_class_of_mlx_lm(tmp_path: Path, model_type: str) -> None:
    folder = make_text_model(tmp_path, model_type)
    found = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT)
    counted = kv_bytes(found.kv_layers, TOKENS)
    assert counted == pytest.approx(_held(folder), rel=0.02)


def _held(folder: Path) -> int:
    """The bytes of all caches after so many tokens; the last ones come alone, as answers do,
    because a window holds a whole chunk more after a prefill."""
    model = open_checkpoint(folder).model
    caches = make_prompt_cache(model.language_model)
    tokens = [number % 200 for number in range(TOKENS)]
    ends = [*range(CHUNK, TOKENS, CHUNK), TOKENS - 1, TOKENS]
    begin = 0
    for end in ends:
        output = model.language_model(mx.array([tokens[begin:end]]), cache=caches)
        mx.eval(getattr(output, "logits", output))
        begin = end
    return sum(int(cache.nbytes) for cache in caches)
