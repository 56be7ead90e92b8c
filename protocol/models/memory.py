"""How many bytes a KV cache takes for a number of tokens. Pure; the supervisor reads the shape
from a model's configuration, the worker counts with it.

How many freed buffers mlx may keep for reuse. Pure; the worker sets it as mlx's limit, the
supervisor counts it as taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

STEP_TOKENS: Final = 256
"""mlx-vlm's caches grow by whole steps."""


@dataclass(frozen=True, slots=True)
class KvLayers:
    """So many layers alike: ``token_bytes`` for each token in each of them, up to
    ``window_tokens`` (None: all), and ``fixed_bytes`` whatever the length (recurrent state)."""

    layers: int
    token_bytes: int
    window_tokens: int | None = None
    fixed_bytes: int = 0


def kv_bytes(shape: Iterable[KvLayers], tokens: int) -> int:
    """Return what one sequence of ``tokens`` takes in all layers."""
    stepped = -(-tokens // STEP_TOKENS) * STEP_TOKENS
    return sum(
        part.layers * (part.token_bytes * _held(stepped, part.window_tokens) + part.fixed_bytes)
        for part in shape
    )


def _held(tokens: int, window_tokens: int | None) -> int:
    return tokens if window_tokens is None else min(tokens, window_tokens)


_LEAST_BYTES: Final = 64 * 1024**2
"""Without any, each step would allocate all its buffers anew."""

_MOST_BYTES: Final = 1024**3
"""On Metal mlx's own limit is that of all memory."""

_SHARE: Final = 16
"""Of the weights one part in so many: larger models have larger buffers."""


def buffer_cache_bytes(weights_bytes: int) -> int:
    """Return the limit for a model whose weights take so much."""
    return max(_LEAST_BYTES, min(weights_bytes // _SHARE, _MOST_BYTES))
