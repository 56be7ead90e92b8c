"""Drafters are told from other models by their config.json, and what they keep is counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.models.checkpoint import parse_checkpoint_config, read_checkpoint_config
from lmx.protocol.models.memory import KvLayers
from lmx.protocol.states import ModelKind
from lmx.worker.mlx.memory.drafters import OBSERVED_TOKENS, DrafterKind, drafter_kind
from lmx.worker.mlx.memory.estimate import estimate
from tests.support.models.model_folders import write_model

SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 100,
}  # fmt: skip
TOKEN_BYTES = 2 * 2 * 16 * 2
EAGLE = {
    "speculators_model_type": "eagle3", "target_hidden_size": 96,
    "transformer_layer_config": {"model_type": "llama", "num_hidden_layers": 1, **SIZES},
}  # fmt: skip
DFLASH = {
    "model_type": "qwen3", "num_hidden_layers": 5, **SIZES,
    "dflash_config": {"mask_token_id": 9, "target_layer_ids": [1, 8, 15, 22]},
}  # fmt: skip
HEADS = {
    "model_type": "qwen3_5_mtp",
    "text_config": {
        "model_type": "qwen3_5_text", "num_hidden_layers": 64, "full_attention_interval": 4,
        "mtp_num_hidden_layers": 1, **SIZES,
    },
}  # fmt: skip

CASES: list[tuple[str, dict[str, Any], DrafterKind | None]] = [
    ("speculators", EAGLE, DrafterKind.EAGLE3),
    ("named", EAGLE | {"model_type": "eagle3"}, DrafterKind.EAGLE3),
    ("dflash", DFLASH, DrafterKind.DFLASH),
    ("dflash 2", {"model_type": "x", "architectures": ["DFlash2DraftModel"]}, DrafterKind.DFLASH),
    ("dspark", {"model_type": "dspark"}, DrafterKind.DFLASH),
    ("heads", HEADS, DrafterKind.MTP),
    ("other heads", {"model_type": "nemotron_h_mtp"}, DrafterKind.MTP),
    ("assistant", {"model_type": "gemma4_assistant"}, DrafterKind.MTP),
    ("a model", {"model_type": "qwen3", **SIZES}, None),
    ("a model with heads", {"model_type": "qwen3_5", "text_config": HEADS["text_config"]}, None),
    ("nothing", {}, None),
    ("nonsense", {"dflash_config": 0, "speculators_model_type": [1]}, None),
]


@pytest.mark.parametrize(("name", "config", "kind"), CASES, ids=[name for name, *_ in CASES])
def test_a_folder_says_what_it_is(
    name: str, config: dict[str, Any], kind: DrafterKind | None
) -> None:
    assert drafter_kind(parse_checkpoint_config(config)) is kind


@pytest.mark.parametrize(
    ("config", "own_layers", "heard_bytes"),
    [(EAGLE, 1, 3 * 96 * 2), (DFLASH, 5, 4 * 64 * 2), (HEADS, 1, 64 * 2)],
    ids=["eagle", "dflash", "heads"],
)
def test_its_layers_and_what_waits_for_it_are_counted(
    tmp_path: Path, config: dict[str, Any], own_layers: int, heard_bytes: int
) -> None:
    folder = write_model(tmp_path)
    (folder / "config.json").write_text(json.dumps(config))
    found = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT).kv_layers
    assert found == (
        KvLayers(own_layers, TOKEN_BYTES, None, 0, 256),
        KvLayers(1, heard_bytes, 2 * OBSERVED_TOKENS, 0, 256),
    )
