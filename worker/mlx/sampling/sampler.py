"""One sampler for a batch whose rows all sample differently.

A row's tokens depend on its own parameters, history and logits alone, never on the rows it
decodes with. What a draw does, in this order:

1. repetition penalty, over prompt and answer;
2. presence and frequency penalty, over the answer;
3. logit_bias;
4. end tokens are banned, before ``min_tokens``;
5. tokens that the row's constraint does not allow are banned;
6. the likeliest is taken, where the temperature is (nearly) 0; or
7. temperature, top_k, typical_p, top_p, min_p, each filter over what the last one left, and a
   draw among the rest.

Transformers and vLLM take the same steps and differ in detail. In both, filters come after
temperature, so that top_p means a share of what would be drawn, and top_k before top_p. Both
add a bias before the penalties; here it comes after, so that it is worth what was asked
whatever the repetition penalty, which scales logits. vLLM filters by min_p first, Transformers
by typical_p last; here typical_p comes before top_p, as in llama.cpp, and min_p last, where it
compares with the likeliest token that is left. The bans commute with all penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lmx.worker.engine.values import Constraint, SequenceSampling, TokenScores
from lmx.worker.mlx.sampling.draw import DrawGroups
from lmx.worker.mlx.sampling.filters import candidates
from lmx.worker.mlx.sampling.mask import allows_other_than, fit_mask, mask_rows, only_token
from lmx.worker.mlx.sampling.penalties import BatchEdits, RowEdits

__all__ = ["BatchSampler", "PendingScores", "prompt_scores"]

_MOST_PLANS: Final = 64


@dataclass(slots=True)
class _SampledSequence:
    """How one row samples."""

    sampling: SequenceSampling
    top_logprobs: int | None
    edits: RowEdits | None
    constraint: Constraint | None
    words: npt.NDArray[np.uint32] | None = None
    """The constraint's mask, if it was asked for since the last token."""
    only: int | None = None
    """The token of the last draw, if the constraint allowed no other."""

    def allowed(self, vocabulary: int) -> npt.NDArray[np.uint32] | None:
        """Return the constraint's fitted mask; None: all tokens are allowed. Raises what the
        constraint raises, and ``ValueError`` if no token is allowed."""
        if self.words is None and self.constraint is not None:
            self.words = _words(self.constraint, vocabulary)
        return self.words


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a batch of certain rows needs, worked out once. The numbers are indices of rows."""

    draws: DrawGroups
    needs_tokens: bool
    depends_on_tokens: bool
    edited: Sequence[int]
    constrained: Sequence[int]
    scored: list[int]


class BatchSampler:
    """Samples for a batch whose rows all sample differently. Engine thread."""

    def __init__(self) -> None:
        self._rows: dict[int, _SampledSequence] = {}
        self._plans: dict[tuple[int, ...], _Plan] = {}
        # By the rows of a batch, and the indices of those that are edited. A row is in one at most.
        self._edits: dict[tuple[tuple[int, ...], tuple[int, ...]], BatchEdits] = {}
        self._failed: list[tuple[int, Exception]] = []

    def add(
        self,
        sequence_id: int,
        sampling: SequenceSampling,
        prompt: Sequence[int],
        constraint: Constraint | None,
        top_logprobs: int | None,
        made: Sequence[int] = (),
    ) -> None:
        """Sample the row ``sequence_id`` in this way from now on. ``made``: the tokens of its
        answer that it has already, of which ``constraint`` knows."""
        edits = RowEdits(sampling, prompt, made) if RowEdits.needed(sampling) else None
        self._rows[sequence_id] = _SampledSequence(sampling, top_logprobs, edits, constraint)
        self._plans.clear()

    def remove(self, sequence_id: int) -> None:
        """Forget a row; ignores one that is unknown."""
        row = self._rows.pop(sequence_id, None)
        if row is not None and row.edits is not None:
            self._forget_edits([sequence_id])

    def needs_tokens(self, sequence_ids: Sequence[int]) -> bool:
        """Return whether ``accept`` must have got all tokens of all rows before ``sample``."""
        return self._plan(sequence_ids).needs_tokens

    def depends_on_tokens(self, sequence_ids: Sequence[int]) -> bool:
        """Return whether some row's next draw depends on the tokens that it has made, so that
        several positions can't be drawn at once."""
        return self._plan(sequence_ids).depends_on_tokens

    def accept(self, sequence_id: int, token: int) -> None:
        """Take a token that has become part of the row's answer."""
        row = self._rows[sequence_id]
        if row.edits is not None and row.edits.counts:
            row.edits.made.append(token)
        if row.constraint is not None:
            row.words = None
            try:
                row.constraint.accept(token)
            except Exception as error:
                self._fail(sequence_id, row, error)

    def only(self, sequence_id: int) -> int | None:
        """Return the token of the row's last draw if its constraint allowed no other: so it is
        known before the draw is evaluated. None: it could have been another."""
        return self._rows[sequence_id].only

    def forced_after(
        self, sequence_id: int, after: int, vocabulary: int, most_tokens: int
    ) -> list[int]:
        """Return the tokens that must follow ``after``, the last one that the row accepted, because
        its constraint allows no others: at most ``most_tokens``, and none behind an end token.
        Changes nothing. ``vocabulary`` is the width of the logits.
        """
        row = self._rows[sequence_id]
        found: list[int] = []
        ahead = None if after in row.sampling.end_ids else row.constraint
        # An exception comes again when the token is accepted or its successor is drawn, and then
        # the row fails.
        with suppress(Exception):
            while ahead is not None and len(found) < most_tokens:
                words = _words(ahead, vocabulary) if found else row.allowed(vocabulary)
                token = None if words is None else only_token(words)
                if token is None:
                    break
                found.append(token)
                if token in row.sampling.end_ids:
                    break
                if len(found) == 1:
                    ahead = ahead.fork()
                ahead.accept(token)
        return found

    def sample(
        self,
        logits: mx.array,
        sequence_ids: Sequence[int],
        positions: Sequence[int],
        last: mx.array | None = None,
    ) -> mx.array:
        """Return one token for each row of raw ``logits`` [rows, vocabulary]; not evaluated.

        ``positions`` says how many tokens a row has made so far. If ``accept`` has not got the
        last one of these, it is taken from ``last`` [rows]. A row may occur several times, at
        several positions, unless it depends on tokens.
        """
        plan = self._plan(sequence_ids)
        masks: dict[int, npt.NDArray[np.uint32]] = {}
        if plan.constrained:
            masks = self._masks(plan.constrained, sequence_ids, logits.shape[-1])
        if plan.edited:
            logits = self._edit(logits, plan.edited, sequence_ids, positions, last, masks)
        if masks:
            logits = mask_rows(logits, masks)
        return plan.draws.draw(logits, positions)

    def scores(
        self, logits: mx.array, tokens: mx.array, sequence_ids: Sequence[int]
    ) -> PendingScores | None:
        """Return the scores of ``tokens`` [rows] by raw ``logits``, for the rows that want them;
        None if no row does. Not evaluated."""
        scored = self._plan(sequence_ids).scored
        if not scored:
            return None
        if len(scored) < len(sequence_ids):
            indices = mx.array(scored)
            logits, tokens = logits[indices], tokens[indices]
        asking = [sequence_ids[index] for index in scored]
        return score(logits, tokens, asking, [self._rows[row].top_logprobs or 0 for row in asking])

    def pop_failed(self) -> list[tuple[int, Exception]]:
        """Return the rows whose constraint raised, or allowed nothing, since the last call.

        They are sampled without it until they are removed.
        """
        failed, self._failed = self._failed, []
        return failed

    def _fail(self, sequence_id: int, row: _SampledSequence, error: Exception) -> None:
        row.constraint, row.words, row.only = None, None, None
        self._failed.append((sequence_id, error))
        self._plans.clear()

    def _plan(self, sequence_ids: Sequence[int]) -> _Plan:
        key = tuple(sequence_ids)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = _make_plan(
                [self._rows[sequence_id] for sequence_id in sequence_ids]
            )
        return plan

    def _masks(
        self, constrained: Sequence[int], sequence_ids: Sequence[int], vocabulary: int
    ) -> dict[int, npt.NDArray[np.uint32]]:
        masks = {}
        for index in constrained:
            row = self._rows[sequence_ids[index]]
            if row.constraint is None:
                continue
            try:
                words = row.allowed(vocabulary)
            except Exception as error:
                self._fail(sequence_ids[index], row, error)
                continue
            row.only = None if words is None else only_token(words)
            if words is not None:
                masks[index] = words
        return masks

    def _edit(
        self,
        logits: mx.array,
        edited: Sequence[int],
        sequence_ids: Sequence[int],
        positions: Sequence[int],
        last: mx.array | None,
        masks: dict[int, npt.NDArray[np.uint32]],
    ) -> mx.array:
        indices, bans = [], []
        for index in edited:
            row = self._rows[sequence_ids[index]]
            assert row.edits is not None
            sampling = row.sampling
            banned = positions[index] < sampling.min_tokens and (
                # If a constraint allows only the end, then the answer is complete.
                index not in masks or allows_other_than(masks[index], sampling.end_ids)
            )
            if banned or not row.edits.idle:
                indices.append(index)
                bans.append(banned)
        if not indices:
            return logits
        made = [positions[index] for index in indices]
        edits = self._batch_edits(sequence_ids, indices, made, logits.shape[-1])
        if edits.counts and any(missing := edits.missing(made)):
            if last is None:
                last = mx.array([self._last_accepted(sequence_ids[index]) for index in indices])
            elif len(indices) < len(sequence_ids):
                last = last[mx.array(indices)]
            edits.add_tokens(last, None if all(missing) else [length > 0 for length in missing])
        return edits.apply(logits, bans)

    def _batch_edits(
        self,
        sequence_ids: Sequence[int],
        indices: Sequence[int],
        made: Sequence[int],
        vocabulary: int,
    ) -> BatchEdits:
        """Return the edits of some of the rows; at most the last token of each is missing."""
        key = tuple(sequence_ids), tuple(indices)
        edits = self._edits.get(key)
        if edits is not None and not edits.full and set(edits.missing(made)) <= {0, 1}:
            return edits
        self._forget_edits([sequence_ids[index] for index in indices])
        rows = [self._rows[sequence_ids[index]].edits for index in indices]
        edits = BatchEdits([row for row in rows if row is not None], indices, vocabulary)
        self._edits[key] = edits
        return edits

    def _forget_edits(self, sequence_ids: Sequence[int]) -> None:
        gone = set(sequence_ids)
        for key in [key for key in self._edits if not gone.isdisjoint(key[0])]:
            del self._edits[key]

    def _last_accepted(self, sequence_id: int) -> int:
        """Return the last token of a row that counts its tokens; of others, any token."""
        edits = self._rows[sequence_id].edits
        return edits.made[-1] if edits is not None and edits.made else 0


