"""The changes of a row to single logits: penalties, biases, and bans of early ends.

All of them are one edit for each token concerned: a factor and an offset. Only those tokens are
touched, a few hundred of a vocabulary; a row's edits grow by one token at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lmx.worker.engine import RowSampling

_NARROWEST: Final = 64


class LogitEdits:
    """The edits of one row.

    An edited logit is ``penalised + offset``, where ``penalised`` is the logit divided by the
    factor where positive, multiplied where not. The factor is the repetition penalty for every
    token of prompt and answer, else 1; the offset is the bias less the frequency penalty
    for each time that the answer has the token, and less the presence penalty if it does.
    """

    def __init__(self, sampling: RowSampling, prompt: Sequence[int]) -> None:
        self._sampling = sampling
        self._bias = dict(sampling.logit_bias)
        self._times: dict[int, int] = {}
        self._banned = False
        repeated = prompt if sampling.repetition_penalty != 1 else ()
        edited = np.unique(np.array([*repeated, *self._bias, *self._end_ids], np.int32))
        # Token 0 comes first, edited or not, because rows are padded with it.
        tokens = np.concatenate([np.zeros(1, np.int32), edited[edited != 0]])
        self._tokens = tokens
        self._size = len(tokens)
        self._slots = {token: slot for slot, token in enumerate(tokens.tolist())}
        self._factors = np.ones(self._size, np.float32)
        self._factors[np.isin(tokens, np.array(repeated, np.int32))] = sampling.repetition_penalty
        self._offsets = np.array([self._offset(token) for token in tokens.tolist()], np.float32)

    @staticmethod
    def needed(sampling: RowSampling) -> bool:
        """Return whether such a row has edits at all."""
        return bool(
            LogitEdits.counts(sampling)
            or sampling.logit_bias
            or (sampling.min_tokens > 0 and sampling.end_ids)
        )

    @staticmethod
    def counts(sampling: RowSampling) -> bool:
        """Return whether a row's edits depend on its tokens."""
        return (
            sampling.repetition_penalty != 1
            or sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
        )

    def fork(self) -> LogitEdits:
        """Return a copy in the same state that develops on its own: for the beams of a search."""
        forked = copy.copy(self)
        forked._times, forked._slots = self._times.copy(), self._slots.copy()
        forked._tokens, forked._factors, forked._offsets = (
            array.copy() for array in (self._tokens, self._factors, self._offsets)
        )
        return forked

    @property
    def size(self) -> int:
        """How many edits there are, at least 1."""
        return self._size

    @property
    def idle(self) -> bool:
        """Whether no logit would change now."""
        return not (self._banned or self._bias or self.counts(self._sampling))

    def accept(self, token: int) -> None:
        """Count a token of the answer."""
        if not self.counts(self._sampling):
            return
        self._times[token] = self._times.get(token, 0) + 1
        slot = self._slots.get(token)
        if slot is None:
            slot = self._append(token)
        self._factors[slot] = self._sampling.repetition_penalty
        self._offsets[slot] = self._offset(token)

    def ban_ends(self, banned: bool) -> None:
        """Forbid the end tokens, or allow them again."""
        if banned == self._banned:
            return
        self._banned = banned
        for token in self._end_ids:
            self._offsets[self._slots[token]] = self._offset(token)

    def fill(
        self,
        tokens: npt.NDArray[np.int32],
        factors: npt.NDArray[np.float32],
        offsets: npt.NDArray[np.float32],
    ) -> None:
        """Write the edits into rows of at least ``size`` columns, and those of token 0 into the
        rest."""
        for row, own in (
            (tokens, self._tokens),
            (factors, self._factors),
            (offsets, self._offsets),
        ):
            row[: self._size] = own[: self._size]
            row[self._size :] = own[0]

    @property
    def _end_ids(self) -> frozenset[int]:
        return self._sampling.end_ids if self._sampling.min_tokens > 0 else frozenset()

    def _offset(self, token: int) -> float:
        if self._banned and token in self._end_ids:
            return -np.inf
        times = self._times.get(token, 0)
        penalty = self._sampling.frequency_penalty * times
        if times:
            penalty += self._sampling.presence_penalty
        return self._bias.get(token, 0.0) - penalty

    def _append(self, token: int) -> int:
        if self._size == len(self._tokens):
            for name in ("_tokens", "_factors", "_offsets"):
                own = getattr(self, name)
                setattr(self, name, np.concatenate([own, np.ones_like(own)]))
        self._tokens[self._size] = token
        self._slots[token] = self._size
        self._size += 1
        return self._size - 1


def apply_edits(
    logits: mx.array, rows: Sequence[int], edits: Sequence[LogitEdits], bans: Sequence[bool]
) -> mx.array:
    """Return float32 logits, in which ``rows`` are edited. ``bans`` says whose end tokens are
    forbidden.

    A row's edits may occur several times. Edits of tokens that the logits don't have are left out.
    """
    logits = logits.astype(mx.float32)
    widest = max(row.size for row in edits)
    # The sizes are powers of two, so that few shapes of array occur as rows grow.
    width = max(_NARROWEST, 1 << (widest - 1).bit_length())
    tokens = np.empty((len(edits), width), np.int32)
    factors = np.empty((len(edits), width), np.float32)
    offsets = np.empty((len(edits), width), np.float32)
    for index, (row, banned) in enumerate(zip(edits, bans, strict=True)):
        row.ban_ends(banned)
        row.fill(tokens[index], factors[index], offsets[index])
    outside = (tokens < 0) | (tokens >= logits.shape[-1])
    if outside.any():
        for array in (tokens, factors, offsets):
            np.copyto(array, array[:, :1], where=outside)
    # A token may come up several times in a row, always with the same edit, so that it doesn't
    # matter which of the equal results is written last. One flat index is half the work of
    # two, of rows and tokens.
    tokens += np.array(rows, np.int32)[:, None] * np.int32(logits.shape[-1])
    where, factor, offset = (mx.array(part.reshape(-1)) for part in (tokens, factors, offsets))
    flat = logits.reshape(-1)
    old = flat[where]
    edited = mx.where(old > 0, old / factor, old * factor) + offset
    return mx.put_along_axis(flat, where, edited, axis=0).reshape(logits.shape)
