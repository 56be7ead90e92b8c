"""Rows that join a batch and leave it, in the caches of all layers. A batch that has one row left
keeps its caches as those of a single row, which need no mask.

mlx-vlm's ``BatchKVCache`` holds its rows alone: whenever a row joins or leaves, the keys and
values of all rows are copied. :class:`SlottedKVCache` moves the last row into the slot of one that
leaves, and keeps the slot behind the remaining rows free for the next row that joins. So one row is
copied. Caches of all other kinds, such as windows, states and quantized ones, are copied. All
layers with a :class:`SlottedKVCache` share one array of offsets; mlx-vlm makes a new one in each
layer.

A free slot takes as much memory as a row. It is given up when the cache grows, which copies all
rows anyway. Until then nobody counts it, so there may be only a few.

Where all rows are copied, it is done for some layers at a time: the old and the new content of all
layers would take twice the memory that the rows are counted with.

Written for mlx-vlm 0.7.10, whose private function joins caches.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Self, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.generate.ar import _extend_cache
from mlx_vlm.models.cache import ArraysCache, BatchKVCache, BatchRotatingKVCache, CacheList

from lmx.worker.mlx.device.cpu import tables
from lmx.worker.mlx.model.forward import PromptCache, cache_states
from lmx.worker.mlx.model.quantized_cache import BatchQuantizedCache

_COPIED_BYTES: Final = 64 << 20
"""Copies are evaluated when they take this much memory. With less, the device would wait for the
next ones."""
MOST_PADDING_TOKENS: Final = 64
"""If no remaining row is nearly as long as the cache, the cache is cut, by a copy."""
_SLOTS_SHARE: Final = 4
"""One free slot for this many rows; at least one."""

_CHANGES: Final = 4
"""A layer goes through several, one after the other: drafts are added, and then taken back."""


class SlottedKVCache(BatchKVCache):  # type: ignore[misc]  # mlx-vlm has no types.
    """``keys`` and ``values`` may have more rows than the batch: those of free slots, the last
    ones, whose content means nothing.

    ``offset`` is never changed in place, as mlx-vlm's own caches change theirs: several layers may
    have the same array.
    """

    keys: mx.array
    values: mx.array
    offset: mx.array
    left_padding: mx.array
    _idx: int
    _right_padding: mx.array | None
    _shift: tuple[int, ...] = ()
    """``_right_padding`` as numbers."""

    @classmethod
    def of(cls, cache: BatchKVCache) -> Self:
        """Return the same content as a cache whose slots may become free. It uses up ``cache``."""
        slotted = cls([])
        slotted.__dict__.update(cache.__dict__)
        return slotted

    @property
    def batch_size(self) -> int:
        """How many rows there are."""
        return int(self.left_padding.shape[0])

    @property
    def free_slots(self) -> int:
        """How many more rows ``keys`` and ``values`` have."""
        return int(self.keys.shape[0]) - self.batch_size

    @property
    def state(self) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """The keys and values of the rows, how many tokens each has, and how many entries of
        padding are before them."""
        rows = self.batch_size
        return (
            self.keys[:rows, :, : self._idx],
            self.values[:rows, :, : self._idx],
            self.offset,
            self.left_padding,
        )

    @state.setter
    def state(self, value: Sequence[mx.array]) -> None:
        BatchKVCache.state.fset(self, value)

    def may_free(self, slots: int) -> bool:
        """Return whether this many more slots may be free."""
        rows = self.batch_size - slots
        return rows > 1 and self.free_slots + slots <= max(1, rows // _SLOTS_SHARE)

    def fits(self, rows: int, tokens: int) -> bool:
        """Return whether free slots can take this many rows with this many tokens."""
        return rows <= self.free_slots and 0 < tokens <= self._idx

    def give_up_slots(self) -> None:
        """Take no more memory than the rows need, when it is evaluated."""
        if self.free_slots:
            self._cut_slots()
            self.keys, self.values = mx.contiguous(self.keys), mx.contiguous(self.values)

    def extend(self, other: BatchKVCache) -> None:
        """Add the rows of ``other``, to free slots if it ``fits``."""
        rows, more = self.batch_size, other.batch_size
        before = self._idx - other._idx
        if not self.fits(more, other._idx):
            self._cut_slots()
            super().extend(other)
            return
        slots = slice(rows, rows + more)
        for mine, its in ((self.keys, other.keys), (self.values, other.values)):
            # What the row before has left there might be no number, and no mask hides that.
            padding = [(0, 0), (0, 0), (before, 0), (0, 0)]
            mine[slots, :, : self._idx] = mx.pad(its[:, :, : other._idx], padding)
        self.offset = mx.concatenate([self.offset, other.offset])
        self.left_padding = mx.concatenate([self.left_padding, other.left_padding + before])

    def prepare(self, *, right_padding: Sequence[int] | None = None, **more: Any) -> None:
        """Note by how much each row is to be shifted."""
        self._shift = tuple(right_padding or ())
        super().prepare(right_padding=right_padding, **more)

    def finalize(self) -> None:
        """Shift the rows as ``prepare`` has asked for."""
        if self._right_padding is None:
            return
        self._cut_slots()
        before = self.offset
        self.offset = mx.array(before)  # mlx-vlm changes it in place.
        super().finalize()
        self._share(before, self._shift)

    def filter(self, batch_indices: mx.array) -> None:
        """Keep these rows alone, and no padding that all of them have. It is known without waiting
        for the device in each layer, as mlx-vlm does."""
        before = self.offset
        self.offset = before[batch_indices]
        self._share(before, batch_indices)
        padding = self._idx - _offsets.longest(self.offset)
        self.keys = self.keys[batch_indices][:, :, padding:]
        self.values = self.values[batch_indices][:, :, padding:]
        self.left_padding = self.left_padding[batch_indices] - padding
        self._idx -= padding

    def trim(self, n: int) -> int:
        """Forget the last tokens of all rows, and return how many those were."""
        n = min(n, self._idx)
        self._idx -= n
        self.offset = _offsets.changed(self.offset, -n, lambda: self.offset - n)
        return n

    def joined(self, before: int | mx.array, row_tokens: int) -> None:
        """Note that a row of this many tokens has joined; ``before``: the offsets without it."""
        self._share(before, ("joined", row_tokens))

    def move_rows(self, places: mx.array) -> None:
        """Note that the rows are those of these places now."""
        before = self.offset
        self.offset, self.left_padding = before[places], self.left_padding[places]
        self._share(before, places)

    def _share(self, before: int | mx.array, how: Any) -> None:
        """Share the offsets with the other layers that have changed in the same way."""
        own = self.offset
        self.offset = _offsets.changed(before, how, lambda: own)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add new keys and values, and return all of them for attention."""
        rows, begin, end = self.batch_size, self._idx, self._idx + keys.shape[2]
        if end > self.keys.shape[2]:
            self._cut_slots()
            self.keys = self._grown(self.keys, end - begin)
            self.values = self._grown(self.values, end - begin)
        self.keys[:rows, :, begin:end] = keys
        self.values[:rows, :, begin:end] = values
        self.offset = _offsets.changed(
            self.offset, end - begin, lambda: self.offset + (end - begin)
        )
        self._idx = end
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def _grown(self, content: mx.array, tokens: int) -> mx.array:
        """Return a copy with capacity for this many more tokens, and some more."""
        rows, heads, _, width = content.shape
        more = -(-tokens // self.step) * self.step
        return mx.concatenate(
            [content[:, :, : self._idx], mx.zeros((rows, heads, more, width), content.dtype)],
            axis=2,
        )

    def _cut_slots(self) -> None:
        """Leave free slots out. They take memory until the rest is copied."""
        if self.free_slots:
            rows = self.batch_size
            self.keys, self.values = self.keys[:rows], self.values[:rows]


class _LastChanges:
    """The last changes of batches' offsets. Layers that had the same ones before a change share
    what it makes. Each takes two numbers for each row."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int | mx.array, Any, mx.array]] = deque(maxlen=_CHANGES)
        self._read = mx.array([0]), 0

    def changed(self, before: int | mx.array, how: Any, after: Callable[[], mx.array]) -> mx.array:
        """Return the offsets ``after`` a change. ``how`` is another one for each change: an array
        that is passed to all layers, or what can be compared."""
        for was, same, made in self._changes:
            if _is_same(before, was) and _is_same(how, same):
                return made
        made = after()
        self._changes.appendleft((before, how, made))
        tables.name_offsets(made)
        return made

    def longest(self, offsets: mx.array) -> int:
        """Return the largest of some offsets. Waits for the device, once for all layers."""
        if offsets is not self._read[0]:
            self._read = offsets, cast(int, mx.max(offsets).item())
        return self._read[1]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, mx.array) or isinstance(other, mx.array):
        return one is other
    return bool(one == other)


_offsets: Final = _LastChanges()


def join(prompt_cache: PromptCache, other: PromptCache) -> PromptCache:
    """Return the cache of the rows of ``prompt_cache`` and of the single row of ``other``. It uses
    up both. ``prompt_cache`` must be evaluated."""
    joined: PromptCache = []
    copies = _Copies()
    for row in other:
        layer = prompt_cache.pop(0)
        before = getattr(layer, "offset", 0)
        fits = isinstance(layer, SlottedKVCache) and layer.fits(1, row.size())
        (both,) = _extend_cache([layer], [row])
        if type(both) is BatchKVCache and isinstance(both.keys, mx.array):
            both = SlottedKVCache.of(both)
        if isinstance(both, SlottedKVCache):
            both.joined(before, row.size())
        joined.append(both)
        if not fits:
            copies.add(both)
    return joined


def leave(prompt_cache: PromptCache, places: Sequence[int], longest_tokens: int) -> None:
    """Keep the rows of these places, in the order that ``kept_places`` gives. The longest of them
    holds this many tokens. ``prompt_cache`` must be evaluated."""
    kept = mx.array(list(places), mx.int32)
    slotted: list[SlottedKVCache] = []
    copies = _Copies()
    for layer in prompt_cache:
        if (
            isinstance(layer, SlottedKVCache)
            and layer.may_free(layer.batch_size - len(places))
            and layer.size() - longest_tokens <= MOST_PADDING_TOKENS
        ):
            slotted.append(layer)
        else:
            layer.filter(kept)
            copies.add(layer)
    _move_rows(slotted, places, kept)


def give_up_slots(prompt_cache: PromptCache) -> None:
    """Free the memory of free slots."""
    copies = _Copies()
    for layer in prompt_cache:
        if isinstance(layer, SlottedKVCache) and layer.free_slots:
            layer.give_up_slots()
            copies.add(layer)


def kept_places(rows: int, gone: Collection[int]) -> list[int]:
    """Return which of the rows stay, in their new order: the last ones take the places of those
    that are ``gone``."""
    left = [place for place in range(rows) if place not in gone]
    moving = [place for place in left if place >= len(left)]
    return [moving.pop() if place in gone else place for place in range(len(left))]


class _Copies:
    """Evaluates layers that are to be copied, some at a time."""

    def __init__(self) -> None:
        self._states: list[Any] = []
        self._bytes = 0

    def add(self, layer: Any) -> None:
        states = cache_states([layer])
        arrays = [array for _, array in tree_flatten(states) if isinstance(array, mx.array)]
        self._states += states
        self._bytes += sum(array.nbytes for array in arrays)
        if self._bytes >= _COPIED_BYTES:
            mx.eval(self._states)
            self._states, self._bytes = [], 0


def _move_rows(caches: Sequence[SlottedKVCache], places: Sequence[int], kept: mx.array) -> None:
    """``kept``: the places as an array."""
    moves = [(new, old) for new, old in enumerate(places) if new != old]
    # A part of an array is a view of the whole. While there is one, a write would copy the whole.
    moved = [
        [mx.contiguous(content[old : old + 1, :, : cache.size()]) for _, old in moves]
        for cache in caches
        for content in (cache.keys, cache.values)
    ]
    mx.eval(moved)
    for cache, keys, values in zip(caches, moved[::2], moved[1::2], strict=True):
        for (new, _), row_keys, row_values in zip(moves, keys, values, strict=True):
            cache.keys[new : new + 1, :, : cache.size()] = row_keys
            cache.values[new : new + 1, :, : cache.size()] = row_values
        cache.move_rows(kept)


_KINDS: Final = (
    ArraysCache,
    BatchKVCache,
    BatchQuantizedCache,
    BatchRotatingKVCache,
    SlottedKVCache,
)


def can_be_single(cache: PromptCache) -> bool:
    """Return whether all layers are of kinds from which a single row can be taken out."""
    return all(
        can_be_single(layer.caches) if isinstance(layer, CacheList) else type(layer) in _KINDS
        for layer in cache
    )


def single_row(cache: PromptCache, index: int) -> PromptCache:
    """Return one row's cache. It uses up the batch's cache."""
    return [_single(layer, index) for layer in cache]


def _single(layer: Any, index: int) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*single_row(layer.caches, index))
    if isinstance(layer, BatchQuantizedCache):
        return layer.extract(index)
    if isinstance(layer, ArraysCache) or layer.keys is None:
        # The kind is the same for one row as for many; or it holds nothing: the layer borrows
        # another one's cache, or no row has decoded yet.
        layer.filter(mx.array([index], mx.int32))
        return layer
    return layer.extract(index)
