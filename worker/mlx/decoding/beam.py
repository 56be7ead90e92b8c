"""Beam search over one prompt: several beams that decode as a batch of their own, or one after the
other for a model whose rows can't decode together.

A beam's score is made of logprobs: log-softmax of the logits, after the penalties, biases and bans
of the request, each beam's by its own tokens. Sampling at temperature 1 draws from the same values.
A constraint takes tokens away without raising the others' chances, as in Transformers; temperature
and filters are ignored. The scores that are reported for tokens are the model's own.

The pure functions decide which continuations a search follows, which it keeps as hypotheses, and
when it ends, as Transformers does it without early stopping.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import mlx.core as mx

from lmx.worker.engine.values import (
    BeamSearch,
    Constraint,
    Hypothesis,
    SequenceSampling,
    TokenScores,
)
from lmx.worker.mlx.model.forward import PromptCache, cache_states
from lmx.worker.mlx.sampling.filters import candidates
from lmx.worker.mlx.sampling.mask import allows_other_than, fit_mask, mask_rows
from lmx.worker.mlx.sampling.penalties import BatchEdits, RowEdits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Continuation(NamedTuple):
    """A token after one of the running beams."""

    total: float
    """The sum of all logprobs, with this token's."""
    beam: int
    token: int


class Choice(NamedTuple):
    """The decision about a step's continuations, each part best first."""

    ended: Sequence[Continuation]
    running: Sequence[Continuation]


def considered(beam: BeamSearch) -> int:
    """Return how many tokens after each beam a step looks at: enough to continue with ``width`` of
    them even if each end token came before these."""
    return beam.width + max(1, len(beam.end_ids))


def choose(continuations: Iterable[Continuation], beam: BeamSearch, last: bool) -> Choice:
    """Sort a step's continuations. In the ``last`` step all of them end.

    Only ends among the best ``width`` count. Of equal ones, the earlier beam's comes first, then
    the lower token.
    """
    ranked = sorted(continuations, key=lambda one: (-one.total, one.beam, one.token))
    ended = [one for one in ranked[: beam.width] if last or one.token in beam.end_ids]
    running = [one for one in ranked if one.token not in beam.end_ids]
    return Choice(ended, [] if last else running[: beam.width])


def score(total: float, length: int, length_penalty: float) -> float:
    """Return a hypothesis' score: ``total`` divided by its ``length`` (its tokens, the end
    token too) to the power of ``length_penalty``; above 0 it favours long ones."""
    # This is at most e^600, so that the product is a float too.
    return total * math.exp(min(600.0, -length_penalty * math.log(length)))


def is_settled(
    kept_scores: Collection[float], best_running: float, length: int, beam: BeamSearch
) -> bool:
    """Return whether a search can end: ``width`` hypotheses are kept, and the best running beam
    would not be among them if it ended at its present ``length``.

    If length is rewarded, this is only a guess: a longer beam might still become one.
    """
    if len(kept_scores) < beam.width:
        return False
    return score(best_running, length, beam.length_penalty) <= min(kept_scores)


Decode = Callable[[mx.array, PromptCache], mx.array]
"""Feeds a token to each row, [rows, 1], and returns the logits after it, [rows, vocabulary]."""


class _Tail(NamedTuple):
    """A beam's last token."""

    token: int
    scores: TokenScores | None
    before: _Tail | None
    """The beam without that token; None: it is empty."""


class _Beam(NamedTuple):
    tail: _Tail | None
    total: float
    constraint: Constraint | None


class _Ranking(NamedTuple):
    """The tokens that may follow the running beams."""

    continuations: Sequence[Continuation]
    logprobs: dict[tuple[int, int], float]
    """The model's own, by beam and token; empty if not requested."""
    tops: Sequence[Sequence[tuple[int, float]]]
    """The likeliest tokens, by beam; empty if not requested."""


