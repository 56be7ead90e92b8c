"""Norms and rotary positions of few operations, for a CPU.

On a GPU ``mx.fast.rms_norm`` and ``mx.fast.rope`` are one kernel each. On a CPU, mlx 0.32.4 makes a
norm of a dozen small operations, and a rotation of thirty. It computes the same cosines and sines
in each layer, for queries and for keys. While rows decode, an operation costs more than what it
computes. Here ``mx.compile`` joins the elementwise ones, and the cosines and sines are computed
once for all layers, where the rows' offsets are known to be the same for all. The results are the
same to the last bit, except where a compiler joins a product and a sum into an operation that
rounds once, as those for ARM may do.

Only float32 is computed so, which a CPU needs anyway: 16-bit weights are far too slow on it. All
that is unusual is left to mlx, and so are its errors.
"""

import math
import threading
from collections import OrderedDict, deque
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from lmx.worker.mlx.device.gpu import on_gpu

_MOST_TABLES: Final = 8
"""Some models have layers of two kinds, each with positions of its own; and there may be
buckets."""

_MOST_OFFSETS: Final = 64
"""Those of many buckets, of which each has some in a step. They are a number for each row."""

_MOST_NUMBERS: Final = 1 << 16
"""How large a table may be to be kept. One for a long part of a prompt would take megabytes, and
what it spares is nothing next to that part."""

_mlx_rms_norm = mx.fast.rms_norm
_mlx_rope = mx.fast.rope


def use_few_operations() -> None:
    """Have all models of this process computed so from now on. Does nothing on a GPU."""
    if not on_gpu():
        mx.fast.rms_norm, mx.fast.rope = rms_norm, rope


def rms_norm(x: mx.array, weight: mx.array | None, eps: float, **more: Any) -> mx.array:
    """Return what ``mx.fast.rms_norm`` returns."""
    normed: mx.array
    if (
        more
        or weight is None
        or not x.dtype == weight.dtype == mx.float32
        or weight.shape != x.shape[-1:]
    ):
        normed = _mlx_rms_norm(x, weight, eps, **more)
    else:
        squares = mx.square(x).sum(axis=-1, keepdims=True)
        normed = _scaled(x, squares, weight, _number(1 / x.shape[-1]), _number(eps))
    return normed


def rope(
    a: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None = None,
    **more: Any,
) -> mx.array:
    """Return what ``mx.fast.rope`` returns."""
    found = None
    if (
        not more
        and a.dtype == mx.float32
        and a.ndim == 4
        and 0 < dims <= a.shape[-1]
        and dims % 2 == 0
        and (base is None) is not (freqs is None)
        and _is_offset(offset, a.shape[0])
    ):
        found = tables.find(a.shape[2], dims, traditional, base, scale, offset, freqs)
    rotated: mx.array
    if found is None:
        rotated = _mlx_rope(
            a,
            dims,
            traditional=traditional,
            base=base,
            scale=scale,
            offset=offset,
            freqs=freqs,
            **more,
        )
        return rotated
    whole = dims == a.shape[-1]
    turned = a if whole else a[..., :dims]
    if traditional:
        partners = turned.reshape(*turned.shape[:-1], -1, 2)[..., ::-1].flatten(-2)
    else:
        first, second = mx.split(turned, 2, axis=-1)
        partners = mx.concatenate([second, first], axis=-1)
    rotated = _rotated(turned, partners, *found)
    return rotated if whole else mx.concatenate([rotated, a[..., dims:]], axis=-1)