def _words(constraint: Constraint, vocabulary: int) -> npt.NDArray[np.uint32] | None:
    mask = constraint.mask()
    if mask is None:
        return None
    words = fit_mask(mask, vocabulary)
    if not words.any():
        raise ValueError("the constraint allows no token")
    return words


def _make_plan(rows: Sequence[_SampledSequence]) -> _Plan:
    return _Plan(
        draws=DrawGroups([row.sampling for row in rows]),
        needs_tokens=any(row.constraint is not None for row in rows),
        depends_on_tokens=any(
            row.constraint is not None or (row.edits is not None and row.edits.counts)
            for row in rows
        ),
        edited=[index for index, row in enumerate(rows) if row.edits is not None],
        constrained=[index for index, row in enumerate(rows) if row.constraint is not None],
        scored=[index for index, row in enumerate(rows) if row.top_logprobs is not None],
    )


_MOST_TOP: Final = 20
_PROMPT_ROWS: Final = 64
"""How many positions of a prompt are scored at a time. A chunk may have 2048 positions: in float32
and with a copy of them, that is gigabytes for a large vocabulary."""


class PendingScores(NamedTuple):
    """The scores of some rows' tokens; they may not be evaluated yet."""

    sequence_ids: Sequence[int]
    tops: Sequence[int]
    logprobs: mx.array
    top_tokens: mx.array | None
    top_logprobs: mx.array | None

    @property
    def arrays(self) -> list[mx.array]:
        """Return the arrays that must be evaluated."""
        arrays = (self.logprobs, self.top_tokens, self.top_logprobs)
        return [array for array in arrays if array is not None]

    def read(self) -> dict[int, TokenScores]:
        """Return each row's scores; evaluates them."""
        return dict(zip(self.sequence_ids, self.listed(), strict=True))

    def listed(self) -> list[TokenScores]:
        """Return the scores in the order of the rows; evaluates them."""
        chosen = _tolist(self.logprobs)
        if self.top_tokens is None or self.top_logprobs is None:
            return [TokenScores(logprob, ()) for logprob in chosen]
        tokens, logprobs = _tolist(self.top_tokens), _tolist(self.top_logprobs)
        listed = []
        for index, logprob in enumerate(chosen):
            pairs = list(zip(tokens[index], logprobs[index], strict=True))
            pairs.sort(key=lambda pair: (-pair[1], pair[0]))
            listed.append(TokenScores(logprob, tuple(pairs[: self.tops[index]])))
        return listed


