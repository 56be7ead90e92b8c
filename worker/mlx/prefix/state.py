"""Takes the content of a prompt cache out of it and puts it back, for any of mlx-vlm's cache
classes.

Written for mlx-vlm 0.7.10: it uses ``prefix_cache_snapshot`` and ``prefix_cache_restore`` of its
caches, and the fields of its plain ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_vlm.apc_adapters import Capability, resolve_capability
from mlx_vlm.models.cache import (
    BatchKVCache,
    BatchQuantizedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from lmx.worker.mlx.prefix.file import SegmentRecord, Tensor

Arrays = Mapping[str, mx.array]

_PLAIN: Final = ("k", "v")
_QUANTIZED: Final = ("k", "ks", "kb", "v", "vs", "vb")
"""The names of a cache's arrays: keys and values, or of each of them the packed numbers, the scales
and the biases."""

_DTYPES: Final = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.bool_: "BOOL",
    mx.uint8: "U8",
    mx.int8: "I8",
    mx.uint16: "U16",
    mx.int16: "I16",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.uint64: "U64",
    mx.int64: "I64",
}
_DTYPE_OF: Final = {name: dtype for dtype, name in _DTYPES.items()}


class CacheLayout:
    """Which of a model's caches hold a key and a value for each token, so that they can be cut
    anywhere, and which have a state that is right only after its last token.

    ``cuttable`` means that all are of the first kind; ``restorable``, that a cache can be put
    together again.
    """

    def __init__(self, new_cache: Callable[[], list[Any]]) -> None:
        """``new_cache`` returns the empty cache of one row."""
        self._new_cache = new_cache
        leaves = list(_leaves(new_cache()))
        self._runs = {n: _kinds(leaf) for n, leaf in enumerate(leaves) if _holds_runs(leaf)}
        self._packed = {
            n: leaf.bits * leaf.group_size // 32
            for n, leaf in enumerate(leaves)
            if isinstance(leaf, QuantizedKVCache)
        }
        """How many words have the numbers of one scale."""
        self._states = [n for n in range(len(leaves)) if n not in self._runs]
        self.cuttable = not self._states
        self.restorable = bool(leaves) and all(_keeps_state(leaves[n]) for n in self._states)

    def run(
        self, prompt_cache: Sequence[Any], row: int | None, start: int, end: int
    ) -> dict[str, mx.array]:
        """Return copies of the keys and values of tokens ``start`` to ``end``, lazily.

        Raises ``TypeError`` for caches that aren't the model's own, of one row or of a batch.
        """
        leaves = list(_leaves(prompt_cache))
        # All are evaluated at once: a device takes a while for each array that is requested alone.
        mx.eval([getattr(leaves[n], "left_padding", ()) for n in self._runs])
        arrays = {}
        for n, kinds in self._runs.items():
            leaf = leaves[n]
            if _kinds(leaf) != kinds:
                raise TypeError(f"a cache became {type(leaf).__name__}")
            first, span = _row_span(leaf, row)
            if leaf.keys is None:
                continue  # A layer that borrows another one's.
            rows = slice(None) if row is None else slice(row, row + 1)
            if end > span:
                raise TypeError(f"cache {n} holds {span} tokens of {end}")
            # A view of the keys would keep all of the live cache in memory.
            for kind, whole in zip(kinds, _content(leaf), strict=True):
                part = whole[rows, :, first + start : first + end]
                arrays[f"{kind}{n}"] = mx.contiguous(part)
        return arrays

    def state(
        self, prompt_cache: Sequence[Any], row: int | None
    ) -> tuple[list[Any], dict[str, mx.array]]:
        """Return the states of the other caches, lazily: a structure for JSON, and the arrays
        that it refers to. Raises ``TypeError`` for a state that has no such form."""
        leaves = list(_leaves(prompt_cache))
        arrays: dict[str, mx.array] = {}
        structure = []
        for n in self._states:
            leaf = leaves[n] if row is None else _extract(leaves[n], row)
            if type(leaf) is RotatingKVCache and not leaf.keep and leaf.keys is not None:
                # It may have room for more tokens than it holds.
                leaf = leaf.merge([leaf]).extract(0)
            structure.append(_flatten(leaf.prefix_cache_snapshot(), arrays))
        return structure, arrays

    def fits(self, record: SegmentRecord) -> bool:
        """Return whether a stored record has the form that ``run`` and ``state`` return."""
        if len(record.tokens):
            shapes = {tensor.name: tensor.shape for tensor in record.tensors}
            names = {f"{kind}{n}" for n, kinds in self._runs.items() for kind in kinds}
            return (
                shapes.keys() <= names
                and all(
                    len(shape) == 4 and shape[2] == len(record.tokens) for shape in shapes.values()
                )
                and all(
                    shapes[f"k{n}"][3] == words * shapes.get(f"ks{n}", (0,))[-1]
                    for n, words in self._packed.items()
                    if f"k{n}" in shapes
                )
            )
        return isinstance(record.structure, list) and len(record.structure) == len(self._states)

    def restore(
        self,
        runs: Sequence[tuple[Arrays, int]],
        state: tuple[list[Any], Arrays] | None,
        capacity_tokens: int,
    ) -> list[Any]:
        """Return a single row's cache, made of the first tokens of each run, and of a state.

        It has capacity for ``capacity_tokens``. It shares no array with the arguments: an update in
        place can't change the store.
        """
        prompt_cache = self._new_cache()
        leaves = list(_leaves(prompt_cache))
        length = sum(count for _, count in runs)
        for n, kinds in self._runs.items():
            if all(f"{kind}{n}" in arrays for arrays, _ in runs for kind in kinds):
                parts = [_join(runs, f"{kind}{n}", capacity_tokens) for kind in kinds]
                if len(parts) == len(_PLAIN):
                    leaves[n].keys, leaves[n].values = parts
                else:
                    leaves[n].keys, leaves[n].values = tuple(parts[:3]), tuple(parts[3:])
                leaves[n].offset = length
        if state is not None:
            structure, arrays = state
            for n, tree in zip(self._states, structure, strict=True):
                leaves[n].prefix_cache_restore(_unflatten(tree, arrays))
        return prompt_cache


def describe(arrays: Arrays) -> tuple[Tensor, ...]:
    """Return the description of arrays for a file."""
    return tuple(
        Tensor(name, _DTYPES[array.dtype], tuple(array.shape), array.nbytes)
        for name, array in arrays.items()
    )


def expose(arrays: Arrays) -> tuple[list[memoryview], list[mx.array]]:
    """Return the arrays' bytes, without copying them, and the objects that must be kept while they
    are read. The arrays are evaluated; reading the bytes needs no MLX."""
    views = [array.reshape(-1).view(mx.uint8) for array in arrays.values()]
    mx.eval(views)
    buffers: list[Any] = [view if view.size else b"" for view in views]
    return [memoryview(buffer) for buffer in buffers], views


def arrays_of(tensors: Sequence[Tensor], data: Sequence[memoryview]) -> dict[str, mx.array]:
    """Return arrays made of the bytes of ``expose``, evaluated."""
    arrays = {}
    for tensor, part in zip(tensors, data, strict=True):
        raw = mx.array(np.frombuffer(part, np.uint8))
        dtype = _DTYPE_OF[tensor.dtype]
        arrays[tensor.name] = (raw.view(dtype) if raw.size else raw.astype(dtype)).reshape(
            tensor.shape
        )
    mx.eval(arrays)
    return arrays


def _keeps_state(leaf: Any) -> bool:
    """Return whether a cache gives its state away and takes it back. mlx-vlm says so of some caches
    that lack these functions."""
    return resolve_capability(leaf) is not Capability.UNSUPPORTED and all(
        callable(getattr(leaf, name, None))
        for name in ("prefix_cache_snapshot", "prefix_cache_restore")
    )


def _leaves(caches: Any) -> Iterator[Any]:
    """Yield the caches that consist of no others."""
    for cache in caches:
        parts = cache if isinstance(cache, list | tuple) else getattr(cache, "caches", None)
        if parts is None:
            yield cache
        else:
            yield from _leaves(parts)


def _holds_runs(leaf: Any) -> bool:
    # A subclass of a plain cache may keep more than its keys and values.
    return type(leaf) is KVCache or isinstance(leaf, QuantizedKVCache)


def _kinds(leaf: Any) -> tuple[str, ...]:
    quantized = isinstance(leaf, QuantizedKVCache | BatchQuantizedKVCache)
    return _QUANTIZED if quantized else _PLAIN


def _content(leaf: Any) -> tuple[mx.array, ...]:
    """Return the arrays of a cache that is not empty.

    A model that lets its keys wait for those of an indexer has made a list of their tuple.
    """
    if isinstance(leaf.keys, tuple | list):
        return (*leaf.keys, *leaf.values)
    return leaf.keys, leaf.values


def _row_span(leaf: Any, row: int | None) -> tuple[int, int]:
    """Return where a row begins in a plain cache, and how many tokens it has."""
    if _holds_runs(leaf):
        return 0, leaf.offset
    if isinstance(leaf, BatchKVCache | BatchQuantizedKVCache):
        padding = int(leaf.left_padding.tolist()[row or 0])
        return padding, leaf._idx - padding
    raise TypeError(f"a plain cache became {type(leaf).__name__}")


def _extract(leaf: Any, row: int) -> Any:
    if not hasattr(leaf, "extract"):
        raise TypeError(f"a row can't be taken out of {type(leaf).__name__}")
    return leaf.extract(row)


def _join(runs: Sequence[tuple[Arrays, int]], name: str, capacity_tokens: int) -> mx.array:
    parts = [arrays[name][:, :, :count] for arrays, count in runs]
    rows, heads, _, width = parts[0].shape
    spare = capacity_tokens - sum(count for _, count in runs)
    # With a single part and no spare capacity, the result would be the stored array itself.
    spare = max(1, spare)
    return mx.concatenate([*parts, mx.zeros((rows, heads, spare, width), parts[0].dtype)], axis=2)


def _flatten(tree: Any, arrays: dict[str, mx.array]) -> Any:
    if isinstance(tree, mx.array):
        name = f"a{len(arrays)}"
        arrays[name] = mx.contiguous(tree)
        return {"array": name}
    if isinstance(tree, dict):
        return {"dict": {str(key): _flatten(value, arrays) for key, value in tree.items()}}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [_flatten(value, arrays) for value in tree]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise TypeError(f"a cache's state has a {type(tree).__name__}")


def _unflatten(tree: Any, arrays: Arrays) -> Any:
    ((kind, value),) = tree.items()
    if kind == "array":
        # This is another object on the same buffer: assigning to a part of it makes a copy first.
        return arrays[value][...]
    if kind == "dict":
        return {key: _unflatten(part, arrays) for key, part in value.items()}
    if kind == "value":
        return value
    parts = [_unflatten(part, arrays) for part in value]
    return parts if kind == "list" else tuple(parts)
