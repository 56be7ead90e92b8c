"""The changes to single logits: penalties, biases, and bans of early ends.

All of them are one edit for each token concerned. An edited logit is ``penalised + offset``, where
``penalised`` is the logit divided by the factor where positive, multiplied where not. The factor is
the repetition penalty for every token of prompt and answer, else 1; the offset is the bias less the
frequency penalty for each time that the answer has the token, and less the presence penalty if it
has it. The end tokens' logits are -inf while they are banned.

Only these tokens are touched, a few hundred of a vocabulary. What the edits depend on is kept on
the device: it counts a drawn token before the host has read it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lmx.worker.engine.values import SequenceSampling

_MOST_TAKEN: Final = 256
"""After this many tokens, the edits of a batch are built again."""


class _Slots(NamedTuple):
    """The tokens that are edited in one row, in ascending order, and what is known of each. Token 0
    is the first, edited or not, because rows are padded with it."""

    tokens: npt.NDArray[np.uint32]
    seen: npt.NDArray[np.bool_]
    """Whether the repetition penalty applies to it."""
    times: npt.NDArray[np.float32]
    """How often the answer has it."""
    biases: npt.NDArray[np.float32]
    ends: npt.NDArray[np.bool_]
    """Whether it is banned before ``min_tokens``."""


class RowEdits:
    """The edits of one row, as the host knows them."""

    def __init__(
        self, sampling: SequenceSampling, prompt: Sequence[int], made: Sequence[int]
    ) -> None:
        """``made``: the tokens of its answer that the row has already."""
        self.sampling = sampling
        self.counts = _counts(sampling)
        """Whether the edits depend on the row's tokens."""
        self.made = list(made)
        """The tokens of its answer; the caller adds to them."""
        self.idle = not (self.counts or sampling.logit_bias)
        """Whether no logit changes while no end is banned."""
        repeats = sampling.repetition_penalty != 1
        self._repeated = np.unique(np.array(prompt if repeats else [], np.int64))
        self._biases = dict(sampling.logit_bias)
        self._ends = sorted(sampling.end_ids) if sampling.min_tokens > 0 else []

    @staticmethod
    def needed(sampling: SequenceSampling) -> bool:
        """Return whether such a row has edits at all."""
        bans_ends = sampling.min_tokens > 0 and sampling.end_ids
        return bool(_counts(sampling) or sampling.logit_bias or bans_ends)

    def slots(self, vocabulary: int) -> _Slots:
        """Return the tokens to edit; those that the logits don't have are left out."""
        made, times = np.unique(np.array(self.made, np.int64), return_counts=True)
        known = np.concatenate([[0], self._repeated, made, list(self._biases), self._ends])
        tokens = np.unique(known.astype(np.int64))
        tokens = tokens[(tokens >= 0) & (tokens < vocabulary)]
        counted = np.zeros(len(tokens), np.float32)
        counted[np.searchsorted(tokens, made)] = times
        biases = np.zeros(len(tokens), np.float32)
        for token, bias in self._biases.items():
            biases[tokens == token] = bias
        return _Slots(
            tokens.astype(np.uint32),
            np.isin(tokens, self._repeated) | (counted > 0),
            counted,
            biases,
            np.isin(tokens, self._ends),
        )


def _counts(sampling: SequenceSampling) -> bool:
    return (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )


