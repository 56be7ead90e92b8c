"""Drawing a batch of logits by each row's own temperature and filters, in as few operations
as there are kinds of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lmx.worker.engine import RowSampling
from lmx.worker.mlx_draw import WORD, draw, uniforms
from lmx.worker.mlx_filters import (
    Filters,
    candidates,
    filter_all,
    filter_sorted,
    pad_to_lanes,
    weigh,
)

_GREEDY_BELOW: Final = 1e-5
"""In float32 a division by much less makes every logit infinite. At this temperature, tokens
that differ by a thousandth in their logits differ by a factor of e^100 in their chances."""

_FEWEST_CANDIDATES: Final = 64


@dataclass(frozen=True, slots=True)
class _Kind:
    """What decides by which operations a row is drawn; it depends on the row alone.

    ``candidates``: from how many tokens; 0: from all. Else what of the costly there is.
    """

    greedy: bool
    candidates: int = 0
    typical_p: bool = False
    top_p: bool = False


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one kind, in order. ``places`` are their indices; ``indices`` too, None: all."""

    kind: _Kind
    places: Sequence[int]
    indices: mx.array | None
    temperature: mx.array
    top_k: mx.array
    filters: Filters
    seeds: npt.NDArray[np.uint64]


class DrawGroups:
    """The rows of a batch, sorted by kind once, for as long as the batch has these rows."""

    def __init__(self, rows: Sequence[RowSampling]) -> None:
        kinds: dict[_Kind, list[int]] = {}
        for index, row in enumerate(rows):
            kinds.setdefault(_kind(row), []).append(index)
        self._greedy = set(kinds) == {_Kind(greedy=True)}
        self._groups = [_make_group(kind, rows, places) for kind, places in kinds.items()]
        order = [index for places in kinds.values() for index in places]
        # Puts what the groups drew into the rows' order; None: it is in that order.
        self._back: mx.array | None = None
        if order != sorted(order):
            self._back = mx.array(sorted(range(len(order)), key=order.__getitem__))

    def draw(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        """Return a token for each row of ``logits`` [rows, vocabulary]; not evaluated.

        The number of tokens before it, ``positions``, and the row's seed decide the draw.
        """
        if self._greedy:
            return mx.argmax(logits, axis=-1)
        parts = [_draw_group(group, logits, positions) for group in self._groups]
        drawn = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        return drawn if self._back is None else drawn[self._back]


def _kind(sampling: RowSampling) -> _Kind:
    if sampling.temperature < _GREEDY_BELOW:
        return _Kind(greedy=True)
    count = 0
    if sampling.top_k > 0:
        count = _FEWEST_CANDIDATES
        while count < sampling.top_k:
            count *= 4
    return _Kind(False, count, sampling.typical_p < 1, sampling.top_p < 1)


def _make_group(kind: _Kind, batch: Sequence[RowSampling], places: list[int]) -> _Group:
    rows = [batch[index] for index in places]

    def column(value: Callable[[RowSampling], float]) -> mx.array:
        return mx.array([[value(row)] for row in rows])

    return _Group(
        kind,
        places,
        indices=None if len(places) == len(batch) else mx.array(places),
        temperature=column(lambda row: row.temperature),
        top_k=mx.array([[row.top_k] for row in rows]),
        filters=Filters(
            typical_p=column(lambda row: row.typical_p) if kind.typical_p else None,
            top_p=column(lambda row: row.top_p) if kind.top_p else None,
            min_p=column(lambda row: row.min_p) if any(row.min_p > 0 for row in rows) else None,
        ),
        seeds=np.array([row.seed & WORD for row in rows], np.uint64),
    )


def _draw_group(group: _Group, logits: mx.array, positions: Sequence[int]) -> mx.array:
    chosen = logits if group.indices is None else logits[group.indices]
    if group.kind.greedy:
        return mx.argmax(chosen, axis=-1)
    numbers = mx.array(uniforms(group.seeds, [positions[index] for index in group.places]))
    chosen = chosen.astype(mx.float32)
    if group.kind.candidates:
        values, tokens = candidates(chosen, group.kind.candidates)
        weights = filter_sorted(weigh(values, group.temperature), group.top_k, group.filters)
        drawn = mx.take_along_axis(tokens, draw(weights, numbers), axis=-1)
    else:
        weights = filter_all(weigh(pad_to_lanes(chosen), group.temperature), group.filters)
        drawn = draw(weights, numbers)
    return drawn[:, 0].astype(mx.uint32)
