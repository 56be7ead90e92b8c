"""Caches that keep a row's keys and values in 4 or 8 bits for each number.

Written for mlx-vlm 0.7.10, whose quantized caches store the numbers. Two things are different here.
A batch is made of rows that are quantized already, without another rounding. And a model may read
its cache in two ways:

- as it is: with few queries, as in decoding, attention multiplies with the quantized numbers. It
  reads a half or a quarter of the bytes, but it is no single kernel: the scores of all queries with
  all keys are in memory at once.
- expanded: with many queries, as in a chunk of a prompt, those scores would take more than the
  cache itself. So the keys and values of the layer are expanded for as long as it is computed. A
  model whose attention can't multiply with quantized numbers always reads them so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import mlx.core as mx
from mlx_vlm.models.cache import BatchQuantizedKVCache, CacheList, KVCache, QuantizedKVCache

_FEW_QUERIES: Final = 16
"""Decoding has one query for each row, and as many more as tokens are drafted."""

_Parts = tuple[mx.array, ...]
"""Packed numbers, scales and biases."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How the numbers of a cache are stored and read."""

    bits: int
    group_size: int
    """So many numbers have a scale and a bias in common."""
    expanded: bool = False
    """Whether they are expanded for every reading, and not only with many queries."""

    def read(self, cache: Any, fetched: tuple[_Parts, _Parts], queries: int) -> Any:
        """Return what attention is given of a cache's content.

        The attention functions of both libraries multiply with quantized numbers if the cache has
        an attribute ``bits``, and take the numbers as they are if it has none.
        """
        if queries <= _FEW_QUERIES and not self.expanded:
            return fetched
        del cache.bits
        return tuple(self._expand(parts) for parts in fetched)

    def _expand(self, parts: _Parts) -> mx.array:
        packed, scales, biases = (mx.contiguous(part) for part in parts)
        return mx.dequantize(packed, scales, biases, group_size=self.group_size, bits=self.bits)


class QuantizedCache(QuantizedKVCache):  # type: ignore[misc]  # mlx-vlm has no types.
    """The cache of one layer and one row."""

    def __init__(self, packing: Packing) -> None:
        super().__init__(packing.group_size, packing.bits)
        self.packing = packing

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        """Add new keys and values, and return all of them for attention."""
        self.bits = self.packing.bits
        fetched = super().update_and_fetch(keys, values)
        return self.packing.read(self, fetched, keys.shape[2])

    def size(self) -> int:
        """Return how many tokens it holds."""
        return int(self.offset)

    @classmethod
    def merge(cls, caches: Sequence[QuantizedCache]) -> BatchQuantizedCache:
        """Return a batch with these rows."""
        longest = max(cache.offset for cache in caches)
        if not longest:  # A prompt of one token leaves nothing to read before it decodes.
            return BatchQuantizedCache([0] * len(caches), caches[0].packing)
        padding = [longest - cache.offset for cache in caches]
        batch = BatchQuantizedCache(padding, caches[0].packing)
        batch.state = (
            _stacked([cache.keys for cache in caches], caches, longest),
            _stacked([cache.values for cache in caches], caches, longest),
            batch.offset + longest,
            batch.left_padding,
        )
        return batch


class BatchQuantizedCache(BatchQuantizedKVCache):  # type: ignore[misc]  # mlx-vlm has no types.
    """The cache of one layer and of rows that decode together, as mlx-vlm's ``BatchKVCache``."""

    def __init__(self, left_padding: Sequence[int], packing: Packing) -> None:
        super().__init__(list(left_padding), packing.group_size, packing.bits)
        self.packing = packing

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        """Add new keys and values, and return all of them for attention."""
        self.bits = self.packing.bits
        fetched = super().update_and_fetch(keys, values)
        return self.packing.read(self, fetched, keys.shape[2])

    def size(self) -> int:
        """Return how many tokens the longest row holds, with what is before it."""
        keys = self.state[0]
        return 0 if keys is None else int(keys[0].shape[2])

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        parts = () if self.keys is None else (*self.keys, *self.values)
        return sum(part.nbytes for part in parts)

    def extract(self, idx: int) -> QuantizedCache:
        """Return a copy of one row."""
        self.bits = self.packing.bits
        found = super().extract(idx)
        row = QuantizedCache(self.packing)
        row.keys, row.values, row.offset = found.keys, found.values, found.offset
        return row


@dataclass(frozen=True, slots=True)
class KvQuantization:
    """Which of a model's caches are quantized, and how."""

    packings: tuple[Packing | None, ...]
    """For each cache that consists of no others, in order. None: it stays as it is."""

    def expanded(self) -> KvQuantization:
        """Return the same, but always read expanded."""
        return KvQuantization(
            tuple(
                None if packing is None else replace(packing, expanded=True)
                for packing in self.packings
            )
        )

    def applied(self, caches: Sequence[Any]) -> list[Any]:
        """Return the caches of a new row, which hold nothing yet."""
        packings = iter(self.packings)
        return [_quantized(cache, packings) for cache in caches]


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """Yield the caches that consist of no others."""
    for cache in caches:
        if type(cache) is CacheList:
            yield from leaves(cache.caches)
        else:
            yield cache


def _quantized(cache: Any, packings: Iterator[Packing | None]) -> Any:
    if type(cache) is CacheList:
        return CacheList(*[_quantized(part, packings) for part in cache.caches])
    packing = next(packings)
    if packing is None:
        return cache
    assert type(cache) is KVCache, "a subclass may keep more than keys and values"
    return QuantizedCache(packing)


def _stacked(
    contents: Sequence[_Parts | None], caches: Sequence[QuantizedCache], length: int
) -> _Parts:
    """Return the rows' numbers as one array for each part, with padding before shorter rows. The
    content of a row that holds nothing is None."""
    some = next(content for content in contents if content is not None)
    return tuple(
        mx.concatenate(
            [
                mx.pad(
                    (some if content is None else content)[part][:, :, : cache.offset],
                    [(0, 0), (0, 0), (length - cache.offset, 0), (0, 0)],
                )
                for content, cache in zip(contents, caches, strict=True)
            ]
        )
        for part in range(3)
    )
