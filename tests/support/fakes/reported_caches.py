"""Prompt caches that say which tokens they hold, for tests of what is kept of prompts.

In place of a model's keys and values, each position has its token and how many came before it;
a state has the number of its tokens and a hash of them all.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.models.cache import ArraysCache, KVCache

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.mlx.prefix.cache import PrefixCache

LAYERS = 2
BYTES_A_TOKEN = LAYERS * 2 * 2 * 4


class ToldModel:
    """Has two plain caches, and with ``states`` a recurrent one between them."""

    def __init__(self, states: bool = False) -> None:
        self._states = states

    def make_cache(self) -> list[Any]:
        states = [ArraysCache(2)] if self._states else []
        return [KVCache(), *states, KVCache()]


def fill(cache: Sequence[Any], tokens: Sequence[int]) -> None:
    """Make a fresh cache hold these tokens, or an old one these after its own."""
    for layer in cache:
        if isinstance(layer, KVCache):
            begin = layer.offset
            reported = [(token, begin + n) for n, token in enumerate(tokens[begin:])]
            keys = mx.array(reported, mx.float32).reshape(1, 1, -1, 2)
            layer.update_and_fetch(keys, -keys)
        else:
            layer[0] = mx.array([[len(tokens)]])
            layer[1] = mx.array([[zlib.crc32(np.asarray(tokens, np.int32).tobytes())]], mx.uint32)
    mx.eval([layer.state for layer in cache])


def held_by(model: ToldModel, tokens: Sequence[int]) -> list[Any]:
    """Return a cache that holds these tokens."""
    cache = model.make_cache()
    fill(cache, tokens)
    return cache


def check(cache: Sequence[Any], tokens: Sequence[int]) -> None:
    """Assert that a cache holds just these tokens."""
    reported = [(token, n) for n, token in enumerate(tokens)]
    for layer in cache:
        if isinstance(layer, KVCache):
            assert layer.offset == len(tokens)
            keys = layer.keys[0, 0, : layer.offset]
            assert mx.array_equal(keys, mx.array(reported, mx.float32))
            assert mx.array_equal(layer.values[0, 0, : layer.offset], -keys)
        else:
            assert layer[0].item() == len(tokens)
            assert layer[1].item() == zlib.crc32(np.asarray(tokens, np.int32).tobytes())


PLAIN = ToldModel()
MIXED = ToldModel(states=True)


def prompt(seed: int, length: int) -> list[int]:
    """Return tokens that no other seed's prompt has."""
    return [seed * 1000 + n for n in range(length)]


def keep(cache: PrefixCache, model: ToldModel, tokens: Sequence[int], salt: str = "") -> None:
    """Store these tokens as if they had been computed."""
    cache.store(tokens, held_by(model, tokens), salt)


def find(cache: PrefixCache, tokens: Sequence[int], salt: str = "") -> int:
    """Return how many tokens were found, having checked what was given for them."""
    warm = cache.lookup(tokens, salt)
    if warm is None:
        return 0
    assert 0 < warm.cached_tokens < len(tokens)
    check(warm.prompt_cache, tokens[: warm.cached_tokens])
    return warm.cached_tokens


def on_disk(
    folder: Path, memory_bytes: int = 1 << 24, disk_bytes: int = 1 << 24
) -> PrefixCacheSpec:
    """Return a spec with a disk; ample by default."""
    return PrefixCacheSpec(memory_bytes, str(folder), disk_bytes)
