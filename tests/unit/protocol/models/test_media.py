"""What a model takes is read from the weights that are there, and not from its type."""

from typing import Any

import pytest

from lmx.protocol.models.checkpoint import parse_checkpoint_config
from lmx.protocol.models.media import media_kinds, of_media

TEXT = "language_model.model.layers.0.self_attn.q_proj.weight"
EYES = "vision_tower.encoder.layers.0.mlp.fc1.weight"
EARS = "audio_tower.conv1.weight"
BETWEEN = "multi_modal_projector.linear_1.weight"
OMNI = {"thinker_config": {"video_token_id": 6, "text_config": {"hidden_size": 8}}}


@pytest.mark.parametrize(
    ("config", "tensors", "kinds"),
    [
        ({"model_type": "gemma3", "vision_config": {}}, [TEXT], ""),
        ({"video_token_id": 5}, [TEXT], ""),
        ({}, [TEXT, BETWEEN], ""),
        ({"vision_config": {}}, [TEXT, EYES, BETWEEN], "image"),
        ({"video_token_id": 5}, [TEXT, EYES], "image video"),
        ({"video_token_index": 5}, [TEXT, "visual.blocks.0.attn.qkv.weight"], "image video"),
        ({"video_token_id": None}, [EYES], "image"),
        ({"video_token_id": 5}, [TEXT, EARS], "audio"),
        (OMNI, [f"thinker.{EYES}", f"thinker.{EARS}", "talker.x"], "audio image video"),
        ({"thinker_config": [7]}, [EYES], "image"),
        ({}, ["model.vpm.encoder.0.w", "apm.conv1.weight"], "audio image"),
        ({}, [], ""),
    ],
)
def test_kinds(config: dict[str, Any], tensors: list[str], kinds: str) -> None:
    found = media_kinds(parse_checkpoint_config(config), tensors)
    assert sorted(kind.value for kind in found) == kinds.split()


def test_weights_of_media() -> None:
    assert not of_media(TEXT)
    assert all(map(of_media, (EYES, EARS, BETWEEN)))