def _tolist(array: mx.array) -> list[Any]:
    return cast("list[Any]", array.tolist())


def score(
    logits: mx.array, tokens: mx.array, sequence_ids: Sequence[int], tops: Sequence[int]
) -> PendingScores:
    """Score ``tokens`` [rows] by raw ``logits`` [rows, vocabulary], with ``tops`` alternatives
    each: the likeliest tokens, whether the token is one of them or not. Not evaluated."""
    logits = logits.astype(mx.float32)
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1) - total
    if not any(tops):
        return PendingScores(sequence_ids, tops, chosen[:, 0], None, None)
    # Every row gets the same number, so that its result doesn't depend on the other rows.
    values, top_tokens = candidates(logits, _MOST_TOP)
    return PendingScores(sequence_ids, tops, chosen[:, 0], top_tokens, values - total)


def prompt_scores(logits: mx.array, next_tokens: mx.array, top: int) -> list[TokenScores]:
    """Return the scores of a prompt's tokens, with ``top`` alternatives each. Blocks.

    ``logits`` [tokens, vocabulary] are raw, and ``next_tokens`` [tokens] are the tokens that came
    after each.
    """
    scores: list[TokenScores] = []
    for start in range(0, len(next_tokens), _PROMPT_ROWS):
        part = slice(start, start + _PROMPT_ROWS)
        tokens = next_tokens[part]
        count = len(tokens)
        pending = score(logits[part], tokens, range(count), [top] * count)
        ranks = _ranks(logits[part], tokens)
        mx.eval(pending.arrays, ranks)
        scores += [
            one._replace(rank=rank)
            for one, rank in zip(pending.listed(), _tolist(ranks), strict=True)
        ]
    return scores


def _ranks(logits: mx.array, tokens: mx.array) -> mx.array:
    """Return how many tokens of each row are at least as likely as the one of ``tokens``. Not
    evaluated."""
    chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1)
    return (logits >= chosen).sum(axis=-1)
