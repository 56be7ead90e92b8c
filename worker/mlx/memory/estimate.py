"""Estimates what a worker with an MLX engine takes in memory.

The constants are measured (``docs/memory.md``, written by ``make bench-memory``).
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.models.checkpoint import CheckpointConfig, count
from lmx.protocol.models.media import of_media
from lmx.protocol.models.memory import Activations, MemoryModel
from lmx.protocol.models.safetensors import read_tensors
from lmx.protocol.states import ModelKind
from lmx.worker.mlx.memory.drafters import hidden_state_layers
from lmx.worker.mlx.memory.kv import kv_layers
from lmx.worker.mlx.memory.media import HIDDEN_COPIES, INNER_COPIES, SCORE_COPIES, media_memory
from lmx.worker.mlx.memory.speech import speech_activations, speech_weights_bytes
from lmx.worker.mlx.memory.voices import voice_activations

_MIB: Final = 1024**2

_OF_LAYER: Final = re.compile(r"(^|\.)layers\.\d+\.")

_FLOAT_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_DEFAULT_FLOAT_BYTES: Final = 2
"""Of a model that has none of these: 8-bit floats are computed with in 16 bits."""

_SCALES: Final = ("_scale_inv", "_scale")
"""What follows the name of 8-bit floats in that of their scales. Where these are floats of more
bits, the libraries convert the weights when they load them."""

_EXPANDING: Final = frozenset(
    {
        *("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "joyai_llm_flash", "kimi_k2"),
        *("mimo_v2_flash", "minimax", "minimax_m2", "mistral4"),
    }
)
"""Types whose classes in mlx-lm, which are of text alone, make 16-bit floats of all 8-bit ones."""

_PROCESS_BYTES: Final = {
    ModelKind.CHAT: 88 * _MIB,
    ModelKind.EMBEDDING: 76 * _MIB,
    ModelKind.RERANK: 76 * _MIB,
    ModelKind.TRANSCRIPTION: 80 * _MIB,
    ModelKind.SPEECH: 170 * _MIB,
}
"""Python, mlx, its libraries of models and transformers in memory once a model is loaded, without
its tokenizer."""

_TOKEN_BYTES: Final = 1650
"""What each token of the vocabulary takes in each of a worker's two tokenizers: byte pair encodings
of 49 and 152 thousand tokens took 77 and 245 MiB."""

_CHUNK_TOKENS: Final = 256
_METAL_CHUNK_TOKENS: Final = 2048
"""How much of a prompt, or of encoders' texts, is computed at a time. On a CPU a chunk takes a
second, which is some hundred tokens of a small model and fewer of a large one."""

_DEPTH_TOKENS: Final = 4096
"""After this many tokens a chunk on a CPU is half as long, because it takes the same time."""

_METAL_PIECE_TOKENS: Final = 8192

_MASK_COPIES: Final = 2
"""How many numbers an encoder's class has for each pair of tokens at once, for the mask of a text
and what it is made from, also where attention is one kernel. The scores are then there once."""

_ALL_TOKENS: Final = 2**31 - 1

_LOGIT_COPIES: Final = 6
"""How many copies of each row's logits a step has in float32, with filters and probabilities."""


_LEAST_BUFFERS_BYTES: Final = 64 * _MIB
"""Without any buffers, each step would allocate all of them again."""

_MOST_BUFFERS_BYTES: Final = 1024 * _MIB
"""Larger models need no more: a layer's buffers are what counts."""

_LEAST_METAL_BUFFERS_BYTES: Final = 512 * _MIB
_MOST_METAL_BUFFERS_BYTES: Final = 4096 * _MIB
"""A limit is needed because mlx's own limit on Metal is the whole memory."""

_BUFFERS_SHARE: Final = 16
"""The buffers' share of the weights is one part in this many: larger models have larger buffers."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What the headers of a model's weights say."""

    total_bytes: int
    """All tensors, as they will be in memory."""

    element_bytes: int
    """One number in activations and caches. mlx computes in the type of the weights, of quantized
    ones in that of their scales: of the types that hold floats it is the one with the most
    bytes."""

    media_bytes: int
    """Those of the vision and audio encoders; 0: it takes text only."""

    layers_bytes: int = 0
    """Those of the layers, which ranks divide among them."""


def estimate(
    folder: Path, config: CheckpointConfig, kind: ModelKind, platform: str = sys.platform
) -> MemoryModel:
    """Return what a worker of the model in a folder takes. Reads the headers of its weights.

    Raises :class:`OperationError` for weights that can't be read, and for a configuration that no
    model has.
    """
    weights = read_weights(folder, kind, config)
    if kind in (ModelKind.TRANSCRIPTION, ModelKind.SPEECH):
        return _speech(config, weights, kind, platform)
    try:
        layers, layers_8bit, layers_4bit = (
            kv_layers(config, weights.element_bytes, bits) if kind is ModelKind.CHAT else ()
            for bits in (None, 8, 4)
        )
    except ValueError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{folder / 'config.json'} makes no sense: {error}"
        ) from error
    work = activations(config, kind, weights.element_bytes, platform)
    return MemoryModel(
        weights_bytes=weights.total_bytes,
        process_bytes=process_bytes(config, kind),
        buffers_bytes=(
            metal_buffers_bytes(work)
            if platform == "darwin"
            else buffers_bytes(weights.total_bytes)
        ),
        kv_layers=layers + hidden_state_layers(config, weights.element_bytes),
        kv_layers_8bit=layers_8bit,
        kv_layers_4bit=layers_4bit,
        activations=work,
        media=media_memory(
            config,
            weights.media_bytes if kind is ModelKind.CHAT else 0,
            weights.element_bytes,
            fused_attention=platform == "darwin",
        ),
        divided_bytes=weights.layers_bytes if kind is ModelKind.CHAT else 0,
    )


