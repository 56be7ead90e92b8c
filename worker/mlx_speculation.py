"""Speculation: steps of the decode batch that make several tokens of a row at once.

What may come is guessed, by a draft model or by looking it up, and checked in one forward. A
row has the same tokens with it as without (:mod:`lmx.worker.mlx_verify`), sooner or not:
whether it pays is measured (:mod:`lmx.worker.speculation_pace`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from lmx.protocol.data import Assist
from lmx.protocol.specs import SpeculationSpec
from lmx.worker.mlx_decode import DecodeBatch, DecodeRow, DecodeStep
from lmx.worker.mlx_draft import DraftModel, DraftRow
from lmx.worker.mlx_rollback import fits_rows
from lmx.worker.mlx_sampling import RowSampler
from lmx.worker.mlx_verify import Guesses
from lmx.worker.prefill_pace import PrefillPace
from lmx.worker.prompt_lookup import PromptLookup
from lmx.worker.speculation_pace import Experience, SpeculationPace

MOST_ASSISTANT_TOKENS: Final = 32
MOST_NGRAM_SIZE: Final = 8
"""A request that asks for more than these gets them."""

# The draft model's share of the time that running streams may wait for a prompt.
_READING_SHARE: Final = 0.25


@dataclass(slots=True)
class _Row:
    """What is kept of a row: how it is guessed for, with either ``lookup`` or ``draft``."""

    pace: SpeculationPace
    confidence_threshold: float | None
    lookup: PromptLookup | None
    draft: DraftRow | None
    streak: int = 0


class Speculation:
    """Steps a decode batch, with guesses for its rows while they are few. Engine thread.

    Without a draft model, guesses are looked up. Nothing is guessed behind a token of
    ``end_ids``. Of a batch whose caches can't take back a different number of tokens for each
    row, only a single row is guessed for.
    """

    def __init__(
        self,
        spec: SpeculationSpec,
        draft: DraftModel | None,
        sampler: RowSampler,
        end_ids: Collection[int],
        max_decode_stall_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._spec = spec
        self._draft = draft
        self._sampler = sampler
        self._end_ids = end_ids
        self._clock = clock
        self._rows: dict[int, _Row] = {}
        self._experience = Experience()
        self._reading = PrefillPace(_READING_SHARE * max_decode_stall_s)
        # When the last step ended, and whether it was one with guesses. None: the time until
        # the next one ends says nothing.
        self._ended_s: float | None = None
        self._last_tried = False

    def add(self, row_id: int, assist: Assist) -> None:
        """Guess for this row once it decodes, by its own parameters where it has some."""
        tokens = assist.num_assistant_tokens or self._spec.num_assistant_tokens
        ngram_size = assist.max_ngram_size or self._spec.max_ngram_size
        threshold = assist.assistant_confidence_threshold
        if threshold is None:
            threshold = self._spec.assistant_confidence_threshold
        self._rows[row_id] = _Row(
            SpeculationPace(self._experience, min(tokens, MOST_ASSISTANT_TOKENS)),
            threshold,
            None if self._draft else PromptLookup(min(ngram_size, MOST_NGRAM_SIZE)),
            self._draft.open_row() if self._draft else None,
        )

    def remove(self, row_id: int) -> None:
        """Forget a row, and free its draft model's cache; ignores one that is unknown."""
        if self._rows.pop(row_id, None) is not None:
            self._ended_s = None

    def step(self, batch: DecodeBatch, *, alone: bool) -> DecodeStep:
        """Step the batch. ``alone``: there is no other work before and after this step, so that
        what it takes can be compared."""
        if alone:
            return self._step(batch)
        self._ended_s = None
        step = self._step(batch)
        self._ended_s = None
        return step

    def _step(self, batch: DecodeBatch) -> DecodeStep:
        wanted = self._wanted(batch)
        if not any(wanted):
            return self._step_plainly(batch)
        rows = list(batch.rows)
        guessed = [
            self._guess(row, token, count)
            for row, token, count in zip(rows, batch.drawn(), wanted, strict=True)
        ]
        guesses = _joined(guessed)
        step = batch.step() if guesses is None else batch.verify(guesses, self._end_ids)
        accepted = {drafts.row_id: drafts.accepted_tokens for drafts in step.drafts}
        took_s = self._took_s(tried=True)
        for row, count, guess in zip(rows, wanted, guessed, strict=True):
            right = accepted.get(row.row_id, 0)
            mine = self._rows[row.row_id]
            if mine.draft is not None:
                mine.draft.keep(right)
            if count:
                size = 0 if guess is None else guess.size
                mine.pace.tried(len(rows), size, right, took_s)
            else:
                mine.pace.rested()
        return step

    def _wanted(self, batch: DecodeBatch) -> list[int]:
        """Return for each row how many tokens to guess."""
        rows = batch.rows
        if len(rows) > self._spec.max_rows or not fits_rows(batch.prompt_cache, len(rows)):
            return []
        return [self._wanted_by(row, len(rows)) for row in rows]

    def _wanted_by(self, row: DecodeRow, rows: int) -> int:
        mine = self._rows[row.row_id]
        # One token is drawn already.
        most = min(mine.pace.tokens(rows), row.left_tokens - 1)
        if mine.draft is None or self._draft is None or mine.pace.pausing:
            return most
        length = len(row.tokens) + 1
        if self._draft.context_tokens is not None:
            most = min(most, self._draft.context_tokens - length)
            if most <= 0:
                return 0
        begin = mine.draft.read_tokens
        chunk_tokens = self._reading.chunk(begin, decoding=True)
        if length - begin <= chunk_tokens:
            return most
        began_s = self._clock()
        mine.draft.read(row.tokens[begin : begin + chunk_tokens])
        self._reading.prefilled(chunk_tokens, self._clock() - began_s, begin, decoding=True)
        self._ended_s = None
        return 0

    def _guess(self, row: DecodeRow, drawn: int, count: int) -> mx.array | None:
        if not count or drawn in self._end_ids:
            return None
        mine = self._rows[row.row_id]
        if mine.lookup is not None:
            mine.lookup.extend(_rest(row, drawn, len(mine.lookup)))
            found = mine.lookup.propose(count)
            return mx.array(found) if found else None
        assert mine.draft is not None
        # With the noise of the row's own draw it is more often right than the likeliest token.
        # But penalties and grammars know only the tokens up to the first guess.
        alike = not self._sampler.needs_tokens([row.row_id])

        def choose(logits: mx.array, guessed: int) -> mx.array:
            if alike:
                position = row.made_tokens + 1 + guessed
                return self._sampler.sample(logits, [row.row_id], [position])
            return mx.argmax(logits, axis=-1)

        rest = _rest(row, drawn, mine.draft.read_tokens)
        return mine.draft.guess(rest, count, choose, mine.confidence_threshold)

    def _step_plainly(self, batch: DecodeBatch) -> DecodeStep:
        rows = list(batch.rows)
        step = batch.step()
        took_s = self._took_s(tried=False)
        if took_s is not None:
            self._experience.measured(len(rows), took_s)
        for row in rows:
            mine = self._rows[row.row_id]
            if mine.pace.pausing and mine.lookup is not None:
                _look_back(mine, mine.lookup, row.tokens)
            mine.pace.rested()
        return step

    def _took_s(self, *, tried: bool) -> float | None:
        """Return the time since the last step's end, if that one was of the same kind: else
        work of the one kind is waited for in the other."""
        before_s, self._ended_s = self._ended_s, self._clock()
        comparable = before_s is not None and tried == self._last_tried
        self._last_tried = tried
        return self._ended_s - before_s if comparable and before_s is not None else None


def _rest(row: DecodeRow, drawn: int, begin: int) -> list[int]:
    """Return the row's tokens from ``begin`` on, with the one that is drawn and not returned."""
    return row.tokens[begin:] + [drawn] * (begin <= len(row.tokens))


def _look_back(row: _Row, lookup: PromptLookup, tokens: Sequence[int]) -> None:
    """Compare a pausing row's last token with what would have been guessed."""
    new = tokens[len(lookup) :]
    row.streak = row.streak + 1 if new and lookup.propose(1) == new else 0
    lookup.extend(new)
    row.pace.foreseen(row.streak)


def _joined(guessed: Sequence[mx.array | None]) -> Guesses | None:
    """Return the guesses of all rows; None: there are none."""
    lengths = [0 if guess is None else int(guess.size) for guess in guessed]
    width = max(lengths)
    if not width:
        return None
    lines = [
        mx.zeros(width, mx.int32)
        if guess is None
        else mx.pad(guess.astype(mx.int32), (0, width - guess.size))
        for guess in guessed
    ]
    return Guesses(mx.stack(lines), lengths)
