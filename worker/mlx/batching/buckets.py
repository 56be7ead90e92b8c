"""The rows that decode, in buckets: a batch for each group of rows of similar length that have the
same adapter. The rows of a model that can't batch have a bucket each. Rows of the background have
buckets of their own, which stand still while there is other work.

One bucket is stepped at a time, and returns its output before one of longer rows is stepped.
Buckets of similar length are stepped one after the other, each as often as the others. The last row
of a bucket joins another one as soon as it may. A bucket decodes ahead
(:mod:`lmx.worker.mlx.decoding.decode`) if it is the only one, or the only one of the shortest rows.
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from lmx.worker.engine.interfaces import Ranks
from lmx.worker.mlx.decoding.decode import DecodeBatch, DecodeStep, Joining
from lmx.worker.mlx.decoding.rollback import Blocks
from lmx.worker.mlx.decoding.sequence import DecodeSequence
from lmx.worker.mlx.model.forward import Forward, PromptCache
from lmx.worker.mlx.sampling.sampler import BatchSampler
from lmx.worker.scheduling.length_buckets import BucketScheduler, batchable


class FoundSequence(NamedTuple):
    """A row and its cache."""

    row: DecodeSequence
    prompt_cache: PromptCache
    place: int | None
    """Its place in the cache; None if the cache is this row's alone."""


