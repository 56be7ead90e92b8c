"""What a worker with an MLX engine takes, as config.json and the headers of its weights tell."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.models.checkpoint import parse_checkpoint_config, read_checkpoint_config
from lmx.protocol.models.engine import estimate_function
from lmx.protocol.models.memory import KvLayers, activation_bytes, kv_bytes
from lmx.protocol.models.safetensors import file_tensors
from lmx.protocol.states import ModelKind
from lmx.worker.mlx.memory.estimate import (
    Weights,
    activations,
    estimate,
    process_bytes,
    read_weights,
)
from lmx.worker.mlx.memory.kv import STEP_TOKENS, kv_layers
from tests.support.models.model_folders import PLAIN, PLAIN_TOKEN_BYTES, write_model, write_shard
from tests.support.rigs.budgets import examples

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


def layers(
    number: int, token_bytes: int, window_tokens: int | None = None, fixed_bytes: int = 0
) -> KvLayers:
    return KvLayers(number, token_bytes, window_tokens, fixed_bytes, STEP_TOKENS)


SHAPES: list[tuple[str, dict[str, Any], tuple[KvLayers, ...]]] = [
    ("grouped heads", LLAMA_8B, (layers(32, 4096),)),
    ("nested", {"model_type": "llava", "text_config": LLAMA_8B}, (layers(32, 4096),)),
    (
        "nested twice",
        {"thinker_config": {"text_config": LLAMA_8B}},
        (layers(32, 4096),),
    ),
    ("latent", {**MLA, "model_type": "deepseek_v3"}, (layers(61, 576 * 2),)),
    (
        "latent, kept whole",
        {**MLA, "model_type": "deepseek_v2"},
        (layers(61, 128 * (128 + 64 + 128) * 2),),
    ),
    (
        "windows by a default",
        {**GEMMA, "model_type": "gemma3_text"},
        (layers(22, GEMMA_TOKEN, 512), layers(4, GEMMA_TOKEN)),
    ),
    (
        "windows by a number",
        {**GEMMA, "model_type": "gemma3_text", "sliding_window_pattern": 2},
        (layers(13, GEMMA_TOKEN, 512), layers(13, GEMMA_TOKEN)),
    ),
    (
        "windows by name",
        {
            **GEMMA,
            "model_type": "gpt_oss",
            "layer_types": ["sliding_attention", "full_attention"] * 13,
        },
        (layers(13, GEMMA_TOKEN, 512), layers(13, GEMMA_TOKEN)),
    ),
    (
        "windows that lmx gives a class",
        {
            **GEMMA,
            "model_type": "gemma2",
            "layer_types": ["sliding_attention", "full_attention"] * 13,
        },
        (layers(13, GEMMA_TOKEN, 512), layers(13, GEMMA_TOKEN)),
    ),
    (
        "a window that only some weights have",
        {**GEMMA, "model_type": "qwen2", "use_sliding_window": False},
        (layers(26, GEMMA_TOKEN),),
    ),
    (
        "layers that share",
        {**GEMMA, "model_type": "gemma3n_text", "num_kv_shared_layers": 10,
         "layer_types": ["full_attention"] * 26},
        (layers(16, GEMMA_TOKEN),),
    ),
    (
        "letters for layers",
        {**GEMMA, "model_type": "nemotron_h", "hybrid_override_pattern": "M-*-", "n_groups": 2,
         "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "conv_kernel": 4},
        (layers(1, 0, None, 3 * (32 + 64) * 2 + 32 * 16 * 4), layers(1, GEMMA_TOKEN)),
    ),
    (
        "windows with heads of their own",
        {**GEMMA, "model_type": "mimo_v2", "hybrid_layer_pattern": [1, 0] * 13,
         "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128},
        (layers(13, 8 * (192 + 128) * 2, 512), layers(13, GEMMA_TOKEN)),
    ),
    (
        "windows of a class that keeps to none have those heads, too",
        {**GEMMA, "model_type": "inkling", "hidden_size": 64, "local_layer_ids": [0],
         "swa_num_key_value_heads": 2},
        (layers(1, 2 * GEMMA_TOKEN, None, 3 * 2 * (64 + 512) * 4),
         layers(25, GEMMA_TOKEN, None, 3 * 2 * (64 + 256) * 4)),
    ),
    (
        "pooled",
        {"model_type": "deepseek_v4", "num_hidden_layers": 4, "head_dim": 512,
         "index_head_dim": 128, "sliding_window": 128, "compress_ratios": [0, 4, 128, 4]},
        (layers(4, 1024, 128), layers(2, 320, None, 2 * 4 * 2 * 640 * 2),
         layers(1, 8, None, 2 * 128 * 512 * 2)),
    ),
    (
        "latents, and what they are projected to",
        {**MLA, "model_type": "glm5_next", "num_hidden_layers": 4, "index_head_dim": 128,
         "qk_rope_head_dim": 0, "index_kpool": 16, "layer_types": ["full_attention"] * 4},
        (layers(4, 512 * 2 + 16 + 1), layers(4, 128 * 256 * 2, 32_768)),
    ),
    (
        "an indexer in some layers",
        {**GEMMA, "model_type": "minimax_m3",
         "sparse_attention_config": {"sparse_attention_freq": [0] * 3 + [1] * 23,
                                     "sparse_index_dim": 128}},
        (layers(3, GEMMA_TOKEN), layers(23, GEMMA_TOKEN + 256)),
    ),
    (
        "an indexer with positions",
        {**GEMMA, "model_type": "qwen4_exp", "indexer_head_dim": 128},
        (layers(26, GEMMA_TOKEN + 256 * 5 // 4 + 12),),
    ),
    ("repeated", {**LLAMA_8B, "model_type": "falcon_ocr"}, (layers(32, 4 * 4096),)),
    (
        "sums alone",
        {"model_type": "z1t", "num_hidden_layers": 4, "hidden_size": 64, "aft_heads": 8},
        (layers(4, 0, None, 4 * (64 + 8) * 2),),
    ),
    ("nothing", {}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("config", "shape"), [case[1:] for case in SHAPES],
                         ids=[case[0] for case in SHAPES])  # fmt: skip
def test_layers(config: dict[str, Any], shape: tuple[KvLayers, ...]) -> None:
    assert kv_layers(parse_checkpoint_config(config), 2) == shape


def quantized(
    number: int, token_bytes: int, read_bytes: int, window: int | None = None
) -> KvLayers:
    return KvLayers(number, token_bytes, window, 0, STEP_TOKENS, read_bytes)


QUANTIZED: list[tuple[str, dict[str, Any], int, tuple[KvLayers, ...]]] = [
    # 2048 numbers, and of each 64 a scale and a bias of 16 bits.
    ("8 bits", LLAMA_8B, 8, (quantized(32, 2048 + 32 * 4, 4096),)),
    ("4 bits", LLAMA_8B, 4, (quantized(32, 1024 + 32 * 4, 4096),)),
    (
        "heads of 96",
        {**LLAMA_8B, "head_dim": 96, "num_attention_heads": 32},
        8,
        (quantized(32, 8 * 2 * 96 + 8 * 2 * 3 * 4, 8 * 2 * 96 * 2),),
    ),
    ("heads of 80", {**LLAMA_8B, "head_dim": 80}, 8, (layers(32, 8 * 2 * 80 * 2),)),
    (
        "windows stay as they are",
        {**GEMMA, "model_type": "gemma3_text"},
        8,
        (layers(22, GEMMA_TOKEN, 512), quantized(4, 512 + 8 * 4, GEMMA_TOKEN)),
    ),
    (
        "latent",
        {**MLA, "model_type": "deepseek_v3"},
        8,
        (quantized(61, 576 + 9 * 4, 576 * 2),),
    ),
    (
        "caches of a kind of their own stay as they are",
        {
            **GEMMA,
            "model_type": "minimax_m3",
            "sparse_attention_config": {
                "sparse_attention_freq": [0] + [1] * 25,
                "sparse_index_dim": 128,
            },
        },
        8,
        (quantized(1, 512 + 8 * 4, GEMMA_TOKEN), layers(25, GEMMA_TOKEN + 256)),
    ),
]


@pytest.mark.parametrize(("config", "bits", "shape"), [case[1:] for case in QUANTIZED],
                         ids=[case[0] for case in QUANTIZED])  # fmt: skip
def test_quantized_layers(config: dict[str, Any], bits: int, shape: tuple[KvLayers, ...]) -> None:
    assert kv_layers(parse_checkpoint_config(config), 2, bits) == shape


NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["deepseek_v4", "glm5_next", "inkling", "minimax_m3", "z1t"]),
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
        "model_type", "compress_ratios", "sparse_attention_config", "indexer_head_dim",
        "swa_num_key_value_heads", "index_head_dim", "local_layer_ids",
    }
)  # fmt: skip


@settings(max_examples=examples(300))
@given(st.dictionaries(st.sampled_from(KEYS), NONSENSE, max_size=8), st.sampled_from([None, 4, 8]))
def test_nonsense_is_an_error_or_a_size(config: dict[str, Any], bits: int | None) -> None:
    try:
        parsed = parse_checkpoint_config(config)
        plain, found = kv_layers(parsed, 2), kv_layers(parsed, 2, bits)
    except ValueError:
        return
    assert 0 <= kv_bytes(found, 1024) <= kv_bytes(plain, 1024)
    assert all(part.layers > 0 for part in found)
    for kind in ModelKind:
        assert process_bytes(parsed, kind) > 0
        assert activation_bytes(activations(parsed, kind, 2), 1024, 2, found) >= 0


def weights_in(folder: Path, kind: ModelKind = ModelKind.CHAT) -> Weights:
    return read_weights(folder, kind, read_checkpoint_config(folder))


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
PACKED, EXPANDED, AS_IS = 33, 64, 32


@pytest.mark.parametrize(
    ("config", "scale", "grows"),
    [
        ({"quantization_config": BLOCKS}, ("_scale_inv", "BF16"), PACKED),
        ({"quantization_config": BLOCKS | {"fmt": "e4m3", "store_dtype": "fp8"}},
         ("_scale_inv", "F32"), PACKED),
        ({"text_config": {"quantization_config": BLOCKS}}, ("_scale_inv", "F32"), PACKED),
        ({"quantization_config": BLOCKS | {"fmt": "e5m2"}}, ("_scale_inv", "F32"), EXPANDED),
        ({"model_type": "deepseek_v3", "quantization_config": BLOCKS},
         ("_scale_inv", "F32"), EXPANDED),
        ({"model_type": "mistral3", "text_config": {"model_type": "mistral4"},
          "quantization_config": BLOCKS}, ("_scale_inv", "F32"), EXPANDED),
        ({"model_type": "ministral3", "quantization_config": {"quant_method": "fp8"}},
         ("_scale_inv", "BF16"), EXPANDED),
        ({"quantization_config": {"quant_method": "compressed-tensors"}},
         ("_scale", "BF16"), EXPANDED),
        ({"quantization_config": {"quant_method": "modelopt"}}, ("_scale", "F32"), EXPANDED),
        ({"quantization_config": {"quant_method": "mxfp8"}}, ("_scale_inv", "U8"), AS_IS),
        ({"quantization_config": BLOCKS}, (".scale", "F32"), AS_IS),
        ({"quantization_config": 7}, ("s", "F8_E8M0"), AS_IS),
    ],
)  # fmt: skip
def test_8_bit_floats_are_as_large_as_they_are_loaded(
    tmp_path: Path, config: dict[str, Any], scale: tuple[str, str], grows: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN | config))
    name, (end, dtype) = "model.layers.0.mlp.up_proj.weight", scale
    write_shard(tmp_path / "a.safetensors", **{name: ("F8_E4M3", 32_000), name + end: (dtype, 8)})
    found = weights_in(tmp_path)
    assert found.total_bytes == found.layers_bytes == 1000 * grows + 8
    assert found.media_bytes == 0


def test_8_bit_floats_stay_packed_where_the_model_sees(tmp_path: Path) -> None:
    config = {"model_type": "deepseek_v3", "quantization_config": BLOCKS}
    (tmp_path / "config.json").write_text(json.dumps(PLAIN | config))
    name = "vision_tower.layers.0.weight"
    tensors = {name: ("F8_E4M3", 32_000), f"{name}_scale_inv": ("F32", 8)}
    write_shard(tmp_path / "a.safetensors", **tensors)
    found = weights_in(tmp_path)
    assert found.total_bytes == found.media_bytes == 33_008


def test_weights_and_their_type_come_from_headers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    write_shard(tmp_path / "a.safetensors", w=("U32", 10**12), s=("BF16", 300), n=("F32", 40))
    write_shard(tmp_path / "b.safetensors", s=("BF16", 500))
    found = weights_in(tmp_path)
    assert found.total_bytes == 10**12 + 840
    assert found.element_bytes == 2, "of the scales, not of a few norms"
    assert found.media_bytes == 0
    write_shard(tmp_path / "c.safetensors", s=("F32", 900))
    assert weights_in(tmp_path).element_bytes == 4


def test_the_weights_of_encoders_are_shown_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    names = {"model.norm.weight": 100, "vision_tower.norm.weight": 30, "audio_tower.w": 7}
    write_shard(tmp_path / "a.safetensors", **{n: ("F32", size) for n, size in names.items()})
    found = weights_in(tmp_path)
    assert (found.total_bytes, found.media_bytes) == (137, 37)


def test_encoders_have_weights_in_folders_below(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    write_model(folder / "2_Dense")
    assert weights_in(folder).total_bytes == 4000
    assert weights_in(folder, ModelKind.EMBEDDING).total_bytes == 8000


def test_activations_grow_with_what_makes_them() -> None:
    config = parse_checkpoint_config(LLAMA_8B)

    def at_work(tokens: int = 1024, rows: int = 1, platform: str = "linux") -> int:
        work = activations(config, ModelKind.CHAT, 2, platform)
        return activation_bytes(work, tokens, rows, kv_layers(config, 2))

    assert at_work(2048) > at_work(1024)
    assert at_work(rows=2) - at_work() >= 128_256 * 4, "another row's logits"
    assert at_work(4096, platform="darwin") == at_work(2048, platform="darwin"), "no scores there"


@pytest.mark.parametrize(("platform", "numbers"), [("linux", 32 + 2), ("darwin", 2)])
def test_an_encoder_has_each_token_with_each_at_once(platform: str, numbers: int) -> None:
    """On a Mac too: there attention is one kernel, and the mask is whole."""
    work = activations(parse_checkpoint_config(LLAMA_8B), ModelKind.EMBEDDING, 2, platform)
    tokens = 16_384
    pairs_bytes = activation_bytes(work, tokens, 1, ()) - tokens * work.token_bytes
    assert pairs_bytes == pytest.approx(numbers * 2 * tokens**2, rel=1e-3)


@pytest.mark.parametrize(
    ("hidden", "kept_mib"),
    [(4096, 512), (8192, 928), (65_536, 4096)],
    ids=["the least", "twice a chunk", "the most"],
)
def test_on_a_mac_the_buffers_of_a_chunk_are_kept_for_the_next_layer(
    tmp_path: Path, hidden: int, kept_mib: int
) -> None:
    """On a CPU they follow the weights, and those are small here."""
    config = {**LLAMA_8B, "hidden_size": hidden, "intermediate_size": 14_336 * hidden // 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_shard(tmp_path / "model.safetensors", w=("BF16", 1 << 20))
    parsed = read_checkpoint_config(tmp_path)
    linux, darwin = (
        estimate(tmp_path, parsed, ModelKind.CHAT, platform) for platform in ("linux", "darwin")
    )
    assert darwin.buffers_bytes == kept_mib << 20
    assert linux.buffers_bytes == 64 << 20
    chunk_bytes = darwin.activations.chunk_tokens * darwin.activations.token_bytes
    assert darwin.activations.chunk_tokens == 2048
    assert hidden != 8192 or darwin.buffers_bytes == 2 * chunk_bytes


GRID = Path(__file__).with_name("figures.json")
"""What models of many kinds were estimated at when the estimates were compared with measured
figures. A change here is a change of what models are given, and wants ``make bench-memory``."""


def test_the_figures_are_those_that_were_measured(tmp_path: Path) -> None:
    reported = {}
    for name, case in json.loads(GRID.read_text()).items():
        found = figures(case["config"], tmp_path)
        if found != case["figures"]:
            reported[name] = found
    assert reported == {}


def test_a_whisper_takes_a_window_and_on_a_cpu_twice_its_weights(tmp_path: Path) -> None:
    config = {
        "model_type": "whisper", "d_model": 384, "decoder_layers": 4,
        "encoder_attention_heads": 6, "vocab_size": 51864,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_shard(tmp_path / "model.safetensors", w=("F16", 75 << 20))
    parsed = read_checkpoint_config(tmp_path)
    linux, darwin = (
        estimate(tmp_path, parsed, ModelKind.TRANSCRIPTION, platform)
        for platform in ("linux", "darwin")
    )
    assert (linux.weights_bytes, darwin.weights_bytes) == (150 << 20, 75 << 20)
    # Measured with tiny.en: 106 MiB, and sounds beside it.
    work_bytes = activation_bytes(linux.activations, 448, 0, ())
    assert 106 << 20 < work_bytes < 200 << 20


def test_a_voice_takes_its_longest_utterance(tmp_path: Path) -> None:
    vocoder = {
        "upsample_rates": [10, 6], "upsample_initial_channel": 512, "gen_istft_hop_size": 5,
    }  # fmt: skip
    config = {"istftnet": vocoder, "plbert": {}, "vocab": {"a": 1}, "n_layer": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_shard(tmp_path / "kokoro-v1_0.safetensors", w=("BF16", 160 << 20))
    parsed = read_checkpoint_config(tmp_path)
    found = estimate(tmp_path, parsed, ModelKind.SPEECH, "linux")
    assert found.weights_bytes == 320 << 20
    # Measured with Kokoro-82M: 950 MiB for 12.7 s of sound.
    work_bytes = activation_bytes(found.activations, 512, 0, ())
    assert 950 << 20 < work_bytes < 1300 << 20
    assert activation_bytes(found.activations, 4096, 0, ()) == work_bytes
    (tmp_path / "config.json").write_text(json.dumps({**config, "istftnet": "?"}))
    parsed = read_checkpoint_config(tmp_path)
    estimate(tmp_path, parsed, ModelKind.SPEECH, "linux")


def figures(config: dict[str, Any], folder: Path) -> dict[str, list[int]]:
    """Return bytes for a context and rows of each kind of model on each platform."""
    (folder / "config.json").write_text(json.dumps(config))
    write_shard(folder / "model.safetensors", w=("U32", 3 << 30), s=("BF16", 1 << 30))
    parsed = read_checkpoint_config(folder)
    found: dict[str, list[int]] = {}
    for platform in ("linux", "darwin"):
        for kind in (ModelKind.CHAT, ModelKind.EMBEDDING, ModelKind.RERANK):
            memory = estimate(folder, parsed, kind, platform)
            work = activation_bytes(memory.activations, 3000, 2, memory.kv_layers)
            kept = kv_bytes(memory.kv_layers, 3000)
            static = memory.weights_bytes + memory.process_bytes + memory.buffers_bytes
            found |= {f"{platform} {kind}": [static, kept, work]}
    return found


def test_it_is_found_by_the_engines_name() -> None:
    assert estimate_function("lmx.worker.mlx.factory:create") is estimate


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
        file_tensors(broken)
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID


def test_plain_folders_are_what_other_tests_count_with(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    found = estimate(folder, read_checkpoint_config(folder), ModelKind.CHAT)
    assert kv_bytes(found.kv_layers, 256) == 256 * PLAIN_TOKEN_BYTES