class RopeTables:
    """The cosines and sines that were needed last."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[Any, ...], tuple[mx.array, mx.array, Any]] = OrderedDict()
        self._offsets: deque[mx.array] = deque(maxlen=_MOST_OFFSETS)
        self._freqs: dict[tuple[mx.Dtype, bytes], mx.array] = {}

    def name_offsets(self, offset: mx.array) -> None:
        """Note that this array of offsets is never changed in place, as most caches change
        theirs."""
        self._offsets.appendleft(offset)

    def share_freqs(self, model: nn.Module) -> None:
        """Give layers whose frequencies are equal the same array of them. Only these have tables:
        of others it is not known that they are not made again at each call. Does nothing where the
        functions of this module are not used."""
        if mx.fast.rope is not rope:
            return
        for module in model.modules():
            for name, value in module.items():
                if name.endswith("freqs") and isinstance(value, mx.array) and value.ndim == 1:
                    content = np.array(value.astype(mx.float32)).tobytes()
                    module[name] = self._freqs.setdefault((value.dtype, content), value)

    def clear(self) -> None:
        """Free the tables."""
        self._tables.clear()
        self._offsets.clear()

    def find(
        self,
        tokens: int,
        dims: int,
        traditional: bool,
        base: float | None,
        scale: float,
        offset: int | mx.array,
        freqs: mx.array | None,
    ) -> tuple[mx.array, mx.array] | None:
        """Return the factors [1 or rows, 1, tokens, dims] of what is rotated and of its partners.

        None if they are not kept: they would be many, or there is an array that may change or
        would not be known again.
        """
        rows, where = 1, offset
        if isinstance(offset, mx.array):
            rows, where = offset.size, id(offset)
            if not any(offset is one for one in self._offsets):
                return None
        if freqs is not None and not any(freqs is one for one in self._freqs.values()):
            return None
        if rows * tokens * dims > _MOST_NUMBERS:
            return None
        # What the identities belong to is kept with the table, so that no other array gets them. An
        # array that is not computed yet belongs to its thread.
        thread = threading.get_ident()
        key = (thread, tokens, dims, traditional, base, scale, type(offset), where, id(freqs))
        found = self._tables.get(key)
        if found is None:
            angles = _angles(tokens, dims, base, scale, offset, freqs)
            found = (*_factors(angles, traditional), (offset, freqs))
            self._tables[key] = found
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(key)
        return found[:2]


tables: Final = RopeTables()
"""Those of this process. They are freed when its model rests."""


def _is_offset(offset: Any, rows: int) -> bool:
    if isinstance(offset, mx.array):
        one_each = offset.ndim == 1 and offset.size in (1, rows)
        return (one_each or offset.ndim == 0) and mx.issubdtype(offset.dtype, mx.integer)
    return isinstance(offset, int)


def _angles(
    tokens: int,
    dims: int,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None,
) -> mx.array:
    """Return the angles [1 or rows, 1, tokens, dims / 2], computed and rounded as mlx does."""
    if freqs is not None:
        inverse = mx.reciprocal(freqs).astype(mx.float32)
    else:
        assert base is not None
        step = np.float32(math.log(np.float32(base))) / np.float32(dims // 2)
        inverse = mx.exp(
            mx.arange(0, -(dims // 2), -1, dtype=mx.float32) * mx.array(float(step), mx.float32)
        )
    if isinstance(offset, mx.array) and offset.size > 1:
        offset = offset.reshape(-1, 1)
    positions = (mx.arange(tokens, dtype=mx.float32) + offset) * mx.array(scale, mx.float32)
    return (positions[..., None] * inverse).reshape(-1, 1, tokens, dims // 2)


def _factors(angles: mx.array, traditional: bool) -> tuple[mx.array, mx.array]:
    """Return a factor for each number that is rotated, and one for its partner: the number of the
    pair that is turned into it."""
    cosines, sines = mx.cos(angles), mx.sin(angles)
    if traditional:
        return mx.repeat(cosines, 2, axis=-1), mx.stack([-sines, sines], axis=-1).flatten(-2)
    return mx.concatenate([cosines] * 2, axis=-1), mx.concatenate([-sines, sines], axis=-1)


def _scale(
    x: mx.array, squares: mx.array, weight: mx.array, share: mx.array, eps: mx.array
) -> mx.array:
    return x * mx.rsqrt(squares * share + eps) * weight


def _rotate(turned: mx.array, partners: mx.array, own: mx.array, theirs: mx.array) -> mx.array:
    return turned * own + partners * theirs


# Without shapes, one compiled function is for texts of all lengths.
_scaled: Any = mx.compile(_scale, shapeless=True)
_rotated: Any = mx.compile(_rotate, shapeless=True)

_numbers: dict[float, mx.array] = {}
"""As many as there are widths and epsilons in the models of this process."""


def _number(value: float) -> mx.array:
    """Return a number as an array. As a number it would be compiled into the function, and a
    compiler would run for each model."""
    found = _numbers.get(value)
    if found is None:
        found = _numbers[value] = mx.array(value, mx.float32)
    return found
