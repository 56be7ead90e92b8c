"""What seeing takes, by the config.json of published models. The tokens are those that their
processors make of a picture of 1024 x 768 pixels."""

from typing import Any

import pytest

from lmx.protocol.models.checkpoint import parse_checkpoint_config
from lmx.protocol.models.memory import MediaMemory
from lmx.worker.mlx.memory.media import media_memory

QWEN_EYES = {"hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
             "spatial_merge_size": 2, "depth": 32}  # fmt: skip
QWEN3_EYES = QWEN_EYES | {"hidden_size": 1152, "patch_size": 16}
SIGLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
          "image_size": 512, "patch_size": 16}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "qwen2_5_vl": ({"vision_config": QWEN_EYES}, 37 * 27),
    "qwen3_vl": ({"vision_config": QWEN3_EYES}, 32 * 24),
    "qwen3_omni_moe": ({"thinker_config": {"vision_config": QWEN3_EYES}}, 32 * 24),
    "gemma3": ({"mm_tokens_per_image": 256, "vision_config": SIGLIP | {"image_size": 896}}, 256),
    "gemma3n": ({"vision_soft_tokens_per_image": 256, "vision_config": {"hidden_size": 2048}}, 256),
    "gemma4": ({"vision_soft_tokens_per_image": 280, "vision_config": SIGLIP
                | {"pooling_kernel_size": 3}}, 266),
    "smolvlm": ({"scale_factor": 4, "vision_config": SIGLIP}, 13 * 64),
    "idefics3": ({"scale_factor": 2, "vision_config": SIGLIP | {
        "image_size": 364, "patch_size": 14}}, 13 * 169),
    "pixtral": ({"vision_config": SIGLIP | {"image_size": 1024}}, 64 * 48 + 48),
    "mistral3": ({"spatial_merge_size": 2, "vision_config": SIGLIP | {
        "image_size": 1540, "patch_size": 14}}, 37 * 28),
    "internvl": ({"downsample_ratio": 0.5, "max_dynamic_patch": 12, "vision_config": SIGLIP | {
        "image_size": 448, "patch_size": 14}}, 13 * 256),
    "lfm2_vl": ({"downsample_factor": 2, "tile_size": 512, "max_tiles": 10,
                 "encoder_patch_size": 16, "vision_config": SIGLIP}, 7 * 256),
    "llava": ({"vision_config": SIGLIP | {"image_size": 336, "patch_size": 14}}, 576),
}  # fmt: skip


def taken(model_type: str, config: dict[str, Any], *, fused: bool = True) -> MediaMemory:
    parsed = parse_checkpoint_config({"hidden_size": 64, **config, "model_type": model_type})
    found = media_memory(parsed, 1000, 2, fused_attention=fused)
    assert found is not None
    return found


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_tokens_of_a_picture(model_type: str) -> None:
    config, tokens = PUBLISHED[model_type]
    found = taken(model_type, config)
    assert found.image_tokens == pytest.approx(tokens, rel=0.1)
    assert found.image_bytes > 0
    assert found.weights_bytes == 1000
    assert taken(model_type, config, fused=False).image_bytes >= found.image_bytes


def test_text_alone_and_ears_alone() -> None:
    parsed = parse_checkpoint_config({"vision_config": SIGLIP})
    assert media_memory(parsed, 0, 2, fused_attention=True) is None
    assert taken("hears", {"audio_config": {"hidden_size": 9}}) == MediaMemory(1000, 0, 0)


@pytest.mark.parametrize(
    "eyes",
    [{"patch_size": 10**9}, {"image_size": -1}, {"patch_size": "x", "hidden_size": None},
     {"spatial_merge_size": 10**9}, {"image_size": [448, 448]}],
)  # fmt: skip
@pytest.mark.parametrize("model_type", ["internvl", "lfm2_vl", "idefics3", "pixtral", "llava"])
def test_nonsense_raises_nothing(eyes: dict[str, Any], model_type: str) -> None:
    nonsense = {"downsample_ratio": 1e-300, "max_tiles": 10**9, "max_dynamic_patch": 10**9}
    found = taken(model_type, nonsense | {"vision_config": {"x": 1, **eyes}})
    assert found.image_tokens >= 0
    assert found.image_bytes >= 0