def _speech(
    config: CheckpointConfig, weights: Weights, kind: ModelKind, platform: str
) -> MemoryModel:
    transcribes = kind is ModelKind.TRANSCRIPTION
    weights_bytes = weights.total_bytes
    # A voice computes with its own type on a GPU.
    if transcribes or platform != "darwin":
        weights_bytes = speech_weights_bytes(
            config, weights.total_bytes, weights.element_bytes, platform
        )
    work = speech_activations(config, platform) if transcribes else voice_activations(config)
    return MemoryModel(
        weights_bytes=weights_bytes,
        process_bytes=process_bytes(config, kind),
        buffers_bytes=(
            metal_buffers_bytes(work) if platform == "darwin" else buffers_bytes(weights_bytes)
        ),
        kv_layers=(),
        activations=work,
    )


def process_bytes(config: CheckpointConfig, kind: ModelKind) -> int:
    """Return what a worker takes besides weights and caches, once the model is loaded."""
    return _PROCESS_BYTES[kind] + _TOKEN_BYTES * config.vocabulary_tokens


def activations(
    config: CheckpointConfig, kind: ModelKind, element_bytes: int, platform: str = sys.platform
) -> Activations:
    """Return what intermediate results take."""
    metal = platform == "darwin"
    writes = kind is ModelKind.CHAT
    numbers = HIDDEN_COPIES * config.hidden_size + INNER_COPIES * _inner_size(config)
    if writes:
        scores = 0 if metal else SCORE_COPIES * config.attention_heads
        chunk_tokens = _METAL_CHUNK_TOKENS if metal else _CHUNK_TOKENS
    else:
        scores = (0 if metal else config.attention_heads) + _MASK_COPIES
        chunk_tokens = _METAL_PIECE_TOKENS if metal else _CHUNK_TOKENS
    return Activations(
        chunk_tokens=chunk_tokens,
        # An encoder's text that is longer than a piece is computed alone, in one piece.
        whole_texts=not writes,
        token_bytes=numbers * element_bytes,
        pair_bytes=scores * element_bytes,
        depth_tokens=_DEPTH_TOKENS if writes else _ALL_TOKENS,
        row_bytes=_LOGIT_COPIES * config.vocabulary_tokens * 4 if writes else 0,
    )


def metal_buffers_bytes(work: Activations) -> int:
    """Return how much freed memory mlx may keep for reuse on Metal: twice what a chunk takes. With
    less, each layer of a prompt would give its buffers back to the system and make new ones."""
    chunk_bytes = work.chunk_tokens * work.token_bytes
    return max(_LEAST_METAL_BUFFERS_BYTES, min(2 * chunk_bytes, _MOST_METAL_BUFFERS_BYTES))


def buffers_bytes(weights_bytes: int) -> int:
    """Return how much freed memory mlx may keep for reuse on a CPU with weights of that size."""
    return max(_LEAST_BUFFERS_BYTES, min(weights_bytes // _BUFFERS_SHARE, _MOST_BUFFERS_BYTES))


def _inner_size(config: CheckpointConfig) -> int:
    """Return how many numbers a feed-forward layer computes for a token, of all experts
    together."""
    text = config.text
    experts = count(text, "num_experts_per_tok", "moe_topk", "num_experts_per_token")
    routed = experts * count(text, "moe_intermediate_size", "expert_dim")
    dense = count(text, "intermediate_size", "n_inner", "ffn_dim") or 4 * config.hidden_size
    return max(routed, dense)


def read_weights(folder: Path, kind: ModelKind, config: CheckpointConfig) -> Weights:
    """Read the headers of all weights of a model folder. Raises as
    :func:`lmx.protocol.models.safetensors.read_tensors` does."""
    tensors = [*read_tensors(folder, kind)]
    floats = {tensor.name for tensor in tensors if tensor.dtype in _FLOAT_BYTES}
    expands = not _stays_packed(config) or (
        not {config.model_type, config.text_model_type}.isdisjoint(_EXPANDING)
        and not any(of_media(tensor.name) for tensor in tensors)
    )
    sizes: Counter[str] = Counter()
    media_bytes = layers_bytes = 0
    for tensor in tensors:
        name, dtype, size_bytes = tensor
        if dtype == "F8_E4M3" and any(f"{name}{end}" in floats for end in _SCALES):
            if expands:
                dtype, size_bytes = "BF16", 2 * size_bytes
            else:
                size_bytes += size_bytes // 32
        sizes[dtype] += size_bytes
        if of_media(name):
            media_bytes += size_bytes
        if _OF_LAYER.search(name):
            layers_bytes += size_bytes
    return Weights(sizes.total(), _element_bytes(sizes), media_bytes, layers_bytes)


def _stays_packed(config: CheckpointConfig) -> bool:
    """Return whether mlx-vlm keeps a model's 8-bit floats as such, each 32 with a scale of their
    own, instead of making 16-bit floats of them."""
    found = config.whole.get("quantization_config") or config.text.get("quantization_config")
    return (
        isinstance(found, Mapping)
        and found.get("quant_method") == "fp8"
        and found.get("fmt", "e4m3") == "e4m3"
        and found.get("weight_block_size") == [128, 128]
        and found.get("store_dtype", "fp8") == "fp8"
    )


def _element_bytes(sizes: Counter[str]) -> int:
    floats = [dtype for dtype, _ in sizes.most_common() if dtype in _FLOAT_BYTES]
    return _FLOAT_BYTES[floats[0]] if floats else _DEFAULT_FLOAT_BYTES
