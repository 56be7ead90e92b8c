"""Estimates the KV caches of the rows in flight, and decides whether one more row fits. Pure.

A row is counted with its prompt and the first part of its answer; the estimate grows with the
answer, some tokens ahead. Cached prefixes save computing, but no memory: a row has its own copy of
them.

Rows that decode together have one array for all of them, as long as the longest of them. So each
row is counted with the length of the longest row that it may decode together with
(:mod:`lmx.worker.scheduling.length_buckets`). A beam search is a batch of its own, of its width.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from lmx.protocol.models.memory import KvLayers, kv_bytes
from lmx.worker.engine.values import SequenceRequest
from lmx.worker.scheduling.length_buckets import SequenceLength, padded_tokens

ANSWER_TOKENS: Final = 1024
"""How much of an answer is counted at its beginning: most answers that may be longer never are."""

AHEAD_TOKENS: Final = 256
"""A row is counted with this many tokens more than it has made."""

_FIRST_TOKENS: Final = ANSWER_TOKENS - AHEAD_TOKENS
"""Until a row has made more tokens than this, its first estimate holds."""


@dataclass(slots=True)
class _Counted:
    """A row that is counted."""

    prompt_tokens: int
    max_tokens: int
    width: int | None
    """The width of its beam search; None for a row of the batch."""
    generated_tokens: int = 0
    changes_at_tokens: int = sys.maxsize
    """The sum over all rows stays as it is until the row has this many tokens."""

    @property
    def tokens(self) -> int:
        """The estimated length of each of its sequences."""
        answer_tokens = max(ANSWER_TOKENS, self.generated_tokens + AHEAD_TOKENS)
        return self.prompt_tokens + min(self.max_tokens, answer_tokens)

    @property
    def present_tokens(self) -> int:
        """The present length of each of its sequences."""
        return self.prompt_tokens + self.generated_tokens

    def next_change_tokens(self, step_tokens: int) -> int:
        """Return how many tokens it will have made when its present length, or the estimated one,
        next begins a step of a cache."""
        generated_tokens = self.generated_tokens + 1
        changes_at = _step_begin(self.prompt_tokens, generated_tokens, step_tokens)
        estimated_at = _step_begin(
            self.prompt_tokens + AHEAD_TOKENS, max(generated_tokens, _FIRST_TOKENS + 1), step_tokens
        )
        return min(changes_at, estimated_at)


def _step_begin(before_tokens: int, from_tokens: int, step_tokens: int) -> int:
    """Return the least number from ``from_tokens`` on that begins a step with ``before_tokens``."""
    return from_tokens + (1 - before_tokens - from_tokens) % step_tokens


class KvAdmission:
    """Counts rows from ``begin`` to ``end``.

    If ``limit_bytes`` is None, or there are no ``layers``, every row fits. A row that has begun may
    grow past the limit: the caller asks whether rows have (``exceeded``).
    """

    def __init__(self, layers: Sequence[KvLayers], limit_bytes: int | None) -> None:
        self._layers = layers
        # Caches grow by whole steps; of layers with different ones, the sum by what all divide.
        self._step_tokens = math.gcd(*(part.step_tokens for part in layers))
        self._limit_bytes = limit_bytes
        self._rows: dict[int, _Counted] = {}
        # What was counted last; None: it has changed.
        self._total_bytes: int | None = 0
        self._present_bytes: int | None = 0

    @property
    def total_bytes(self) -> int:
        """The estimate for all rows."""
        if self._total_bytes is None:
            self._total_bytes = self._sum(self._rows.values())
        return self._total_bytes

    @property
    def exceeded(self) -> bool:
        """Whether the rows take more than the limit already at their present lengths."""
        if self._limit_bytes is None or self.total_bytes <= self._limit_bytes:
            return False
        if self._present_bytes is None:
            self._present_bytes = self._sum(self._rows.values(), present=True)
        return self._present_bytes > self._limit_bytes

    def fits(self, row: SequenceRequest, without: Set[int] = frozenset()) -> bool:
        """Return whether a row may begin now: it fits, or no other row runs. The rows ``without``
        are taken for ended."""
        if self._limit_bytes is None:
            return True
        others = [each for one, each in self._rows.items() if one not in without]
        if not others:
            return True
        return self._sum([*others, _counted(row)]) <= self._limit_bytes

    def begin(self, row: SequenceRequest) -> None:
        """Count a row from now on."""
        counted = self._rows[row.sequence_id] = _counted(row)
        if self._step_tokens:
            counted.changes_at_tokens = counted.next_change_tokens(self._step_tokens)
        self._total_bytes = self._present_bytes = None

    def advance(self, sequence_id: int) -> None:
        """Count one more generated token of a row."""
        counted = self._rows[sequence_id]
        counted.generated_tokens += 1
        # For every token of every row: only one that begins a step of a cache changes the sum.
        if counted.generated_tokens >= counted.changes_at_tokens:
            counted.changes_at_tokens = counted.next_change_tokens(self._step_tokens)
            self._total_bytes = self._present_bytes = None

    def end(self, sequence_id: int) -> None:
        """Stop counting a row; ignores a row that isn't counted."""
        if self._rows.pop(sequence_id, None) is not None:
            self._total_bytes = self._present_bytes = None

    def size(self, sequence_ids: Iterable[int]) -> tuple[int, int]:
        """Return what the rows of a request need by themselves, so that requests can be compared:
        bytes, then tokens, which decide if nothing is known of the cache."""
        counted = [self._rows[sequence_id] for sequence_id in sequence_ids]
        return (
            sum((one.width or 1) * kv_bytes(self._layers, one.tokens) for one in counted),
            sum((one.width or 1) * one.tokens for one in counted),
        )

    def _sum(self, rows: Iterable[_Counted], *, present: bool = False) -> int:
        total_bytes = 0
        lengths = []
        step_tokens = self._step_tokens or 1
        for row in rows:
            tokens = row.present_tokens if present else row.tokens
            if row.width is None:
                # In whole steps, so that it holds until the sum is made again.
                max_tokens = -(-row.present_tokens // step_tokens) * step_tokens
                lengths.append(SequenceLength(max_tokens - step_tokens + 1, max_tokens, tokens))
            else:
                total_bytes += row.width * kv_bytes(self._layers, tokens)
        return total_bytes + sum(
            kv_bytes(self._layers, length) for length in padded_tokens(lengths)
        )


def fitting_tokens(
    layers: Sequence[KvLayers], limit_bytes: int, sequences: int, asked_tokens: int
) -> int:
    """Return how many of ``asked_tokens`` fit for each of ``sequences`` sequences."""
    lengths = range(asked_tokens + 1)
    fitting = bisect_right(lengths, limit_bytes, key=lambda n: sequences * kv_bytes(layers, n))
    return max(0, fitting - 1)


def _counted(row: SequenceRequest) -> _Counted:
    return _Counted(len(row.prompt), row.max_tokens, row.beam.width if row.beam else None)
