"""The batch of rows that decode: one forward for all of them, a token for each.

The batch decodes ahead: while the caller has this step's tokens, the next step's are being
computed. So the tokens of a step were drawn in the step before, and are fed to the model in this
one: after a step, a row's cache holds its prompt and exactly the tokens that were returned.

A row's input may also be known to the caller before it is fed: the last token of its prompt, which
a row brings along when it joins, and a token that ``flush`` returned early. Then the row's cache
holds all of its tokens but that one.

Written for mlx-vlm 0.7.10: a private function of ``mlx_vlm.generate.ar`` says how often states are
evaluated on which no token depends.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx
from mlx_vlm.generate.ar import _get_batch_cache_eval_interval

from lmx.worker.engine.values import DraftCounts, GeneratedToken, TokenScores
from lmx.worker.mlx.decoding.forced_tokens import ForcedTokens
from lmx.worker.mlx.decoding.rollback import (
    Blocks,
    Rollback,
    Undo,
    cut_padding,
    put_windows_in_order,
)
from lmx.worker.mlx.decoding.sequence import DecodeSequence
from lmx.worker.mlx.decoding.verify import Drafts, draw, score, score_known
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.model import batch_slots
from lmx.worker.mlx.model.batch_slots import can_be_single, single_row
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states
from lmx.worker.mlx.sampling.sampler import BatchSampler, PendingScores

_GPU_EVAL_STEPS: Final = 512
"""On Metal each clearing costs the buffers of the next step, some hundreds; mlx-lm clears as often
as this."""


class Joining(NamedTuple):
    """A row that has finished its prefill."""

    row: DecodeSequence
    prompt_cache: PromptCache
    """A single row's cache of the prompt; if ``logits`` is None, without the prompt's last
    token."""
    logits: mx.array | None
    """The logits of the first token [1, vocabulary]. None: the next step feeds the prompt's last
    token."""
    rope_deltas: mx.array | None


class DecodeStep(NamedTuple):
    """The output of a step: a token for each row, or more if tokens were drafted."""

    tokens: Sequence[GeneratedToken]
    failed: Sequence[tuple[int, Exception]] = ()
    """The rows whose constraints raised, which got no token. The caller removes them."""
    drafts: Sequence[DraftCounts] = ()
    hidden: Sequence[mx.array] = ()
    """For each row that the batch had, the hidden states [1, tokens, width] of the tokens that it
    was fed and has kept. Empty: they were not captured."""


class DecodeBatch:
    """Rows that decode together, each with its own parameters, and all with the adapter of
    ``forward``. Engine thread.

    The sampler knows a row before it joins, and the caller removes it when the row is gone. A row
    with no tokens left is not removed here: the caller does that before the next step.
    """

    def __init__(
        self,
        forward: Forward,
        sampler: BatchSampler,
        blocks: Blocks,
        *,
        background: bool = False,
    ) -> None:
        self.adapter = forward.adapter
        self.background = background
        """Whether its rows are of the background: all of them, or none."""
        self.rows: list[DecodeSequence] = []
        self.prompt_cache: PromptCache = []
        # Whether those are mlx-vlm's caches of a batch: not while a row is alone.
        self._batched = False
        self._forward = forward
        self._sampler = sampler
        self._blocks = blocks
        self._forced = ForcedTokens(forward, sampler, blocks)
        self._sequence_ids: list[int] = []
        self._shifted = False
        """Whether the rows have kept different numbers of tokens in this step."""
        self._taken: set[int] = set()
        """The rows whose drawn token the sampler has before it is returned."""
        # What the next step feeds, [rows], and the scores of those that are not returned yet.
        self._next: mx.array | None = None
        self._scores: list[PendingScores] = []
        self._rope_deltas: mx.array | None = None
        self._steps = 0
        self._eval_interval = _get_batch_cache_eval_interval()
        if self._eval_interval and on_gpu():
            self._eval_interval = max(self._eval_interval, _GPU_EVAL_STEPS)

    def join(self, joining: Joining) -> Sequence[tuple[int, Exception]]:
        """Add a row. If its logits are given, draw its first token, which the next step returns.

        Blocks until its prefill is done. If its constraint raised, the row has not joined and is
        returned.
        """
        row, sequence_ids = joining.row, [joining.row.sequence_id]
        new: list[PendingScores] = []
        if joining.logits is None:
            row.known = True
            first = mx.array([row.tokens[-1]], mx.uint32)
        else:
            first = self._sampler.sample(joining.logits, sequence_ids, [row.generated_tokens])
            if failed := self._sampler.pop_failed():
                return failed
            scores = self._sampler.scores(joining.logits, first, sequence_ids)
            new = [] if scores is None else [scores]
        # Else the first decode step would inherit the graph of the prefill, and the copy of the
        # caches that of the last step.
        mx.eval(first, [score.arrays for score in new], cache_states(joining.prompt_cache))
        if self._next is None:
            self.prompt_cache, self._batched = joining.prompt_cache, False
            self._next = first
            self._rope_deltas = joining.rope_deltas
        else:
            mx.eval(self._next, cache_states(self.prompt_cache))
            self.prompt_cache = batch_slots.join(self.prompt_cache, joining.prompt_cache)
            self._batched = True
            self._next = mx.concatenate([self._next, first])
            if self._rope_deltas is not None and joining.rope_deltas is not None:
                self._rope_deltas = mx.concatenate([self._rope_deltas, joining.rope_deltas])
        self._scores += new
        self.rows.append(row)
        self._sequence_ids.append(row.sequence_id)
        return ()

    def step(self, *, capture_hidden: bool = False) -> DecodeStep:
        """Return the tokens that were drawn ahead, feed them, and draw the next ones. A row
        whose input was known returns none. ``capture_hidden``: return the hidden states of what
        is fed."""
        inputs, scores = self._next, self._scores
        assert inputs is not None, "a step is for at least one row"
        if any(forced := self._forced_now()):
            return self._step_forced(forced, capture_hidden=capture_hidden)
        logits, hidden = self._decode(inputs[:, None], capture_hidden=capture_hidden)
        logits = logits.squeeze(1)
        tokens: list[int] | None = None
        if self._sampler.needs_tokens(self._sequence_ids):
            # The host waits for the tokens while the device is busy with what comes of them.
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            tokens = self._accept(inputs)
        positions = [row.generated_tokens + (not row.known) for row in self.rows]
        self._draw(logits, positions, inputs)
        if tokens is None:
            tokens = self._accept(inputs)
        made = self._return(tokens, scores)
        for row in self.rows:
            row.known = False
        self._clean_up()
        return self._without_failed(made, hidden=_kept(hidden, [1] * len(self.rows)))

    @property
    def last(self) -> Joining | None:
        """Its only row, for another batch, if nothing is drawn ahead. None: it has several, or its
        cache is no single row's."""
        if self._batched or len(self.rows) != 1:
            return None
        return Joining(self.rows[0], self.prompt_cache, None, self._rope_deltas)

    @property
    def undo(self) -> Undo | None:
        """How wrong drafts can be removed from the caches; None: they can't."""
        return self._blocks.alone if len(self.rows) == 1 else self._blocks.together

    @property
    def in_step(self) -> bool:
        """Whether all rows must keep the same number of drafts."""
        return len(self.rows) > 1 and not self._blocks.apart

    @property
    def ahead(self) -> bool:
        """Whether some row's next token is drawn and not returned."""
        return any(not row.known for row in self.rows)

    def flush(self) -> DecodeStep:
        """Return the tokens that were drawn ahead, without a step: for a caller whose next step
        comes much later. Waits for the tokens."""
        assert self._next is not None, "there is at least one row"
        made = self._return(self._accept(self._next), self._scores)
        self._scores = []
        for row in self.rows:
            row.known = True
        return self._without_failed(made)

    def drawn(self) -> list[int]:
        """Return the tokens that the next step feeds, which must follow; waits for them."""
        assert self._next is not None, "there is at least one row"
        return self._accept(self._next)

    def verify(
        self, drafts: Drafts, end_ids: Collection[int], *, capture_hidden: bool = False
    ) -> DecodeStep:
        """Do a step, and also return the drafts for each row as far as they are right.

        Not while ``undo`` is None. A row must get fewer drafts than it has tokens left. Nothing is
        drawn after a token of ``end_ids``. If the batch is ``in_step``, all rows keep as many
        drafts as the one with the fewest. Blocks until the next tokens are drawn.
        ``capture_hidden``: see ``step``.
        """
        inputs, scores = self._next, self._scores
        assert inputs is not None, "a step is for at least one row"
        tokens = mx.concatenate([inputs[:, None].astype(mx.int32), drafts.tokens], axis=1)
        assert self.undo is not None, "the caller has asked"
        rollback = Rollback(self.prompt_cache, tokens.shape[1], self.undo)
        logits, hidden = self._decode(tokens, capture_hidden=capture_hidden)
        made = self._return(self._accept(inputs), scores)
        positions = [row.generated_tokens for row in self.rows]
        drawn = draw(
            logits,
            drafts,
            self._sequence_ids,
            positions,
            self._sampler,
            end_ids,
            in_step=self.in_step,
        )

        def replay(kept_tokens: int) -> None:
            self._forward.decode(tokens[:, :kept_tokens], self.prompt_cache, self._rope_deltas)

        kept = [1 + len(row.accepted) for row in drawn]
        rollback.keep(kept, replay)
        self._shifted = len(set(kept)) > 1
        read, self._scores = score(logits, drawn, self._sequence_ids, self._sampler)
        for decoded in self.rows:
            decoded.known = False
        self._next = mx.array([row.following for row in drawn], inputs.dtype)
        for row, (accepted, _) in zip(self.rows, drawn, strict=True):
            made += _extended(row, accepted, read)
        self._clean_up()
        counts = [
            DraftCounts(sequence_id, length, len(row.accepted))
            for sequence_id, length, row in zip(
                self._sequence_ids, drafts.lengths, drawn, strict=True
            )
            if length
        ]
        return self._without_failed(made, counts, _kept(hidden, kept))

    def _step_forced(self, forced: Sequence[Sequence[int]], *, capture_hidden: bool) -> DecodeStep:
        """Do a step, and also feed and return the tokens that must follow those that it feeds: for
        each row those of ``forced``."""
        inputs, scores = self._next, self._scores
        assert inputs is not None, "a step is for at least one row"
        known = Drafts.of(forced)
        lengths = [1 + length for length in known.lengths]
        tokens = mx.concatenate([inputs[:, None].astype(mx.int32), known.tokens], axis=1)
        rollback = None
        put_windows_in_order(self.prompt_cache)
        if len(set(lengths)) > 1:
            rollback = Rollback(self.prompt_cache, tokens.shape[1], Undo.RECORDED)
        logits, hidden = self._decode(tokens, capture_hidden=capture_hidden)
        if rollback is not None:
            rollback.keep(lengths)
            self._shifted = True
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
        made = self._return(self._accept(inputs), scores)
        read = score_known(logits, forced, self._sequence_ids, self._sampler)
        for row, following in zip(self.rows, forced, strict=True):
            row.known = False
            for token in following:
                self._sampler.accept(row.sequence_id, token)
            made += _extended(row, following, read)
        last = (
            logits[:, -1]
            if rollback is None
            else logits[mx.arange(len(lengths)), mx.array(lengths) - 1]
        )
        self._draw(last, [row.generated_tokens for row in self.rows])
        self._clean_up()
        return self._without_failed(made, hidden=_kept(hidden, lengths))

    def forced_after(self, row: DecodeSequence, token: int) -> Sequence[int]:
        """Return the tokens that must follow ``token``, which a row feeds next according to
        ``drawn``."""
        possible = self._forced.possible(self._sequence_ids)
        return self._forced.after(row, token, self.rows) if possible else ()

    def _forced_now(self) -> Sequence[Sequence[int]]:
        """Return for each row the tokens that must follow the one that it feeds next, as far as
        that is known without waiting for the device; empty if it doesn't pay to feed them at once.
        """
        if not self._forced.possible(self._sequence_ids):
            return ()
        forced: list[Sequence[int]] = []
        for row in self.rows:
            token = row.tokens[-1] if row.known else self._sampler.only(row.sequence_id)
            if token is None:
                forced.append(())
                continue
            self._accept_one(row, token)
            forced.append(self._forced.after(row, token, self.rows))
        return forced if self._forced.pays(forced, self.prompt_cache) else ()

    def leave(self, sequence_ids: Collection[int]) -> None:
        """Remove rows, and free their caches; ignores those that are not here."""
        gone = [
            index
            for index, sequence_id in enumerate(self._sequence_ids)
            if sequence_id in sequence_ids
        ]
        if not gone:
            return
        keep = batch_slots.kept_places(len(self.rows), gone)
        if not keep:
            if self._next is not None and on_gpu():
                # The GPU still computes it: its buffer must not go to another array meanwhile.
                mx.eval(self._next)
            self.rows, self._sequence_ids = [], []
            self.prompt_cache, self._next, self._scores = [], None, []
            self._rope_deltas = None
            return
        assert self._next is not None
        # A cache that is cut before it is computed would hold on to all that it is cut from.
        mx.eval(self._next, cache_states(self.prompt_cache))
        self.rows = [self.rows[index] for index in keep]
        self._sequence_ids = [row.sequence_id for row in self.rows]
        kept = mx.array(keep, mx.int32)
        if len(keep) == 1 and can_be_single(self.prompt_cache):
            # A single row needs no mask. For a mask, Qwen3.5 copies a batch's cache at every step.
            self.prompt_cache = single_row(self.prompt_cache, keep[0])
            self._batched = False
        else:
            longest_tokens = max(len(row.cached) for row in self.rows)
            batch_slots.leave(self.prompt_cache, keep, longest_tokens)
        self._next = self._next[kept]
        if self._rope_deltas is not None:
            self._rope_deltas = self._rope_deltas[kept]

    def give_up_slots(self) -> None:
        """Free the memory that is kept for rows that may join."""
        batch_slots.give_up_slots(self.prompt_cache)

    def find(self, sequence_id: int) -> tuple[DecodeSequence, int | None] | None:
        """Return a row and its place in ``prompt_cache``; the place is None if that cache is a
        single row's. None if the row isn't here."""
        if sequence_id not in self._sequence_ids:
            return None
        index = self._sequence_ids.index(sequence_id)
        return self.rows[index], index if self._batched else None

    def _decode(
        self, tokens: mx.array, *, capture_hidden: bool
    ) -> tuple[mx.array, mx.array | None]:
        def run() -> mx.array:
            return self._forward.decode(tokens, self.prompt_cache, self._rope_deltas)

        return self._forward.capture_hidden(run) if capture_hidden else (run(), None)

    def _draw(
        self, logits: mx.array, positions: Sequence[int], last: mx.array | None = None
    ) -> None:
        """Begin to draw what the next step feeds. ``last``: see :meth:`BatchSampler.sample`."""
        drawn = self._sampler.sample(logits, self._sequence_ids, positions, last)
        drawn_scores = self._sampler.scores(logits, drawn, self._sequence_ids)
        self._next = drawn
        self._scores = [] if drawn_scores is None else [drawn_scores]
        arrays = [drawn, *(array for score in self._scores for array in score.arrays)]
        mx.async_eval(arrays)  # type: ignore[no-untyped-call]

    def _without_failed(
        self,
        made: Sequence[GeneratedToken],
        drafts: Sequence[DraftCounts] = (),
        hidden: Sequence[mx.array] = (),
    ) -> DecodeStep:
        failed = self._sampler.pop_failed()
        gone = {sequence_id for sequence_id, _ in failed}
        if gone:
            made = [token for token in made if token.sequence_id not in gone]
        return DecodeStep(made, failed, drafts, hidden)

    def _accept(self, inputs: mx.array) -> list[int]:
        """Read the inputs, and give the sampler those that it doesn't know yet."""
        tokens = cast(list[int], inputs.tolist())
        if self._sampler.depends_on_tokens(self._sequence_ids):
            for row, token in zip(self.rows, tokens, strict=True):
                self._accept_one(row, token)
        return tokens

    def _accept_one(self, row: DecodeSequence, token: int) -> None:
        """Give the sampler the token that a row feeds next, unless it knows that."""
        if not row.known and row.sequence_id not in self._taken:
            self._taken.add(row.sequence_id)
            self._sampler.accept(row.sequence_id, token)

    def _return(self, tokens: list[int], scores: list[PendingScores]) -> list[GeneratedToken]:
        self._taken.clear()
        read: dict[int, Any] = {}
        for pending in scores:
            read |= pending.read()
        made = []
        for row, token in zip(self.rows, tokens, strict=True):
            if row.known:
                continue
            row.tokens.append(token)
            row.generated_tokens += 1
            row.left_tokens -= 1
            made.append(GeneratedToken(row.sequence_id, token, read.get(row.sequence_id)))
        return made

    def _clean_up(self) -> None:
        self._steps += 1
        if self._shifted:
            longest_tokens = max(len(row.cached) for row in self.rows)
            cut_padding(self.prompt_cache, len(self.rows), longest_tokens)
            self._shifted = False
        if self._eval_interval and self._steps % self._eval_interval == 0:
            # Otherwise arrays on which no token depends, such as a cache's offsets, are never
            # evaluated.
            mx.eval(cache_states(self.prompt_cache))
            mx.clear_cache()


def _extended(
    row: DecodeSequence, tokens: Sequence[int], scores: Mapping[tuple[int, int], TokenScores]
) -> list[GeneratedToken]:
    """Append tokens to a row; return them, with their ``scores`` by (row, place)."""
    row.tokens += tokens
    row.generated_tokens += len(tokens)
    row.left_tokens -= len(tokens)
    return [
        GeneratedToken(row.sequence_id, token, scores.get((row.sequence_id, place)))
        for place, token in enumerate(tokens)
    ]


def _kept(hidden: mx.array | None, kept_tokens: Sequence[int]) -> Sequence[mx.array]:
    """Return for each row the hidden states of this many tokens, the first ones."""
    if hidden is None:
        return ()
    return [hidden[row : row + 1, :kept] for row, kept in enumerate(kept_tokens)]
