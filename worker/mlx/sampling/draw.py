"""Draws one token for each row, by each row's own temperature and filters, in as few operations as
there are kinds of rows.

A draw uses numbers that depend only on seed and position. It needs no array of noise over the
vocabulary, as Gumbel sampling does, but two numbers a row, which the host makes for all rows at
once. So a draw needs no random state that could depend on the other rows of the batch, and rounding
in the logits changes a token only if the draw falls on the very border of two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lmx.worker.engine.values import SequenceSampling
from lmx.worker.mlx.sampling.filters import (
    LANES,
    Filters,
    candidates,
    costly_filters,
    filter_all,
    filter_sorted,
    pad_to_lanes,
    sharpness,
    weigh,
)
from lmx.worker.scheduling.seeds import WORD, splitmix64


def position_keys(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Return the 64-bit keys of draws: the same for the same seed and position."""
    return splitmix64(seeds + (positions + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15))


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: Sequence[int], steps: int = 1
) -> npt.NDArray[np.float32]:
    """Return two numbers for each row, in [0, 1) and in steps of 2^-24, at its position and at
    those that follow; [steps, 2, rows, 1]."""
    following = np.asarray(positions, np.uint64) + np.arange(steps, dtype=np.uint64)[:, None]
    keys = position_keys(seeds, following)
    parts = np.stack([keys >> np.uint64(40), (keys >> np.uint64(16)) & np.uint64(0xFF_FFFF)], 1)
    return (parts.astype(np.float64) / 2**24).astype(np.float32)[..., None]


class _Numbers:
    """The numbers of some rows' draws. In most steps each row is one position further than in the
    last one, so that they are made for many steps at once."""

    def __init__(self, seeds: npt.NDArray[np.uint64]) -> None:
        self._seeds = seeds
        self._made = uniforms(seeds, [0] * len(seeds), 0)
        self._used_steps = 0
        self._following: list[int] = []
        """The positions that come after those of the last call."""

    def at(self, positions: list[int]) -> tuple[mx.array, mx.array]:
        """Return both numbers of each row, [rows, 1]."""
        if positions != self._following:
            self._made, self._used_steps = uniforms(self._seeds, positions), 0
        elif self._used_steps == len(self._made):
            self._made, self._used_steps = uniforms(self._seeds, positions, _AHEAD_STEPS), 0
        first, second = self._made[self._used_steps]
        self._used_steps += 1
        self._following = [position + 1 for position in positions]
        return mx.array(first), mx.array(second)


def draw(weights: mx.array, first: mx.array, second: mx.array) -> mx.array:
    """Return a column for each row, with chances in proportion to the weights; [rows].

    A column of weight 0 is never drawn; each row must have a weight above 0. ``first`` and
    ``second`` are a number for each row, [rows, 1].
    """
    if weights.shape[-1] <= _ONE_SUM or weights.shape[-1] % LANES:
        return _draw_at_once(weights, first)
    return _draw_by_lanes(weights, first, second)


# Compiled functions take the place of many small operations: each of those costs the host as much
# time as the device.


@mx.compile
def _draw_at_once(weights: mx.array, number: mx.array) -> mx.array:
    return _first_beyond(weights, number)


@mx.compile
def _draw_by_lanes(weights: mx.array, first: mx.array, second: mx.array) -> mx.array:
    """Draw a lane, and then one of its columns: a single running sum of the float32 of a whole
    vocabulary would lose the unlikely ones."""
    by_lane = weights.reshape(weights.shape[0], -1, LANES)
    lane = _first_beyond(by_lane.sum(axis=1), first)
    in_lane = mx.take_along_axis(by_lane, lane[:, None, None], axis=-1)[..., 0]
    return _first_beyond(in_lane, second) * LANES + lane


def _first_beyond(weights: mx.array, number: mx.array) -> mx.array:
    """Return the first column whose sum of weights up to it is beyond ``number`` of the total.

    If sums are made in parallel, rounding can leave none: then it is the heaviest column.
    """
    sums = mx.cumsum(weights, axis=-1)
    beyond = (sums > number * sums[:, -1:]) & (weights > 0)
    # Of equal ones, the first is taken.
    return mx.argmax(mx.where(beyond, mx.inf, weights), axis=-1)


