"""A model class of mlx-lm in the form that mlx-vlm's have: text alone, with mlx-vlm's caches.

All that works on caches here (batches, prefixes, rollbacks) knows mlx-vlm's. Those of mlx-lm have
the same names, and the models of both use them in the same way.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models.cache as lm
import mlx_vlm.models.cache as vlm
from mlx_lm.utils import load_model
from mlx_vlm.models.base import InputEmbeddingsFeatures

from lmx.worker.mlx.model.batch_slots import SlottedKVCache
from lmx.worker.mlx.model.patches.mlx_lm import classes_of, patch_mlx_lm

_CACHES: Final[Mapping[type, Any]] = {
    lm.KVCache: lambda _: vlm.KVCache(),
    lm.RotatingKVCache: lambda cache: vlm.RotatingKVCache(max_size=cache.max_size, keep=cache.keep),
    lm.ArraysCache: lambda cache: vlm.ArraysCache(len(cache.cache)),
    lm.ChunkedKVCache: lambda cache: vlm.ChunkedKVCache(cache.chunk_size),
    lm.CacheList: lambda cache: vlm.CacheList(*map(_as_vlm, cache.caches)),
}

_HOLDING_OFFSETS: Final = frozenset(
    f"mlx_lm.models.{name}" for name in ("bailing_hybrid", "bailing_moe_linear")
)
"""Models that read the offset of one cache, and use it in layers that come after the one which
writes that cache."""

_SHARING: Final = frozenset(f"mlx_lm.models.{name}" for name in ("afm7", "gemma3n"))
"""Models whose last layers read the caches of others, and the offsets from before they were
written."""


class TextModel(nn.Module):  # type: ignore[misc]  # mlx has no types.
    """What :class:`lmx.worker.mlx.model.forward.Forward` runs, around a model of mlx-lm."""

    def __init__(self, model: Any) -> None:
        """Raises ``TypeError`` for a model with a kind of cache that mlx-vlm doesn't have."""
        super().__init__()
        self.language_model = _TextLanguage(model)
        self.language_model.make_cache()

    @property
    def config(self) -> Any:
        """What its config.json says, as its class reads it."""
        return self.language_model.inner.args

    def get_input_embeddings(self, tokens: mx.array, **_: Any) -> Any:
        """Return a placeholder: the model embeds its tokens itself, each chunk in its turn."""
        return InputEmbeddingsFeatures(inputs_embeds=mx.zeros((*tokens.shape, 1)))


class _TextLanguage(nn.Module):  # type: ignore[misc]  # mlx has no types.
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model
        self.steadies = type(model).__module__ in _SHARING | _HOLDING_OFFSETS

    @property
    def layers(self) -> Any:
        return self.inner.layers

    def make_cache(self) -> list[Any]:
        return [_as_vlm(cache) for cache in lm.make_prompt_cache(self.inner)]

    def __call__(self, tokens: mx.array, cache: list[Any] | None = None, **_: Any) -> mx.array:
        """Return the logits. What else a prompt of mlx-vlm's may come with says nothing here."""
        if self.steadies and cache is not None:
            cache = [_steady(layer) for layer in cache]
        logits: mx.array = self.inner(tokens, cache=cache)
        return logits


def _steady(cache: Any) -> Any:
    return cache if isinstance(cache, vlm.ArraysCache) else _SteadyCache(cache)


class _SteadyCache:
    """A cache of mlx-vlm's as mlx-lm's are: an offset that was read stays what it was, and other
    layers can look up what one has written.

    The batches of mlx-vlm 0.7.10 add to the array of their offsets in place; those of mlx-lm 0.32.2
    make another one, and so does :class:`lmx.worker.mlx.model.batch_slots.SlottedKVCache`.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    @property
    def offset(self) -> Any:
        """As it is now."""
        offset = self._cache.offset
        if isinstance(offset, mx.array) and not isinstance(self._cache, SlottedKVCache):
            return mx.array(offset)
        return offset

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        keys, values = self._cache.state[:2]
        return keys, values


def load_text_model(folder: Path) -> TextModel:
    """Return mlx-lm's model of a folder, its weights not read yet. Raises whatever mlx-lm raises
    for a folder that it can't load, and ``TypeError`` as :class:`TextModel` does."""
    model, config = load_model(folder, lazy=True, get_model_classes=classes_of)
    patch_mlx_lm(model, config, sorted(folder.glob("model*.safetensors")))
    return TextModel(model)


def _as_vlm(cache: Any) -> Any:
    make = _CACHES.get(type(cache))
    if make is None:
        raise TypeError(f"mlx-vlm has no cache like mlx-lm's {type(cache).__name__}")
    return make(cache)
