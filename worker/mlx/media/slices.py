"""Attention, layers and other modules of a model's vision and audio encoders, computed in slices.

A single block of a model may take seconds for a large picture. But attention reads the keys of all
patches for each query alone, and a layer knows no other patch than its own. So slices of the
queries, or of the patches, give the same numbers as the whole.

MLX computes nothing before it is evaluated. So the slices are recorded while the model's own class
is called, and computed later, one after the other.
"""

import functools
import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_vlm.models import base

from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.media.cost import ComputingCost

_FIRST_CPU_S: Final = 1e-9
_FIRST_GPU_S: Final = 1e-11
"""How long a multiplication takes on the slowest machines, before anything was measured."""

_EVEN: Final = 32
"""Slices of more rows than this have a multiple of it: kernels compute blocks of this many."""

_LAYERS: Final = (nn.Linear, nn.QuantizedLinear)
_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

_ATTENTION: Final = "attention"
_COMPILED_ATTENTION: Final = ("ensure_fused_sdpa", "chunked_attention")
"""Functions of mlx-vlm that are compiled: what these call can't be recorded."""

_TRIAL_CUTS: Final = (0, 1, 6, 13)
"""Where the rows of the trial of a module are cut. A module that mixes the rows of windows has
windows of other sizes."""
_TRIAL_TOLERANCE: Final = 0.02
"""A share of the largest output; bfloat16 rounds to less."""

_Patch = tuple[Any, str, Any]
"""An object, the name of an attribute, and what the attribute is while parts are recorded."""


class Part(NamedTuple):
    """What is computed in one go."""

    array: mx.array
    expected_s: float
    kinds: frozenset[str]
    """What it computes, of that which is counted."""
    multiplications: float = 0.0
    """How many it makes, if it computes one kind and nothing else; otherwise 0."""


