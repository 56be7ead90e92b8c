"""What is read from config.json and headers, and what follows from it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import PLAIN, PLAIN_TOKEN_BYTES, write_model, write_shard

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.models.memory import KvLayers, kv_bytes
from lmx.protocol.states import ModelKind
from lmx.supervisor.memory.estimate import activation_bytes, process_bytes, widths
from lmx.supervisor.memory.files import read_model_files, tensor_bytes
from lmx.supervisor.memory.kv import kv_layers, native_context

LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14_336,
    "vocab_size": 128_256,
}  # fmt: skip
MLA = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
GEMMA = {
    "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 256, "sliding_window": 512,
}  # fmt: skip
GEMMA_TOKEN = 2 * 256 * 2

SHAPES: list[tuple[str, dict[str, Any], tuple[KvLayers, ...]]] = [
    ("grouped heads", LLAMA_8B, (KvLayers(32, 4096),)),
    ("nested", {"model_type": "llava", "text_config": LLAMA_8B}, (KvLayers(32, 4096),)),
    (
        "nested twice",
        {"thinker_config": {"text_config": LLAMA_8B}},
        (KvLayers(32, 4096),),
    ),
    ("latent", {**MLA, "model_type": "deepseek_v3"}, (KvLayers(61, 576 * 2),)),
    (
        "latent, kept whole",
        {**MLA, "model_type": "deepseek_v2"},
        (KvLayers(61, 128 * (128 + 64 + 128) * 2),),
    ),
    (
        "windows by a default",
        {**GEMMA, "model_type": "gemma3_text"},
        (KvLayers(22, GEMMA_TOKEN, 512), KvLayers(4, GEMMA_TOKEN)),
    ),
    (
        "windows by a number",
        {**GEMMA, "model_type": "gemma3_text", "sliding_window_pattern": 2},
        (KvLayers(13, GEMMA_TOKEN, 512), KvLayers(13, GEMMA_TOKEN)),
    ),
    (
        "windows by name",
        {
            **GEMMA,
            "model_type": "gpt_oss",
            "layer_types": ["sliding_attention", "full_attention"] * 13,
        },
        (KvLayers(13, GEMMA_TOKEN, 512), KvLayers(13, GEMMA_TOKEN)),
    ),
    (
        "windows that mlx-vlm doesn't keep to",
        {
            **GEMMA,
            "model_type": "gemma2",
            "layer_types": ["sliding_attention", "full_attention"] * 13,
        },
        (KvLayers(26, GEMMA_TOKEN),),
    ),
    (
        "a window that only some weights have",
        {**GEMMA, "model_type": "qwen2", "use_sliding_window": False},
        (KvLayers(26, GEMMA_TOKEN),),
    ),
    (
        "layers that share",
        {**GEMMA, "model_type": "gemma3n_text", "num_kv_shared_layers": 10,
         "layer_types": ["full_attention"] * 26},
        (KvLayers(16, GEMMA_TOKEN),),
    ),
    (
        "letters for layers",
        {**GEMMA, "model_type": "nemotron_h", "hybrid_override_pattern": "M-*-", "n_groups": 2,
         "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "conv_kernel": 4},
        (KvLayers(1, 0, None, 3 * (32 + 64) * 2 + 32 * 16 * 4), KvLayers(1, GEMMA_TOKEN)),
    ),
    ("nothing", {}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("config", "shape"), [case[1:] for case in SHAPES],
                         ids=[case[0] for case in SHAPES])  # fmt: skip
def test_layers(config: dict[str, Any], shape: tuple[KvLayers, ...]) -> None:
    assert kv_layers(config, 2) == shape


def test_a_window_is_full_and_a_state_is_constant() -> None:
    layers = (KvLayers(2, 10, 512), KvLayers(1, 10), KvLayers(3, 0, None, 7))
    assert kv_bytes(layers, 300) == 3 * 5120 + 21, "whole steps of 256 tokens"
    assert kv_bytes(layers, 2048) == 2 * 5120 + 20_480 + 21


NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(sorted({*LLAMA_8B, *MLA, "text_config"})), inner)
    ),
    max_leaves=8,
)
KEYS = sorted(
    {
        *LLAMA_8B, *MLA, *GEMMA, "text_config", "layer_types", "num_kv_shared_layers",
        "linear_attn_config", "hybrid_override_pattern", "full_attention_interval",
        "linear_num_value_heads", "conv_L_cache", "n_groups", "sliding_window_pattern",
    }
)  # fmt: skip


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), NONSENSE, max_size=8))
def test_nonsense_is_an_error_or_a_size(config: dict[str, Any]) -> None:
    try:
        layers = kv_layers(config, 2)
    except ValueError:
        return
    assert kv_bytes(layers, 1024) >= 0
    assert all(part.layers > 0 for part in layers)
    assert (native_context(config) or 1) > 0
    for kind in ModelKind:
        assert process_bytes(widths(config), kind) > 0
        assert activation_bytes(widths(config), kind, 2, 1024, 2, layers) >= 0


def test_weights_and_their_type_come_from_headers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    write_shard(tmp_path / "a.safetensors", w=("U32", 10**12), s=("BF16", 300), n=("F32", 40))
    write_shard(tmp_path / "b.safetensors", s=("BF16", 500))
    found = read_model_files(tmp_path, ModelKind.CHAT)
    assert found.weights_bytes == 10**12 + 840
    assert found.element_bytes == 2, "of the scales, not of a few norms"
    write_shard(tmp_path / "c.safetensors", s=("F32", 900))
    assert read_model_files(tmp_path, ModelKind.CHAT).element_bytes == 4


def test_encoders_have_weights_in_folders_below(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    write_model(folder / "2_Dense")
    assert read_model_files(folder, ModelKind.CHAT).weights_bytes == 4000
    assert read_model_files(folder, ModelKind.EMBEDDING).weights_bytes == 8000


def test_activations_grow_with_what_makes_them() -> None:
    def at_work(tokens: int = 1024, rows: int = 1, platform: str = "linux") -> int:
        layers = kv_layers(LLAMA_8B, 2)
        of = widths(LLAMA_8B)
        return activation_bytes(of, ModelKind.CHAT, 2, tokens, rows, layers, platform)

    assert at_work(2048) > at_work(1024)
    assert at_work(rows=2) - at_work() >= 128_256 * 4, "another row's logits"
    assert at_work(4096, platform="darwin") == at_work(2048, platform="darwin"), "no scores there"


def test_what_is_not_a_model_is_said_so(tmp_path: Path) -> None:
    def read() -> None:
        read_model_files(tmp_path, ModelKind.CHAT)

    with pytest.raises(LmxError, match="does not exist"):
        read_model_files(tmp_path / "none", ModelKind.CHAT)
    (tmp_path / "file").touch()
    with pytest.raises(LmxError, match="is not a folder"):
        read_model_files(tmp_path / "file", ModelKind.CHAT)
    with pytest.raises(LmxError, match=r"no config\.json"):
        read()
    for wrong in ("[]", '"x"', "null"):
        (tmp_path / "config.json").write_text(wrong)
        with pytest.raises(LmxError, match="is no object"):
            read()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "dangling.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LmxError, match=r"dangling\.safetensors can't be read"):
        read()
    (tmp_path / "dangling.safetensors").unlink()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LmxError, match="not JSON"):
        read()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 44) + b'{"a": {"dtype":"F32","data_offsets":[9, -1]}}',
    ],
)
def test_a_broken_shard_is_said_so(tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "model.safetensors"
    broken.write_bytes(content)
    with pytest.raises(LmxError, match="not a safetensors file") as caught:
        tensor_bytes(broken)
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID


def test_plain_folders_are_what_other_tests_count_with(tmp_path: Path) -> None:
    files = read_model_files(write_model(tmp_path), ModelKind.CHAT)
    assert kv_bytes(files.kv_layers, 256) == 256 * PLAIN_TOKEN_BYTES