class BatchEdits:
    """The edits of some rows of a batch, on the device. Engine thread.

    Each token that is drawn takes one more slot in each row, whether the row has one for it already
    or not. The first slot of a token, its *origin*, has the row's true values.
    """

    def __init__(self, rows: Sequence[RowEdits], places: Sequence[int], vocabulary: int) -> None:
        """``places``: the rows' indices in the batch."""
        ways = [row.sampling for row in rows]
        slots = [row.slots(vocabulary) for row in rows]
        self._counting = [row.counts for row in rows]
        self._taken = [len(row.made) for row in rows]
        self._vocabulary = vocabulary
        self._bases = _bases(places, vocabulary)
        self._tokens = _padded([row.tokens for row in slots])
        self._origins = _padded([np.arange(len(row.tokens), dtype=np.uint32) for row in slots])
        self._first_width = self._tokens.shape[1]
        self._blank = mx.zeros((len(rows), 1), mx.bool_)
        # None of all of these: no row has such a parameter.
        self._repetition = _column([way.repetition_penalty for way in ways], nothing=1.0)
        self._frequency = _column([way.frequency_penalty for way in ways], nothing=0.0)
        self._presence = _column([way.presence_penalty for way in ways], nothing=0.0)
        self._seen: mx.array | None = None
        if self._repetition is not None:
            self._seen = _padded([row.seen for row in slots])
        self._times: mx.array | None = None
        if self._frequency is not None or self._presence is not None:
            self._times = _padded([row.times for row in slots])
        self._biases: mx.array | None = None
        if any(way.logit_bias for way in ways):
            self._biases = _padded([row.biases for row in slots])
        self._ends: mx.array | None = None
        if any(row.ends.any() for row in slots):
            self._ends = _padded([row.ends for row in slots])

    @property
    def counts(self) -> bool:
        """Whether the edits depend on the rows' tokens."""
        return self._seen is not None or self._times is not None

    @property
    def full(self) -> bool:
        """Whether enough tokens were added for it to pay to build them again, with one slot for
        each token."""
        return self._tokens.shape[1] - self._first_width >= _MOST_TAKEN

    def missing(self, made: Sequence[int]) -> list[int]:
        """Return how many of the tokens that each row has ``made`` were not taken. Rows whose edits
        don't depend on them miss as many as the others."""
        missing = [length - taken for length, taken in zip(made, self._taken, strict=True)]
        if all(self._counting):
            return missing
        counted = [length for length, counts in zip(missing, self._counting, strict=True) if counts]
        return [
            length if counts else max(counted, default=0)
            for length, counts in zip(missing, self._counting, strict=True)
        ]

    def add_tokens(self, drawn: mx.array, some: Sequence[bool] | None = None) -> None:
        """Count a token of each row's answer, ``drawn`` [rows], or, if ``some`` are given, of those
        rows alone. Not evaluated."""
        column = mx.expand_dims(drawn.astype(mx.uint32), 1)
        chosen: mx.array | None = None
        if some is not None:
            chosen = mx.array(list(some))[:, None]
            column = mx.where(chosen, column, 0)
        self._tokens = mx.concatenate([self._tokens, column], axis=1)
        same = self._tokens == column
        origin = mx.argmax(same, axis=1, keepdims=True)
        self._origins = mx.concatenate([self._origins, origin], axis=1)
        if chosen is not None:
            same = same & chosen
        if self._seen is not None:
            self._seen = mx.concatenate([self._seen, self._blank], axis=1) | same
        if self._times is not None:
            self._times = mx.concatenate([self._times, self._blank], axis=1) + same
        for row, taken in enumerate(some or [True] * len(self._taken)):
            self._taken[row] += taken

    def continued(self, parents: Sequence[int]) -> BatchEdits:
        """Return the edits of rows that continue these rows, each from one of them. This is for
        a batch that began as a single row: what does not depend on its tokens is kept once."""
        chosen = mx.array(list(parents))
        new = copy.copy(self)
        new._counting = [self._counting[parent] for parent in parents]
        new._taken = [self._taken[parent] for parent in parents]
        new._bases = _bases(range(len(parents)), self._vocabulary)
        new._blank = mx.zeros((len(parents), 1), mx.bool_)
        new._tokens, new._origins = self._tokens[chosen], self._origins[chosen]
        new._seen = None if self._seen is None else self._seen[chosen]
        new._times = None if self._times is None else self._times[chosen]
        return new

    def apply(self, logits: mx.array, banned: Sequence[bool]) -> mx.array:
        """Return float32 logits [rows of the batch, vocabulary], in which the rows are edited. The
        end tokens of the rows that are ``banned`` are forbidden. Not evaluated."""
        flat = logits.astype(mx.float32).reshape(-1)
        # One flat index is half the work of two, of rows and tokens.
        where = self._tokens + self._bases
        edited = mx.take(flat, where)
        if self._seen is not None and self._repetition is not None:
            factor = mx.where(self._seen, self._repetition, 1.0)
            edited = mx.where(edited > 0, edited / factor, edited * factor)
        offset = self._offset()
        if offset is not None:
            edited = edited + offset
        if self._ends is not None and any(banned):
            ends = _wide(self._ends, self._tokens) & mx.array(list(banned))[:, None]
            edited = mx.where(ends, -mx.inf, edited)
        # All slots of a token get the value of its origin. So it doesn't matter which of them is
        # written last.
        edited = mx.take_along_axis(edited, self._origins, axis=1)
        written = mx.put_along_axis(flat, where.reshape(-1), edited.reshape(-1), axis=0)
        return written.reshape(logits.shape)

    def _offset(self) -> mx.array | None:
        penalty: mx.array | None = None
        if self._times is not None and self._frequency is not None:
            penalty = self._frequency * self._times
        if self._times is not None and self._presence is not None:
            once = mx.where(self._times > 0, self._presence, 0.0)
            penalty = once if penalty is None else penalty + once
        if self._biases is None:
            return None if penalty is None else -penalty
        biases = _wide(self._biases, self._tokens)
        return biases if penalty is None else biases - penalty


def _bases(places: Sequence[int], vocabulary: int) -> mx.array:
    return mx.array(np.array(places, np.uint32)[:, None] * np.uint32(vocabulary))


def _column(values: Sequence[float], *, nothing: float) -> mx.array | None:
    if all(value == nothing for value in values):
        return None
    return mx.array(np.array(values, np.float32)[:, None])


def _padded(rows: Sequence[npt.NDArray[Any]]) -> mx.array:
    """Return the rows in one array, filled up with what the first column has."""
    filled = np.empty((len(rows), max(len(row) for row in rows)), rows[0].dtype)
    for index, row in enumerate(rows):
        filled[index, : len(row)] = row
        filled[index, len(row) :] = row[0]
    return mx.array(filled)


def _wide(slots: mx.array, like: mx.array) -> mx.array:
    """Return as many slots as another array has: nothing is known of the new ones."""
    return mx.pad(slots, [(0, 0), (0, like.shape[1] - slots.shape[1])])