class Slicer:
    """Records, in parts, what a model's classes compute. Engine thread."""

    def __init__(self, encoders: Sequence[Any], small: Sequence[Any]) -> None:
        """``encoders`` are all modules of the vision and audio encoders, and ``small`` those of
        them that hold none of the blocks that stand one behind the other."""
        gpu = on_gpu()
        self._cost = ComputingCost(_FIRST_GPU_S if gpu else _FIRST_CPU_S)
        self._patches = list(self._found_patches(encoders, small))
        self._known_by_rows: dict[Any, bool] = {}
        """Whether a module computes each row alone, by its class and the shapes of its weights."""
        self._thread: int | None = None
        """The thread for which parts are recorded. None: nothing is."""
        self._parts: list[Part] = []
        self._part_s = 0.0
        self._pending_s = 0.0
        """How long that seems to take which was called since the last part."""
        self._pending: set[str] = set()
        """Of which kinds that is."""
        self._exceeded: set[str] = set()
        """The kinds that took longer than expected since parts were recorded last. The parts that
        are left were expected by the same figures and say nothing new."""

    @contextmanager
    def recording(self, part_s: float) -> Iterator[list[Part]]:
        """Record, until the end of the block, what is computed, in parts that
        seem to take ``part_s`` at most."""
        self._parts, self._part_s = [], part_s
        self._exceeded.clear()
        with ExitStack() as seams:
            for owner, name, value in self._patches:
                seams.enter_context(_replaced(owner, name, value))
            self._thread = threading.get_ident()
            try:
                yield self._parts
            finally:
                self._thread = None
                self._pending_s = 0.0
                self._pending.clear()

    def pause(self, array: mx.array) -> None:
        """End a part with an array, if parts are recorded."""
        if self._records:
            self._parts.append(Part(array, self._pending_s, frozenset(self._pending)))
            self._pending_s = 0.0
            self._pending.clear()

    def computed(self, part: Part, took_s: float) -> None:
        """Note how long a part took."""
        if part.multiplications:
            (kind,) = part.kinds
            self._cost.measured(kind, part.multiplications, took_s)
        elif took_s > 2 * part.expected_s > self._part_s:
            # Of a part with little that is counted, the rest may be what took long.
            self._cost.exceeded(part.kinds - self._exceeded, took_s / part.expected_s)
            self._exceeded |= part.kinds

    @property
    def _records(self) -> bool:
        return self._thread == threading.get_ident()

    def _found_patches(self, encoders: Sequence[Any], small: Sequence[Any]) -> Iterator[_Patch]:
        fast, name = mx.fast, "scaled_dot_product_attention"
        yield fast, name, self._outermost(self._attention, getattr(fast, name))
        spaces = {type(one).__module__ for one in encoders} | {base.__name__}
        for space, name in itertools.product(sorted(spaces), _COMPILED_ATTENTION):
            if (plain := getattr(sys.modules[space], name, None)) is not None:
                yield sys.modules[space], name, self._outermost(self._attention, plain)
        yield mx, "eval", self._evaluated(mx.eval)
        for layer in _LAYERS:
            yield layer, "__call__", self._outermost(self._layer, layer.__call__)
        for convolution in _CONVOLUTIONS:
            yield convolution, "__call__", self._outermost(self._convolution, convolution.__call__)
        for kind in {type(one) for one in small if one.children()}:
            yield kind, "__call__", self._outermost(self._module, kind.__call__)

    def _outermost(self, written: Callable[..., Any], plain: Callable[..., Any]) -> Any:
        """Return a function that calls ``written`` instead of ``plain``, with that before its
        arguments, while parts are recorded, but not for what a slice calls."""

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._records:
                return written(plain, *args, **kwargs)
            return plain(*args, **kwargs)

        return call

    def _evaluated(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return a function for what a class evaluates on the way, to save memory."""

        def evaluate(*values: Any) -> None:
            if not self._records:
                plain(*values)
                return
            for _, value in tree_flatten(list(values)):
                if isinstance(value, mx.array):
                    self.pause(value)

        return evaluate

    def _attention(
        self,
        plain: Callable[..., mx.array],
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        *args: Any,
        **kwargs: Any,
    ) -> mx.array:
        count = queries.shape[-2]
        widths = queries.shape[-1] + values.shape[-1]
        multiplications = float(queries.size // queries.shape[-1] * keys.shape[-2] * widths)
        if any(isinstance(option, str) for option in (*args, *kwargs.values())):
            count = 1  # A mask that is given by name is one of the whole.

        def slice_of(begin: int, end: int) -> mx.array:
            def cut(option: Any) -> Any:
                along = isinstance(option, mx.array) and option.ndim > 1
                return option[..., begin:end, :] if along and option.shape[-2] == count else option

            options = {name: cut(option) for name, option in kwargs.items()}
            return plain(queries[..., begin:end, :], keys, values, *map(cut, args), **options)

        whole = functools.partial(plain, queries, keys, values, *args, **kwargs)
        inputs = (queries, keys, values)
        return self._recorded(_ATTENTION, multiplications, count, whole, slice_of, -2, inputs)

    def _layer(self, plain: Callable[..., mx.array], layer: Any, x: mx.array) -> mx.array:
        kind, each = type(layer).__name__, layer.weight.shape[0] * x.shape[-1]
        return self._rows(kind, each, functools.partial(plain, layer), x)

    def _module(self, plain: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(x, mx.array) and x.ndim in (2, 3) and mx.issubdtype(x.dtype, mx.floating):
            call, kind = functools.partial(plain, module), type(module).__name__
            each = sum(weight.size for _, weight in tree_flatten(module.parameters()))
            if self._large(kind, each * x.size / x.shape[-1]) and self._by_rows(module, call, x):
                return self._rows(kind, each, call, x)
        return plain(module, *args, **kwargs)

    def _convolution(self, plain: Callable[..., mx.array], layer: Any, x: mx.array) -> mx.array:
        whole = functools.partial(plain, layer, x)
        with self._plainly():
            made = whole()
        multiplications = float(made.size * math.prod(layer.weight.shape[1:]))
        steps = layer.stride if isinstance(layer.stride, tuple | list) else (layer.stride,)
        padding = layer.padding if isinstance(layer.padding, tuple | list) else (layer.padding,)
        adjacent = tuple(steps) == tuple(layer.weight.shape[1:-1]) and not any(padding)
        if x.shape[0] > 1 or not adjacent:
            # Each picture, or window of a sound, is alone.
            return self._recorded(
                type(layer).__name__, multiplications, x.shape[0], whole,
                lambda begin, end: plain(layer, x[begin:end]), 0, (x,),
            )  # fmt: skip
        step = steps[0]
        return self._recorded(
            type(layer).__name__, multiplications, made.shape[1], whole,
            lambda begin, end: plain(layer, x[:, step * begin : step * end]), 1, (x,),
        )  # fmt: skip

    def _rows(
        self, kind: str, multiplications: float, call: Callable[[mx.array], mx.array], x: mx.array
    ) -> mx.array:
        """Record a call that computes each row alone, with this many multiplications."""
        rows = x.shape[-2] if x.ndim > 1 else 1
        return self._recorded(
            kind, multiplications * x.size / x.shape[-1], rows, functools.partial(call, x),
            lambda begin, end: call(x[..., begin:end, :]), -2, (x,),
        )  # fmt: skip

    def _large(self, kind: str, multiplications: float) -> bool:
        return self._cost.seconds(kind, multiplications) > self._part_s

    def _recorded(
        self,
        kind: str,
        multiplications: float,
        count: int,
        whole: Callable[[], mx.array],
        slice_of: Callable[[int, int], mx.array],
        axis: int,
        inputs: Sequence[mx.array],
    ) -> mx.array:
        """Return what ``whole`` computes, in slices of ``count`` along ``axis`` if all of it would
        take longer than a part."""
        if count <= 1 or not self._large(kind, multiplications):
            with self._plainly():
                made = whole()
            self._pending_s += self._cost.seconds(kind, multiplications)
            self._pending.add(kind)
            if self._pending_s >= self._part_s:
                self.pause(made)
            return made
        for each in inputs:
            self.pause(each)
        all_s = self._cost.seconds(kind, multiplications)
        size = max(1, int(count * self._part_s / all_s))
        if size > _EVEN:
            size -= size % _EVEN
        cuts = [*range(0, count, size), count]
        with self._plainly():
            slices = [slice_of(begin, end) for begin, end in itertools.pairwise(cuts)]
        for made, (begin, end) in zip(slices, itertools.pairwise(cuts), strict=True):
            share = (end - begin) / count
            part = Part(made, all_s * share, frozenset({kind}), multiplications * share)
            self._parts.append(part)
        return mx.concatenate(slices, axis=axis)

    def _by_rows(self, module: Any, call: Callable[[mx.array], Any], x: mx.array) -> bool:
        """Return whether a module computes each row alone. It is tried with rows of noise."""
        weights = tuple((name, each.shape) for name, each in tree_flatten(module.parameters()))
        key = (type(module), weights)
        if key not in self._known_by_rows:
            shape = (*(1,) * (x.ndim - 2), _TRIAL_CUTS[-1], x.shape[-1])
            rows = mx.array(np.random.default_rng(0).normal(size=shape)).astype(x.dtype)
            with self._plainly():
                try:
                    self._known_by_rows[key] = _same_by_rows(call, rows)
                except Exception:  # A module may need anything but rows.
                    self._known_by_rows[key] = False
        return self._known_by_rows[key]

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """Let what is called within the block of the statement be no part of its own."""
        thread, self._thread = self._thread, None
        try:
            yield
        finally:
            self._thread = thread


def _same_by_rows(call: Callable[[mx.array], Any], rows: mx.array) -> bool:
    whole = call(rows)
    if not isinstance(whole, mx.array) or whole.shape[:-1] != rows.shape[:-1]:
        return False
    cut = [call(rows[..., begin:end, :]) for begin, end in itertools.pairwise(_TRIAL_CUTS)]
    off = mx.abs(mx.concatenate(cut, axis=-2).astype(mx.float32) - whole.astype(mx.float32))
    largest = mx.max(mx.abs(whole.astype(mx.float32)))
    # Of a module that makes nothing but zeros, nothing is known.
    return cast(bool, ((largest > 0) & (mx.max(off) <= _TRIAL_TOLERANCE * largest)).item())


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an object have another attribute within the block of the statement."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)  # It was inherited.
        else:
            setattr(owner, name, own)
