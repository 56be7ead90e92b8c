"""Speculation: steps of the decode batch that make several tokens of a row at once.

The next tokens are drafted (:mod:`lmx.worker.mlx.drafting`) and checked in one forward pass. A row
has the same tokens with speculation as without (:mod:`lmx.worker.mlx.decoding.verify`), whether
they come sooner or not.

So it is measured whether speculation pays, and how many tokens to draft; that part is pure
(:mod:`lmx.worker.mlx.decoding.speculation_gate`).
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from lmx.protocol.messages.data import Assist
from lmx.protocol.messages.specs import SpeculationSpec
from lmx.protocol.models.sampling import MAX_ASSISTANT_TOKENS
from lmx.worker.mlx.decoding.decode import DecodeBatch, DecodeStep
from lmx.worker.mlx.decoding.forced_tokens import token_allowance
from lmx.worker.mlx.decoding.pace import PrefillPace
from lmx.worker.mlx.decoding.sequence import DecodeSequence
from lmx.worker.mlx.decoding.speculation_gate import Allowance, Experience, SpeculationPace
from lmx.worker.mlx.decoding.verify import Drafts
from lmx.worker.mlx.drafting.token_drafter import SequenceDrafter, TokenDrafter
from lmx.worker.mlx.model.hidden import HiddenStates
from lmx.worker.mlx.sampling.sampler import BatchSampler

# A draft model's share of the time that running streams may wait for a prompt.
_READING_SHARE: Final = 0.25


@dataclass(slots=True)
class _Drafting:
    """What is known of a row."""

    pace: SpeculationPace
    confidence_threshold: float | None
    drafter: SequenceDrafter
    streak: int = 0
    """How many of the last tokens came as they would have been drafted."""


class Speculation:
    """Steps a decode batch, with drafts for its rows while they are few. Engine thread.

    Nothing is drafted after a token of ``end_ids``. If a batch's caches can't roll back a different
    number of tokens for each row, all rows keep as many drafts as the one with the fewest.
    """

    def __init__(
        self,
        spec: SpeculationSpec,
        drafter: TokenDrafter,
        sampler: BatchSampler,
        end_ids: Collection[int],
        max_decode_stall_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._spec = spec
        self._drafter = drafter
        self._sampler = sampler
        self._end_ids = end_ids
        self._clock = clock
        self._rows: dict[int, _Drafting] = {}
        self._experience = Experience()
        self._allowance = Allowance() if spec.auto else None
        self._by_signs = spec.auto and drafter.foresees
        self._crowded = self._drafted = False
        self._reading = PrefillPace(_READING_SHARE * max_decode_stall_s)
        # When the last step ended, and whether it was one with drafts. None: the time until
        # the next one ends says nothing.
        self._ended_s: float | None = None
        self._last_tried = False

    def add(self, sequence_id: int, assist: Assist) -> None:
        """Draft for this row once it decodes, with its own parameters if it has some."""
        tokens = assist.num_assistant_tokens or self._spec.num_assistant_tokens
        threshold = assist.assistant_confidence_threshold
        if threshold is None:
            threshold = self._spec.assistant_confidence_threshold
        self._rows[sequence_id] = _Drafting(
            SpeculationPace(
                self._experience, min(tokens, MAX_ASSISTANT_TOKENS), by_signs=self._by_signs
            ),
            threshold,
            self._drafter.open_sequence(assist),
        )

    @property
    def state(self) -> str:
        """What the last step did, for people."""
        if self._crowded:
            return f"off while there are more than {self._spec.max_rows} requests"
        if self._drafted:
            return "on"
        return "waits for text that repeats" if self._by_signs else "off while it does not pay"

    def observed_tokens(self, sequence_id: int) -> int:
        """Return of how many of its prompt's last tokens a row observes the hidden states. It
        is 0 while no drafts are made for it."""
        mine = self._rows.get(sequence_id)
        return 0 if mine is None or mine.pace.pausing else self._drafter.observed_tokens

    def observe(self, sequence_id: int, hidden: HiddenStates) -> None:
        """Take the hidden states of a row's prompt."""
        self._rows[sequence_id].drafter.observe(hidden)

    def remove(self, sequence_id: int) -> None:
        """Forget a row, and free what its drafter holds; ignores one that is unknown."""
        if self._rows.pop(sequence_id, None) is not None:
            self._ended_s = None

    def step(self, batch: DecodeBatch, *, alone: bool) -> DecodeStep:
        """Step the batch. ``alone`` means that there is no other work before and after this step,
        so that its time can be compared."""
        if alone:
            return self._step(batch)
        self.interrupt()
        step = self._step(batch)
        self.interrupt()
        return step

    def interrupt(self) -> None:
        """Note that other work comes before the next step, so that its time means nothing."""
        self._ended_s = None

    def _step(self, batch: DecodeBatch) -> DecodeStep:
        self._crowded = len(batch.rows) > self._spec.max_rows
        possible = not self._crowded and batch.undo is not None
        # A row that pauses captures too: it would have to begin with nothing afterwards.
        capture_hidden = possible and self._drafter.observed_tokens > 0
        wanted = self._wanted(batch) if possible else []
        self._drafted = any(wanted)
        if not self._drafted:
            return self._step_plainly(batch, possible=possible, capture_hidden=capture_hidden)
        rows = list(batch.rows)
        drafted: list[mx.array | None] = []
        forced_ids: set[int] = set()
        for row, token, count in zip(rows, batch.drawn(), wanted, strict=True):
            forced = batch.forced_after(row, token)[: row.left_tokens - 1] if count else ()
            if forced:
                forced_ids.add(row.sequence_id)
            drafted.append(mx.array(list(forced)) if forced else self._draft(row, token, count))
        drafts = None
        if not batch.in_step or all(draft is not None for draft in drafted):
            drafts = _joined(drafted)
        if drafts is None:
            step = batch.step(capture_hidden=capture_hidden)
        else:
            step = batch.verify(drafts, self._end_ids, capture_hidden=capture_hidden)
        accepted = {one.sequence_id: one.accepted_tokens for one in step.drafts}
        after_plain, began_s = not self._last_tried, self._ended_s
        took_s = self._took_s(tried=True)
        if not forced_ids:
            self._settle(len(rows), drafts, accepted, after_plain=after_plain, began_s=began_s)
        for row, count, draft in zip(rows, wanted, drafted, strict=True):
            right = accepted.get(row.sequence_id, 0)
            mine = self._rows[row.sequence_id]
            if row.sequence_id in forced_ids:
                mine.drafter.keep(0)  # It has drafted nothing.
                continue
            mine.drafter.keep(right)
            size = 0 if draft is None else draft.size
            # Nobody checked what it drafted, where another row that it keeps in step with had none.
            unchecked = size > 0 and drafts is None
            if count and not unchecked:
                mine.pace.tried(len(rows), size, right, took_s)
                if mine.pace.pausing:
                    mine.streak = 0
            else:
                mine.pace.rested()
        self._report_hidden(rows, step)
        return step

    def _settle(
        self,
        rows: int,
        drafts: Drafts | None,
        accepted: Mapping[int, int],
        *,
        after_plain: bool,
        began_s: float | None,
    ) -> None:
        """Charge a step that drafted. One after a plain step has also waited for what that one
        began."""
        plain_s = self._experience.average_s(rows)
        if self._allowance is None or plain_s is None:
            return
        took_s = None
        if began_s is not None and self._ended_s is not None:
            took_s = self._ended_s - began_s - (plain_s if after_plain else 0)
        drafted = 0 if drafts is None else max(drafts.lengths)
        made = 1 + sum(accepted.values()) / rows
        self._allowance.tried(rows, plain_s, drafted, made, took_s)

    def _report_hidden(self, rows: Sequence[DecodeSequence], step: DecodeStep) -> None:
        """Let each row observe the hidden states of the tokens that it was fed and has kept, which
        are its last ones."""
        if not step.hidden:
            return
        for row, states in zip(rows, step.hidden, strict=True):
            begin = len(row.tokens) - states.shape[1]
            self._rows[row.sequence_id].drafter.observe(HiddenStates(begin, states))

    def _wanted(self, batch: DecodeBatch) -> list[int]:
        """Return for each row how many tokens to draft."""
        rows = batch.rows
        wanted = [max(0, self._wanted_by(row, rows)) for row in rows]
        return wanted if all(wanted) or not batch.in_step else []

    def _wanted_by(self, row: DecodeSequence, rows: Sequence[DecodeSequence]) -> int:
        mine = self._rows[row.sequence_id]
        # One token is drawn already.
        most = min(mine.pace.tokens(len(rows)), row.left_tokens - 1, token_allowance(row, rows))
        if mine.pace.pausing:
            return most
        if self._allowance is not None:
            plain_s = self._experience.average_s(len(rows))
            if plain_s is None or self._allowance.is_used_up:
                return 0
            most = min(most, self._allowance.affordable(len(rows), plain_s))
        length = len(row.tokens) + (not row.known)
        most_drafts = mine.drafter.most_drafts(length)
        if most_drafts is not None:
            most = min(most, most_drafts)
            if most <= 0:
                return 0
        begin = mine.drafter.read_tokens
        chunk_tokens = self._reading.chunk(begin, decoding=True)
        if mine.drafter.unread_tokens(length) <= chunk_tokens:
            return most
        began_s = self._clock()
        mine.drafter.read(row.tokens[begin : begin + chunk_tokens])
        took_s = self._clock() - began_s
        self._reading.prefilled(chunk_tokens, took_s, begin, decoding=True)
        if self._allowance is not None:
            self._allowance.spent(took_s)
        self._ended_s = None
        return 0

    def _draft(self, row: DecodeSequence, drawn: int, count: int) -> mx.array | None:
        if not count or drawn in self._end_ids:
            return None
        drafter = self._rows[row.sequence_id].drafter
        # With the noise of the row's own draw it is more often right than the likeliest token.
        # But penalties and grammars know only the tokens up to the first draft.
        alike = not self._sampler.depends_on_tokens([row.sequence_id])

        def choose(logits: mx.array, drafted: int) -> mx.array:
            if not alike:
                return mx.argmax(logits, axis=-1)
            first = row.generated_tokens + (not row.known) + drafted
            positions = list(range(first, first + logits.shape[0]))
            return self._sampler.sample(logits, [row.sequence_id] * len(positions), positions)

        rest = _rest(row, drawn, drafter.read_tokens)
        threshold = self._rows[row.sequence_id].confidence_threshold
        return drafter.draft(rest, count, choose, threshold)

    def _step_plainly(
        self, batch: DecodeBatch, *, possible: bool, capture_hidden: bool
    ) -> DecodeStep:
        rows = list(batch.rows)
        step = batch.step(capture_hidden=capture_hidden)
        took_s = self._took_s(tried=False)
        if took_s is not None:
            self._experience.measured(len(rows), took_s)
        plain_s = self._experience.average_s(len(rows))
        if self._allowance is not None and possible and plain_s is not None:
            self._allowance.stepped_plainly(plain_s)
        for row in rows:
            mine = self._rows[row.sequence_id]
            if mine.pace.pausing and possible:
                _look_back(mine, row.tokens)
            mine.pace.rested()
        self._report_hidden(rows, step)
        return step

    def _took_s(self, *, tried: bool) -> float | None:
        """Return the time since the end of the last step, if that was of the same kind: otherwise
        the work of one kind is waited for in the other."""
        before_s, self._ended_s = self._ended_s, self._clock()
        was_tried, self._last_tried = self._last_tried, tried
        return None if before_s is None or tried != was_tried else self._ended_s - before_s


def _rest(row: DecodeSequence, drawn: int, begin: int) -> list[int]:
    """Return the row's tokens from ``begin`` on, including the one that is drawn and not
    returned."""
    unreturned = [] if row.known else [drawn]
    return row.tokens[begin:] + unreturned * (begin <= len(row.tokens))


def _look_back(row: _Drafting, tokens: Sequence[int]) -> None:
    """Compare a pausing row's last token with the token that would have been drafted."""
    predicted = row.drafter.predicted(tokens[row.drafter.read_tokens :])
    row.streak = row.streak + 1 if predicted else 0
    row.pace.predicted(row.streak)


def _joined(drafted: Sequence[mx.array | None]) -> Drafts | None:
    """Return the drafts of all rows; None: there are none."""
    lengths = [0 if draft is None else int(draft.size) for draft in drafted]
    width = max(lengths)
    if not width:
        return None
    lines = [
        mx.zeros(width, mx.int32)
        if draft is None
        else mx.pad(draft.astype(mx.int32), (0, width - draft.size))
        for draft in drafted
    ]
    return Drafts(mx.stack(lines), lengths)