class DecodeBuckets:
    """All rows that decode. ``together``: whether the model can batch. Engine thread."""

    def __init__(
        self,
        forward: Forward,
        sampler: BatchSampler,
        blocks: Blocks,
        *,
        together: bool,
        ranks: Ranks | None = None,
    ) -> None:
        self._together = together
        self._ranks = ranks
        self._blocks = blocks
        self._forward = forward
        self._sampler = sampler
        self._buckets: list[DecodeBatch] = []
        self._scheduler = BucketScheduler()
        self._change_s = 0.0
        """How long the last change to a bucket of longer rows took, if that bucket has not stepped
        since."""
        self.held = False
        """Whether the rows of the background stand still. Else there are no others."""

    def __bool__(self) -> bool:
        """Whether there is a row."""
        return bool(self._buckets)

    @property
    def has_foreground(self) -> bool:
        """Whether there is a row that is none of the background."""
        return any(not bucket.background for bucket in self._buckets)

    @property
    def active(self) -> Sequence[DecodeBatch]:
        """The buckets that may step, that of the shortest rows first."""
        active = [bucket for bucket in self._buckets if not (self.held and bucket.background)]
        # Each step asks for it several times, most with one bucket of many rows.
        return sorted(active, key=_longest) if len(active) > 1 else active

    @property
    def rows(self) -> Sequence[DecodeSequence]:
        """All rows that decode."""
        return [row for bucket in self._buckets for row in bucket.rows]

    @property
    def only(self) -> DecodeBatch | None:
        """The only bucket that may step; None if there is none, or if there are several."""
        active = self.active
        return active[0] if len(active) == 1 else None

    @property
    def ahead(self) -> bool:
        """Whether a token is drawn and not returned."""
        return any(bucket.ahead for bucket in self._buckets)

    @property
    def longer_due(self) -> bool:
        """Whether a bucket of longer rows has its turn."""
        active = self.active
        return len(active) > 1 and self._next(self._in_turn()) is not active[0]

    def join(self, joining: Joining) -> Sequence[tuple[int, Exception]]:
        """Add a row, see :meth:`DecodeBatch.join`."""
        row = joining.row
        if (found := self._bucket_for(row, self._buckets)) is not None:
            return found.join(joining)
        forward = self._forward.with_adapter(row.adapter)
        bucket = DecodeBatch(forward, self._sampler, self._blocks, background=row.background)
        failed = bucket.join(joining)
        if not failed:
            self._buckets.append(bucket)
        return failed

    def _bucket_for(
        self, row: DecodeSequence, buckets: Sequence[DecodeBatch]
    ) -> DecodeBatch | None:
        """Return the bucket that a row may join: of several, that of the nearest length. None: it
        may join none."""
        kind = (row.adapter, row.background)
        tokens = len(row.tokens)
        found = []
        for bucket in buckets if self._together else ():
            if (bucket.adapter, bucket.background) != kind:
                continue
            lengths = [tokens, *(len(each.tokens) for each in bucket.rows)]
            if batchable(min(lengths), max(lengths)):
                found.append(bucket)
        return min(found, key=lambda bucket: abs(_longest(bucket) - tokens), default=None)

    def step(self, step: Callable[[DecodeBatch], DecodeStep], *, longer: bool) -> DecodeStep:
        """Step the shortest buckets, or, with ``longer``, the one that has its turn.

        A shortest bucket that is alone decodes ahead. Before another bucket is stepped, what it has
        drawn is returned, by a call that steps nothing.
        """
        if (merged := self._merge()) is not None:
            return merged
        if (only := self.only) is not None:
            return step(only)
        in_turn = self._in_turn()
        bucket = self._next(in_turn) if longer else in_turn[0]
        stepped = self._shortest() if bucket is in_turn[0] else [bucket]
        ahead = bucket if stepped == in_turn[:1] else None
        began_s = time.perf_counter()
        if any(other.ahead for other in self._buckets if other is not ahead):
            # The shortest rows would not have to wait for their tokens if no others had a turn.
            made = self.flush()
            self._change_s = time.perf_counter() - began_s
            return made
        if ahead is not None:
            made = ahead.step()
        else:
            made = DecodeStep(())
            for each in stepped:
                made = _both(made, each.step())
                # A row that has all of its tokens is still there until the caller removes it.
                if all(row.left_tokens > 0 for row in each.rows):
                    made = _both(made, each.flush())
        took_s = time.perf_counter() - began_s
        if bucket is not in_turn[0]:
            took_s, self._change_s = took_s + self._change_s, 0.0
        self._scheduler.record(in_turn, bucket, took_s)
        return made

    def flush(self) -> DecodeStep:
        """Return the tokens that are drawn and not returned, see :meth:`DecodeBatch.flush`."""
        made = DecodeStep(())
        for bucket in self._buckets:
            if bucket.ahead:
                made = _both(made, bucket.flush())
        return made

    def leave(self, sequence_ids: Collection[int]) -> None:
        """Let rows go; ignores those that are not here."""
        for bucket in self._buckets:
            bucket.leave(sequence_ids)
        self._buckets = [bucket for bucket in self._buckets if bucket.rows]

    def give_up_slots(self) -> None:
        """Free the memory that is kept for rows that may join."""
        for bucket in self._buckets:
            bucket.give_up_slots()

    def find(self, sequence_id: int) -> FoundSequence | None:
        """Return a row; None: it is not here."""
        for bucket in self._buckets:
            if (here := bucket.find(sequence_id)) is not None:
                row, place = here
                return FoundSequence(row, bucket.prompt_cache, place)
        return None

    def _merge(self) -> DecodeStep | None:
        """Let the last row of a bucket join another one that it may decode with now. If tokens of
        theirs are drawn, return those; they join next time."""
        active = self.active
        for bucket in active if len(active) > 1 else ():
            joining = bucket.last
            others = [each for each in active if each is not bucket]
            if joining is None or (found := self._bucket_for(joining.row, others)) is None:
                continue
            if bucket.ahead or found.ahead:
                return self.flush()
            found.join(joining)
            self._buckets.remove(bucket)
            break
        return None

    def _next(self, in_turn: Sequence[DecodeBatch]) -> DecodeBatch:
        """Return the bucket that has its turn, by the time that the others took."""
        bucket = self._scheduler.next(in_turn)
        assert isinstance(bucket, DecodeBatch)
        if self._ranks is None:
            return bucket
        (place,) = self._ranks.settle("bucket", (in_turn.index(bucket),))
        return in_turn[place]

    def _shortest(self) -> list[DecodeBatch]:
        """Return the shortest bucket, and those about as short that could not be one with it: one
        of each other adapter, or all of them if the model can't batch."""
        active = self.active
        least = _longest(active[0])
        found: dict[str | int, DecodeBatch] = {}
        for place, bucket in enumerate(active):
            longest = _longest(bucket)
            if batchable(min(least, longest), max(least, longest)):
                found.setdefault(bucket.adapter if self._together else place, bucket)
        return list(found.values())

    def _in_turn(self) -> list[DecodeBatch]:
        """Return the buckets that take turns: the shortest one, which stands for all that are about
        as short, and those of longer rows."""
        short = self._shortest()
        return [short[0], *(bucket for bucket in self.active if bucket not in short)]


def _longest(bucket: DecodeBatch) -> int:
    return max(len(row.tokens) for row in bucket.rows)


def _both(one: DecodeStep, other: DecodeStep) -> DecodeStep:
    failed = {sequence_id for sequence_id, _ in one.failed}
    return DecodeStep(
        [*one.tokens, *(token for token in other.tokens if token.sequence_id not in failed)],
        [*one.failed, *other.failed],
        [*one.drafts, *other.drafts],
    )