class BeamGroup:
    """A beam search. Engine thread.

    ``prompt_cache`` has one row, holds the prompt, and is used up; ``first_logits`` [1, vocabulary]
    are those of its end. ``constraint`` is used up as well. At least one token is made, and
    ``max_tokens`` at most. Of ``sampling``, which also applies to ``prompt``, only the parameters
    that edit logits count. Unless ``together``, each beam has its own cache and its own forward
    passes: as many in a step as there are beams.
    """

    def __init__(
        self,
        forward: Decode,
        prompt_cache: PromptCache,
        first_logits: mx.array,
        beam: BeamSearch,
        max_tokens: int,
        constraint: Constraint | None,
        top_logprobs: int | None,
        sampling: SequenceSampling,
        prompt: Sequence[int],
        *,
        together: bool,
    ) -> None:
        self._forward = forward
        self._together = together
        self._min_tokens = sampling.min_tokens
        self._caches = [prompt_cache]
        """The cache of all running beams together, or of each of them."""
        self._first_logits: mx.array | None = first_logits
        self._beam = beam
        self._max_tokens = max_tokens
        self._top_logprobs = top_logprobs
        self._length = 0
        self._edits: BatchEdits | None = None
        self._always_edited = False
        if RowEdits.needed(sampling):
            edits = RowEdits(sampling, prompt, ())
            self._edits = BatchEdits([edits], [0], first_logits.shape[-1])
            self._always_edited = not edits.idle
        self._running = [_Beam(None, 0.0, constraint)]
        self._kept: list[Hypothesis] = []

    def step(self) -> Sequence[Hypothesis] | None:
        """Make one more token for each beam. Blocks.

        Returns the hypotheses when the search is over, the best first: as many as its width, or
        fewer if no more are possible. Before that it returns None. Raises what a constraint raises,
        and ValueError if the constraint allows nothing: the search has failed then.
        """
        ranking = self._rank(self._decode())
        self._length += 1
        last = self._length == self._max_tokens
        ended, running = choose(ranking.continuations, self._beam, last)
        self._add_hypotheses(ended, ranking)
        if running and not self._is_settled(running[0].total):
            self._continue_with(running, ranking)
            return None
        if not self._kept:
            raise ValueError("the constraint allows no token in any beam")
        return self._kept

    def _decode(self) -> mx.array:
        if self._first_logits is not None:
            logits, self._first_logits = self._first_logits, None
            return logits
        tokens = mx.array([[cast(_Tail, beam.tail).token] for beam in self._running])
        each = zip(mx.split(tokens, len(self._caches)), self._caches, strict=True)
        return mx.concatenate([self._forward(*one) for one in each])

    def _rank(self, logits: mx.array) -> _Ranking:
        logits = logits.astype(mx.float32)
        scored = self._top_logprobs is not None
        masks = self._masks(logits.shape[-1])
        edited = self._edited(logits, masks)
        logprobs = _log_softmax(edited)
        own = _log_softmax(logits) if scored and edited is not logits else logprobs
        allowed = mask_rows(logprobs, masks) if masks else logprobs
        values, tokens = candidates(allowed, considered(self._beam))
        own_values = [mx.take_along_axis(own, tokens, axis=-1)] if scored else []
        tops = list(candidates(own, self._top_logprobs)) if self._top_logprobs else []
        # Arrays on which no logit depends, such as a cache's offsets, would never be evaluated.
        mx.eval(values, tokens, own_values, tops, [*map(cache_states, self._caches)])
        continuations = [
            Continuation(self._running[beam].total + logprob, beam, token)
            for beam, row in enumerate(_pairs(tokens, values))
            for token, logprob in row
            if logprob > -float("inf")
        ]
        found = {
            (beam, token): logprob
            for each in own_values
            for beam, row in enumerate(_pairs(tokens, each))
            for token, logprob in row
        }
        ranked = _pairs(tops[1], tops[0]) if tops else [()] * len(self._running)
        return _Ranking(continuations, found, ranked)

    def _edited(self, logits: mx.array, masks: Mapping[int, npt.NDArray[np.uint32]]) -> mx.array:
        if self._edits is None:
            return logits
        short = self._length < self._min_tokens
        # If a constraint allows only the end, then the answer is complete.
        banned = [
            short and (index not in masks or allows_other_than(masks[index], self._beam.end_ids))
            for index in range(len(self._running))
        ]
        return self._edits.apply(logits, banned)

    def _masks(self, vocabulary: int) -> dict[int, npt.NDArray[np.uint32]]:
        masks = {}
        for index, beam in enumerate(self._running):
            mask = None if beam.constraint is None else beam.constraint.mask()
            if mask is not None:
                masks[index] = fit_mask(mask, vocabulary)
        return masks

    def _add_hypotheses(self, ended: Sequence[Continuation], ranking: _Ranking) -> None:
        for one in ended:
            tail: _Tail | None = self._extend(one, ranking)
            tails = []
            while tail is not None:
                tails.append(tail)
                tail = tail.before
            tails.reverse()
            self._kept.append(
                Hypothesis(
                    [tail.token for tail in tails],
                    score(one.total, self._length, self._beam.length_penalty),
                    [tail.scores for tail in tails if tail.scores is not None],
                )
            )
        # The sort is stable: of equal scores, the first found stays first.
        self._kept.sort(key=lambda kept: -kept.score)
        del self._kept[self._beam.width :]

    def _is_settled(self, best_total: float) -> bool:
        scores = [kept.score for kept in self._kept]
        return is_settled(scores, best_total, self._length, self._beam)

    def _continue_with(self, chosen: Sequence[Continuation], ranking: _Ranking) -> None:
        parents = [one.beam for one in chosen]
        successors = {beam: index for index, beam in enumerate(parents)}
        running = []
        for index, one in enumerate(chosen):
            parent = self._running[one.beam]
            constraint = parent.constraint
            if successors[one.beam] != index:
                # The last of a beam's successors takes what it had itself.
                constraint = None if constraint is None else constraint.fork()
            running.append(_Beam(self._extend(one, ranking), one.total, constraint))
        for beam in running:
            if beam.constraint is not None:
                beam.constraint.accept(cast(_Tail, beam.tail).token)
        if self._length >= self._min_tokens and not self._always_edited:
            self._edits = None
        if self._edits is not None:
            self._edits = self._edits.continued(parents)
            if self._edits.counts:
                self._edits.add_tokens(mx.array([one.token for one in chosen]))
        if not self._together:
            self._caches = [
                self._caches[beam]
                if successors[beam] == index
                else copy.deepcopy(self._caches[beam])
                for index, beam in enumerate(parents)
            ]
        elif self._length == 1:
            self._caches = [[layer.merge([layer] * len(parents)) for layer in self._caches[0]]]
        elif parents != list(range(len(self._running))):
            rows = mx.array(parents)
            for layer in self._caches[0]:
                layer.filter(rows)
        self._running = running

    def _extend(self, one: Continuation, ranking: _Ranking) -> _Tail:
        scores = None
        if self._top_logprobs is not None:
            logprob = ranking.logprobs[one.beam, one.token]
            scores = TokenScores(logprob, ranking.tops[one.beam])
        return _Tail(one.token, scores, self._running[one.beam].tail)


def _log_softmax(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _pairs(tokens: mx.array, values: mx.array) -> list[tuple[tuple[int, float], ...]]:
    rows = zip(cast("list[Any]", tokens.tolist()), cast("list[Any]", values.tolist()), strict=True)
    return [tuple(zip(*row, strict=True)) for row in rows]