_ONE_SUM: Final = 1024
"""Up to this many weights are added up in one go: what rounding takes from the unlikely ones is
then less than a ten-thousandth of the chances."""

_AHEAD_STEPS: Final = 64
"""For this many steps numbers are made at once."""

_GREEDY_BELOW: Final = 1e-5
"""In float32 a division by much less makes every logit infinite. At this temperature, tokens
that differ by a thousandth in their logits differ by a factor of e^100 in their chances."""

_FEWEST_CANDIDATES: Final = 64


@dataclass(frozen=True, slots=True)
class _Kind:
    """Decides by which operations a row is drawn. It depends only on the row itself."""

    greedy: bool
    candidates: int = 0
    """From how many tokens the row draws; 0: from all."""
    filters: tuple[bool, ...] = ()
    """Which of the costly filters it has."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one kind, in order."""

    kind: _Kind
    places: Sequence[int]
    """The rows' indices in the batch."""
    indices: mx.array | None
    """The same as an array; None: all rows."""
    sharpness: mx.array
    """See :func:`weigh`."""
    top_k: mx.array
    filters: Filters
    numbers: _Numbers


class DrawGroups:
    """The rows of a batch, sorted by kind once, for as long as the batch has these rows."""

    def __init__(self, rows: Sequence[SequenceSampling]) -> None:
        kinds: dict[_Kind, list[int]] = {}
        for index, row in enumerate(rows):
            kinds.setdefault(_kind(row), []).append(index)
        self._greedy = set(kinds) == {_Kind(greedy=True)}
        self._groups = [_make_group(kind, rows, places) for kind, places in kinds.items()]
        order = [index for places in kinds.values() for index in places]
        # Puts the groups' tokens into the order of the rows; None: they are in that order already.
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


def warm_up_draws(vocabulary: int) -> None:
    """Draw once in every way of which a compiled function is a part, for one row and for several.

    On a CPU, MLX runs a compiler for seconds if no process has done so since the machine was
    started; the first requests must not wait for that.
    """
    ways = [SequenceSampling(1.0), SequenceSampling(1.0, top_k=1)]
    if mx.metal.is_available():
        ways += [SequenceSampling(1.0, top_p=0.9), SequenceSampling(1.0, typical_p=0.9)]
    for sampling in ways:
        for rows in (1, 2):
            group = DrawGroups([sampling] * rows)
            mx.eval(group.draw(mx.zeros((rows, vocabulary)), [0] * rows))


def _kind(sampling: SequenceSampling) -> _Kind:
    if sampling.temperature < _GREEDY_BELOW:
        return _Kind(greedy=True)
    count = 0
    if sampling.top_k > 0:
        count = _FEWEST_CANDIDATES
        while count < sampling.top_k:
            count *= 4
    return _Kind(False, count, costly_filters(sampling))


def _make_group(kind: _Kind, batch: Sequence[SequenceSampling], places: list[int]) -> _Group:
    rows = [batch[index] for index in places]
    return _Group(
        kind,
        places,
        indices=None if len(places) == len(batch) else mx.array(places),
        sharpness=mx.array([[sharpness(max(row.temperature, _GREEDY_BELOW))] for row in rows]),
        top_k=mx.array([[row.top_k] for row in rows]),
        filters=Filters.of(rows),
        numbers=_Numbers(np.array([row.seed & WORD for row in rows], np.uint64)),
    )


def _draw_group(group: _Group, logits: mx.array, positions: Sequence[int]) -> mx.array:
    chosen = logits if group.indices is None else logits[group.indices]
    if group.kind.greedy:
        return mx.argmax(chosen, axis=-1)
    first, second = group.numbers.at([positions[index] for index in group.places])
    chosen = chosen.astype(mx.float32)
    if group.kind.candidates:
        values, tokens = candidates(chosen, group.kind.candidates)
        weights = filter_sorted(weigh(values, group.sharpness), group.top_k, group.filters)
        drawn = draw(weights, first, second)[:, None]
        return mx.take_along_axis(tokens, drawn, axis=-1)[:, 0].astype(mx.uint32)
    if chosen.shape[-1] > _ONE_SUM or any(group.kind.filters):
        chosen = pad_to_lanes(chosen)
    weights = filter_all(weigh(chosen, group.sharpness), group.filters)
    return draw(weights, first, second)
