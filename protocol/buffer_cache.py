"""How many freed buffers mlx may keep for reuse. Pure; the worker sets it as mlx's limit, the
supervisor counts it as taken."""

from __future__ import annotations

from typing import Final

_LEAST_BYTES: Final = 64 * 1024**2
"""Without any, each step would allocate all its buffers anew."""

_MOST_BYTES: Final = 1024**3
"""On Metal mlx's own limit is that of all memory."""

_SHARE: Final = 16
"""Of the weights one part in so many: larger models have larger buffers."""


def buffer_cache_bytes(weights_bytes: int) -> int:
    """Return the limit for a model whose weights take so much."""
    return max(_LEAST_BYTES, min(weights_bytes // _SHARE, _MOST_BYTES))
