"""The rows that decode, in lanes: a batch for each group of rows of similar length that have the
same adapter. The rows of a model that can't batch have a lane each.

One lane is stepped at a time, and returns its output before one of longer rows is stepped. Lanes of
similar length are stepped one after the other, each as often as the others. A lane decodes ahead
(:mod:`lmx.worker.mlx.decoding.decode`) if it is the only one, or the only one of the shortest rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from lmx.worker.mlx.decoding.decode import DecodeBatch, DecodeStep, Joining
from lmx.worker.mlx.decoding.decode_row import DecodeRow
from lmx.worker.mlx.decoding.rollback import Blocks
from lmx.worker.mlx.model.forward import Forward, PromptCache
from lmx.worker.mlx.sampling.sampler import RowSampler
from lmx.worker.scheduling.length_buckets import BucketScheduler, batchable


class FoundRow(NamedTuple):
    """A row and its cache."""

    row: DecodeRow
    prompt_cache: PromptCache
    place: int | None
    """Its place in the cache; None if the cache is this row's alone."""


class DecodeLanes:
    """All rows that decode. ``together``: whether the model can batch. Engine thread."""

    def __init__(
        self, forward: Forward, sampler: RowSampler, blocks: Blocks, *, together: bool
    ) -> None:
        self._together = together
        self._blocks = blocks
        self._forward = forward
        self._sampler = sampler
        self._lanes: list[DecodeBatch] = []
        self._turns = BucketScheduler()
        self._change_s = 0.0
        """How long the last change to a lane of longer rows took, if that lane has not stepped
        since."""

    def __bool__(self) -> bool:
        """Whether a row decodes."""
        return bool(self._lanes)

    @property
    def rows(self) -> Sequence[DecodeRow]:
        """All rows that decode."""
        return [row for lane in self._lanes for row in lane.rows]

    @property
    def only(self) -> DecodeBatch | None:
        """The lane with all rows; None if there is none, or if there are several."""
        return self._lanes[0] if len(self._lanes) == 1 else None

    @property
    def ahead(self) -> bool:
        """Whether a token is drawn and not returned."""
        return any(lane.ahead for lane in self._lanes)

    @property
    def long_next(self) -> bool:
        """Whether a lane of longer rows has its turn."""
        return len(self._lanes) > 1 and self._turns.next(self._in_turn()) is not self._lanes[0]

    def join(self, joining: Joining) -> Sequence[tuple[int, Exception]]:
        """Add a row, see :meth:`DecodeBatch.join`."""
        tokens, adapter = len(joining.row.tokens), joining.row.adapter
        for lane in self._lanes if self._together else ():
            lengths = [tokens, *(len(row.tokens) for row in lane.rows)]
            if lane.adapter == adapter and batchable(min(lengths), max(lengths)):
                return lane.join(joining)
        lane = DecodeBatch(self._forward.with_adapter(adapter), self._sampler, self._blocks)
        failed = lane.join(joining)
        if not failed:
            self._lanes.append(lane)
            self._lanes.sort(key=_longest)
        return failed

    def step(self, step: Callable[[DecodeBatch], DecodeStep], *, longer: bool) -> DecodeStep:
        """Step the shortest lanes, or, with ``longer``, the one that has its turn.

        A shortest lane that is alone decodes ahead. Before another lane is stepped, what it has
        drawn is returned, by a call that steps nothing.
        """
        if (only := self.only) is not None:
            return step(only)
        in_turn = self._in_turn()
        lane = self._turns.next(in_turn) if longer else in_turn[0]
        assert isinstance(lane, DecodeBatch)
        stepped = self._shortest() if lane is in_turn[0] else [lane]
        ahead = lane if stepped == in_turn[:1] else None
        began_s = time.perf_counter()
        if any(other.ahead for other in self._lanes if other is not ahead):
            # The shortest rows would not have to wait for their tokens if no others had a turn.
            made = self.flush()
            self._change_s = time.perf_counter() - began_s
            return made
        if ahead is not None:
            made = ahead.step()
        else:
            made = DecodeStep(())
            for each in stepped:
                made = _both(made, _both(each.step(), each.flush()))
        took_s = time.perf_counter() - began_s
        if lane is not in_turn[0]:
            took_s, self._change_s = took_s + self._change_s, 0.0
        self._turns.record(in_turn, lane, took_s)
        return made

    def flush(self) -> DecodeStep:
        """Return the tokens that are drawn and not returned, see :meth:`DecodeBatch.flush`."""
        made = DecodeStep(())
        for lane in self._lanes:
            if lane.ahead:
                made = _both(made, lane.flush())
        return made

    def leave(self, sequence_ids: Collection[int]) -> None:
        """Let rows go; ignores those that are not here."""
        for lane in self._lanes:
            lane.leave(sequence_ids)
        self._lanes = [lane for lane in self._lanes if lane.rows]

    def give_up_slots(self) -> None:
        """Free the memory that is kept for rows that may join."""
        for lane in self._lanes:
            lane.give_up_slots()

    def find(self, sequence_id: int) -> FoundRow | None:
        """Return a row; None: it is not here."""
        for lane in self._lanes:
            if (here := lane.find(sequence_id)) is not None:
                row, place = here
                return FoundRow(row, lane.prompt_cache, place)
        return None

    def _shortest(self) -> list[DecodeBatch]:
        """Return the shortest lane, and those about as short that could not be one with it: one of
        each other adapter, or all of them if the model can't batch."""
        least = _longest(self._lanes[0])
        found: dict[str | int, DecodeBatch] = {}
        for place, lane in enumerate(self._lanes):
            longest = _longest(lane)
            if batchable(min(least, longest), max(least, longest)):
                found.setdefault(lane.adapter if self._together else place, lane)
        return list(found.values())

    def _in_turn(self) -> list[DecodeBatch]:
        """Return the lanes that take turns: the shortest one, which stands for all that are about
        as short, and those of longer rows."""
        short = self._shortest()
        return [short[0], *(lane for lane in self._lanes if lane not in short)]


def _longest(lane: DecodeBatch) -> int:
    return max(len(row.tokens) for row in lane.rows)


def _both(one: DecodeStep, other: DecodeStep) -> DecodeStep:
    failed = {sequence_id for sequence_id, _ in one.failed}
    return DecodeStep(
        [*one.tokens, *(token for token in other.tokens if token.sequence_id not in failed)],
        [*one.failed, *other.failed],
        [*one.drafts, *other.drafts],
    )
