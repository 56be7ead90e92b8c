"""What a model's worker takes in memory, by what it is for. Pure; the constants are measured
(``docs/memory.md``, written by ``make bench-memory``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lmx.protocol.models.memory import KvLayers, buffer_cache_bytes
from lmx.protocol.states import ModelKind
from lmx.supervisor.memory.kv import count, text_section

_MIB: Final = 1024**2

_PROCESS_BYTES: Final = {
    ModelKind.CHAT: 88 * _MIB,
    ModelKind.EMBEDDING: 76 * _MIB,
    ModelKind.RERANK: 76 * _MIB,
}
"""Python, mlx, mlx-vlm and transformers, resident once a model is loaded, without its tokenizer."""

_TOKEN_BYTES: Final = 1650
"""Of a tokenizer, for each token of the vocabulary, in each of the two that a worker has: byte
pair encodings of 49 and 152 thousand tokens took 77 and 245 MiB."""

_CHUNK_TOKENS: Final = 256
_METAL_CHUNK_TOKENS: Final = 2048
"""Of a prompt or of encoders' texts computed at a time. On a CPU a chunk takes a second, which is
some hundred tokens of a small model and fewer of a large one."""

_DEPTH_TOKENS: Final = 4096
"""Behind so many tokens a chunk on a CPU is half as long, for it takes as much time."""

_METAL_PIECE_TOKENS: Final = 8192

_HIDDEN_COPIES: Final = 4
_INNER_COPIES: Final = 3
_SCORE_COPIES: Final = 2
"""Of a layer's intermediate results so many are there at once: of the hidden size, of the inner
one, and, where attention isn't one kernel as on Metal, scores before and after their softmax."""

_LOGIT_COPIES: Final = 6
"""In float32: of each row in a step, with filters and probabilities."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Of a model's layers: numbers for each token, attention heads, and how many tokens there
    are in the vocabulary; 0 where the configuration says nothing."""

    hidden: int
    inner: int
    heads: int
    vocabulary: int


def widths(config: Mapping[str, Any]) -> Widths:
    """Read them from a configuration."""
    text = text_section(config)
    hidden = count(text, "hidden_size", "n_embd", "d_model")
    heads = count(text, "num_attention_heads", "n_head", "n_heads")
    vocabulary = count(text, "vocab_size") or count(config, "vocab_size")
    return Widths(hidden, _inner(text, hidden), heads, vocabulary)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by what they are for. ``buffers_bytes``: freed ones that mlx keeps for reuse.
    ``context_tokens`` None: the worker finds it out."""

    weights_bytes: int
    draft_bytes: int
    process_bytes: int
    kv_layers: tuple[KvLayers, ...]
    context_tokens: int | None
    kv_cache_bytes: int
    prefix_cache_bytes: int
    activation_bytes: int
    buffers_bytes: int

    @property
    def static_bytes(self) -> int:
        """What is there once the model is loaded."""
        return self.weights_bytes + self.draft_bytes + self.process_bytes

    @property
    def total_bytes(self) -> int:
        """All of it, at work."""
        return (
            self.static_bytes
            + self.kv_cache_bytes
            + self.prefix_cache_bytes
            + self.activation_bytes
            + self.buffers_bytes
        )


def process_bytes(widths: Widths, kind: ModelKind) -> int:
    """Return what a worker takes besides weights and caches."""
    return _PROCESS_BYTES[kind] + _TOKEN_BYTES * widths.vocabulary


def activation_bytes(
    widths: Widths,
    kind: ModelKind,
    element_bytes: int,
    context_tokens: int,
    rows: int,
    layers: tuple[KvLayers, ...],
    platform: str = sys.platform,
) -> int:
    """Return the most that intermediate results take: those of one chunk of a prompt of
    ``context_tokens`` in one layer, and of the logits of ``rows``.

    Windows hold a chunk more while a prompt is computed.
    """
    metal = platform == "darwin"
    if kind is ModelKind.CHAT:
        chunk = min(_METAL_CHUNK_TOKENS if metal else _CHUNK_TOKENS, context_tokens)
    else:
        # One text that is longer than a piece goes alone.
        chunk = max(_METAL_PIECE_TOKENS if metal else _CHUNK_TOKENS, context_tokens)
    numbers = _HIDDEN_COPIES * widths.hidden + _INNER_COPIES * widths.inner
    if not metal:
        depth_tokens = context_tokens * _DEPTH_TOKENS // (context_tokens + _DEPTH_TOKENS)
        numbers += _SCORE_COPIES * widths.heads * depth_tokens
    total_bytes = chunk * numbers * element_bytes
    if kind is not ModelKind.CHAT:
        return total_bytes
    total_bytes += _LOGIT_COPIES * rows * widths.vocabulary * 4
    return total_bytes + sum(
        part.layers * part.token_bytes * chunk for part in layers if part.window_tokens
    )


def buffers_bytes(weights_bytes: int) -> int:
    """Return the most that mlx keeps of freed buffers."""
    return buffer_cache_bytes(weights_bytes)


def _inner(text: Mapping[str, Any], hidden: int) -> int:
    experts = count(text, "num_experts_per_tok", "moe_topk", "num_experts_per_token")
    routed = experts * count(text, "moe_intermediate_size", "expert_dim")
    dense = count(text, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
    return max(routed, dense)
