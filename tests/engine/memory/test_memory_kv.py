"""What the supervisor counts for a KV cache is what mlx-vlm's caches take."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.messages.data import Assist
from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.protocol.models.memory import kv_bytes
from lmx.protocol.states import ModelKind
from lmx.supervisor.memory.plan import _DRAFT_WINDOW_TOKENS
from lmx.worker.engine.values import SequenceRequest
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.drafting.draft_model import DraftModel
from lmx.worker.mlx.memory.estimate import estimate
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.kv_quantization import quantize_kv
from lmx.worker.mlx.model.library import open_checkpoint
from tests.support.models.text_models import make_text_model
from tests.support.models.tiny_models import (
    CONFIGS,
    QUANTIZABLE_CONFIGS,
    VOCABULARY,
    make_tiny_model,
)
from tests.support.rigs.engine_rig import GREEDY
from tests.support.rigs.matrices import combinations

pytestmark = pytest.mark.long

TOKENS = 512
CHUNK = 128


@pytest.mark.parametrize(("kind", "dtype"), combinations(sorted(CONFIGS), ["float32", "bfloat16"]))
def test_counted_is_what_is_held(tmp_path: Path, kind: str, dtype: str) -> None:
    folder = make_tiny_model(tmp_path / kind, kind, dtype=getattr(mx, dtype))
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


@pytest.mark.parametrize("loops", [{"num_loops": 2}, {"loop_loss_weights": [0.5, 0.2]}])
def test_each_loop_of_a_model_holds_what_is_counted(tmp_path: Path, loops: dict[str, Any]) -> None:
    folder = make_text_model(tmp_path, "nanbeige")
    config = read_checkpoint_config(folder).whole
    (folder / "config.json").write_text(json.dumps({**config, **loops}))
    found = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT)
    counted = kv_bytes(found.kv_layers, TOKENS)
    assert counted == pytest.approx(_held(folder), rel=0.02)


@pytest.mark.parametrize("model_type", ["gear", "gemma3", "llama4", "mistral"])
def test_a_prompt_that_waits_half_read_holds_no_more_than_is_counted(
    tmp_path: Path, model_type: str
) -> None:
    folder = make_text_model(tmp_path, model_type)
    config = read_checkpoint_config(folder)
    (folder / "config.json").write_text(json.dumps({**config.whole, "sliding_window": 16}))
    layers = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT).kv_layers
    assert any(part.window_tokens is not None for part in layers)
    forward = Forward(open_checkpoint(folder).model)
    row = SequenceRequest(0, [number % 200 for number in range(TOKENS)], 1, GREEDY)
    prefill = PromptPrefill(forward, row, forward.new_cache(), 0)
    while not prefill.ready:
        prefill.advance(CHUNK, ())
        held = sum(int(cache.nbytes) for cache in prefill.prompt_cache)
        assert held <= kv_bytes(layers, prefill.done_tokens)


def test_a_draft_model_s_window_has_no_room_for_what_it_has_read(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "gemma3")
    layers = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT).kv_layers
    more = sum(
        part.layers * part.token_bytes * _DRAFT_WINDOW_TOKENS
        for part in layers
        if part.window_tokens is not None
    )
    assert more
    row = DraftModel(open_checkpoint(folder).forward, None, VOCABULARY).open_sequence(Assist())
    for token in range(3):
        row.read([token] * TOKENS)
        row.draft([token], 2, lambda logits, _: mx.argmax(logits, axis=-1), None)
        row.keep(0)
        held = sum(int(cache.nbytes) for cache in row._cache)
        assert held <= kv_bytes(layers, row.read_tokens) + more


@pytest.mark.parametrize(("kind", "bits"), combinations(sorted(QUANTIZABLE_CONFIGS), [8, 4]))
def test_counted_is_what_quantized_caches_hold(tmp_path: Path, kind: str, bits: int) -> None:
    folder = make_tiny_model(tmp_path, kind)
    found = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT)
    counted = kv_bytes(found.kv_layers_with(bits), TOKENS)
    assert counted == pytest.approx(_held(folder, bits), rel=0.02)
    assert counted < kv_bytes(found.kv_layers, TOKENS)


def _held(folder: Path, bits: int | None = None) -> int:
    """The bytes of all caches after so many tokens; the last ones come alone, as answers do,
    because a window holds a whole chunk more after a prefill."""
    model = open_checkpoint(folder).model
    forward = Forward(model)
    if bits is not None:
        quantize_kv(forward, bits)
    caches = forward.new_cache()
    tokens = [number % 200 for number in range(TOKENS)]
    ends = [*range(CHUNK, TOKENS, CHUNK), TOKENS - 1, TOKENS]
    begin = 0
    for end in ends:
        output = model.language_model(mx.array([tokens[begin:end]]), cache=caches)
        mx.eval(getattr(output, "logits", output))
        begin = end
    return sum(int(cache.nbytes) for cache in caches)
