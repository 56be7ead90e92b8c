"""PLaMo 3, of which mlx-lm's class keeps a token too few.

Written for mlx-lm 0.32.2. A token of a chunk sees as many tokens before it as the window has, and
one that comes alone sees one fewer: the cache does not have it any more.
"""

from __future__ import annotations

from typing import Any, Final

from mlx_lm.models.cache import RotatingKVCache

from lmx.worker.mlx.module_calls import replace_methods

_MODULE: Final = "mlx_lm.models.plamo3"


def patch_plamo3(model: Any) -> None:
    """Let the caches hold the whole window if it is a PLaMo 3 of mlx-lm's."""
    plain = type(model)
    if plain.__module__ != _MODULE:
        return

    def make_cache(patched: Any) -> list[Any]:
        caches = plain.make_cache(patched)
        return [
            RotatingKVCache(max_size=cache.max_size + 1)
            if isinstance(cache, RotatingKVCache)
            else cache
            for cache in caches
        ]

    replace_methods(model, make_cache=make_cache)
