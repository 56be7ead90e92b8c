"""Speculation: steps of the decode batch that make several tokens of a row at once.

The next tokens are guessed (:mod:`lmx.worker.mlx.guessing`) and checked in one forward pass. A row
has the same tokens with speculation as without (:mod:`lmx.worker.mlx.decoding.verify`), whether
they come sooner or not.

So it is measured whether speculation pays, and how many tokens to guess; that part is pure. It pays
if the row's tokens come faster than by plain steps, with all costs: the guessing, the checking, and
that a step can't begin before the tokens of the last one are known. The costs depend on the device,
the model and the other rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from lmx.protocol.messages.data import Assist
from lmx.protocol.messages.specs import SpeculationSpec
from lmx.protocol.models.sampling import MAX_ASSISTANT_TOKENS
from lmx.worker.mlx.decoding.decode import DecodeBatch, DecodeStep
from lmx.worker.mlx.decoding.decode_row import DecodeRow
from lmx.worker.mlx.decoding.pace import PrefillPace
from lmx.worker.mlx.decoding.sure import room_tokens
from lmx.worker.mlx.decoding.verify import Guesses
from lmx.worker.mlx.guessing.guesser import Guesser, RowGuesser
from lmx.worker.mlx.model.hidden import HiddenStates
from lmx.worker.mlx.sampling.sampler import RowSampler

_TRIAL_STEPS: Final = 4
_SUCCESS_STEPS: Final = 16
_FIRST_PAUSE_STEPS: Final = 16
_LONGEST_PAUSE_STEPS: Final = 256
# Of the next pause's length, which has doubled when this one began.
_FORESEEN_SHARE: Final = 4
_DISCOURAGING_TRIALS: Final = 8
# Plain steps are measured anew after so many of the others: a context grows, a machine heats up.
_REFRESH_STEPS: Final = 256
_PLAIN_SAMPLES: Final = 2
_NEW_SHARE: Final = 0.25
# Measurements scatter: an equal result is no reason to pause.
_MARGIN: Final = 1.05
# A trial that is this much slower than plain steps ends at once.
_HOPELESS: Final = 2.0


class Experience:
    """What is known for all rows of an engine: how long a plain step takes, by the number of rows,
    and how many consecutive trials have failed."""

    def __init__(self) -> None:
        self.vain_trials = 0
        self._average_s: dict[int, float] = {}
        self._samples: dict[int, int] = {}

    def measured(self, rows: int, took_s: float) -> None:
        """Take the time of a plain step that followed another plain one. (After a step of the other
        kind there is nothing to wait for: its tokens are known.)"""
        average_s = self._average_s.get(rows, took_s)
        self._average_s[rows] = average_s + _NEW_SHARE * (took_s - average_s)
        self._samples[rows] = self._samples.get(rows, 0) + 1

    def average_s(self, rows: int) -> float | None:
        """Return how long a step takes; None: it must be measured first."""
        return self._average_s[rows] if self._samples.get(rows, 0) >= _PLAIN_SAMPLES else None

    def renew(self, rows: int) -> None:
        """Ask for new samples."""
        self._samples[rows] = 0


class SpeculationPace:
    """One row's pace. A pause is short at first and doubles each time the trial after it fails.

    A row begins with a pause if the trials of earlier rows failed. So a draft model that is too
    slow for this device doesn't read every prompt for nothing.
    """

    def __init__(self, experience: Experience, most_tokens: int) -> None:
        self._experience = experience
        self._most_tokens = most_tokens
        self._accepted = float(most_tokens)
        self._pause_steps = _FIRST_PAUSE_STEPS
        discouraged = experience.vain_trials >= _DISCOURAGING_TRIALS
        self._left_steps = _LONGEST_PAUSE_STEPS if discouraged else 0
        self._begin_trial()

    @property
    def pausing(self) -> bool:
        """Whether nothing is guessed for now because it didn't pay."""
        return self._left_steps > 0

    def tokens(self, rows: int) -> int:
        """Return how many tokens to guess in the next step, of ``rows`` rows; 0: none."""
        if self.pausing or self._experience.average_s(rows) is None:
            return 0
        # One more than what is accepted as a rule, so that it can become more.
        return min(self._most_tokens, int(self._accepted + 0.5) + 1)

    def rested(self) -> None:
        """Note that a step passed without a trial."""
        self._left_steps = max(0, self._left_steps - 1)

    def foreseen(self, tokens: int) -> None:
        """Note that the last ``tokens`` tokens came as they would have been guessed. This ends a
        pause if the number is large for its length."""
        if tokens >= self._pause_steps // _FORESEEN_SHARE:
            self._left_steps = 0

    def tried(self, rows: int, guessed: int, accepted: int, took_s: float | None) -> None:
        """Note a step of ``rows`` rows with ``guessed`` tokens for this row, of which ``accepted``
        were right. ``guessed`` is 0 if there was nothing to guess from. ``took_s`` is None if the
        time is not known."""
        if guessed:
            # All guesses were right: nobody knows how many more would have been.
            seen = 2 * guessed if accepted == guessed else accepted
            self._accepted += _NEW_SHARE * (min(seen, self._most_tokens) - self._accepted)
        if took_s is None:
            return
        self._steps += 1
        share = max(_NEW_SHARE, 1 / self._steps)
        self._took_s += share * (took_s - self._took_s)
        self._made += share * (1 + accepted - self._made)
        self._judge(rows)

    def _judge(self, rows: int) -> None:
        plain_s = self._experience.average_s(rows)
        if plain_s is None:
            return
        margin = _MARGIN if self._steps >= _TRIAL_STEPS else _HOPELESS
        if self._took_s > margin * plain_s * self._made:
            self._left_steps = self._pause_steps
            self._pause_steps = min(2 * self._pause_steps, _LONGEST_PAUSE_STEPS)
            self._experience.vain_trials += 1
            self._begin_trial()
        elif self._steps >= _SUCCESS_STEPS:
            self._pause_steps = _FIRST_PAUSE_STEPS
            self._experience.vain_trials = 0
            if self._steps % _REFRESH_STEPS == 0:
                self._experience.renew(rows)

    def _begin_trial(self) -> None:
        self._steps = 0
        self._took_s = 0.0
        self._made = 0.0


# A draft model's share of the time that running streams may wait for a prompt.
_READING_SHARE: Final = 0.25


@dataclass(slots=True)
class _Row:
    """What is known of a row."""

    pace: SpeculationPace
    confidence_threshold: float | None
    guesser: RowGuesser
    streak: int = 0
    """How many of the last tokens came as they would have been guessed."""


class Speculation:
    """Steps a decode batch, with guesses for its rows while they are few. Engine thread.

    Nothing is guessed after a token of ``end_ids``. If a batch's caches can't roll back a different
    number of tokens for each row, all rows keep as many guesses as the one with the fewest.
    """

    def __init__(
        self,
        spec: SpeculationSpec,
        guesser: Guesser,
        sampler: RowSampler,
        end_ids: Collection[int],
        max_decode_stall_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._spec = spec
        self._guesser = guesser
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

    def add(self, sequence_id: int, assist: Assist) -> None:
        """Guess for this row once it decodes, with its own parameters if it has some."""
        tokens = assist.num_assistant_tokens or self._spec.num_assistant_tokens
        threshold = assist.assistant_confidence_threshold
        if threshold is None:
            threshold = self._spec.assistant_confidence_threshold
        self._rows[sequence_id] = _Row(
            SpeculationPace(self._experience, min(tokens, MAX_ASSISTANT_TOKENS)),
            threshold,
            self._guesser.open_row(assist),
        )

    def heard_tokens(self, sequence_id: int) -> int:
        """Return of how many of its prompt's last tokens a row wants to hear the hidden states. It
        is 0 while no guesses are made for it."""
        mine = self._rows.get(sequence_id)
        return 0 if mine is None or mine.pace.pausing else self._guesser.heard_tokens

    def hear(self, sequence_id: int, hidden: HiddenStates) -> None:
        """Take the hidden states of a row's prompt."""
        self._rows[sequence_id].guesser.hear(hidden)

    def remove(self, sequence_id: int) -> None:
        """Forget a row, and free what its guesser holds; ignores one that is unknown."""
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
        possible = len(batch.rows) <= self._spec.max_rows and batch.undo is not None
        # A row that pauses listens too: it would have to begin with nothing afterwards.
        listen = possible and self._guesser.heard_tokens > 0
        wanted = self._wanted(batch) if possible else []
        if not any(wanted):
            return self._step_plainly(batch, listen=listen)
        rows = list(batch.rows)
        guessed: list[mx.array | None] = []
        certain: set[int] = set()
        for row, token, count in zip(rows, batch.drawn(), wanted, strict=True):
            sure = batch.sure_after(row, token)[: row.left_tokens - 1] if count else ()
            if sure:
                certain.add(row.sequence_id)
            guessed.append(mx.array(list(sure)) if sure else self._guess(row, token, count))
        guesses = None
        if not batch.in_step or all(guess is not None for guess in guessed):
            guesses = _joined(guessed)
        if guesses is None:
            step = batch.step(listen=listen)
        else:
            step = batch.verify(guesses, self._end_ids, listen=listen)
        accepted = {drafts.sequence_id: drafts.accepted_tokens for drafts in step.drafts}
        took_s = self._took_s(tried=True)
        for row, count, guess in zip(rows, wanted, guessed, strict=True):
            right = accepted.get(row.sequence_id, 0)
            mine = self._rows[row.sequence_id]
            if row.sequence_id in certain:
                mine.guesser.keep(0)  # It has guessed nothing.
                continue
            mine.guesser.keep(right)
            if count:
                size = 0 if guess is None else guess.size
                mine.pace.tried(len(rows), size, right, took_s)
            else:
                mine.pace.rested()
        self._tell(rows, step)
        return step

    def _tell(self, rows: Sequence[DecodeRow], step: DecodeStep) -> None:
        """Let each row hear the hidden states of the tokens that it was fed and has kept, which are
        its last ones."""
        if not step.hidden:
            return
        for row, states in zip(rows, step.hidden, strict=True):
            begin = len(row.tokens) - states.shape[1]
            self._rows[row.sequence_id].guesser.hear(HiddenStates(begin, states))

    def _wanted(self, batch: DecodeBatch) -> list[int]:
        """Return for each row how many tokens to guess."""
        rows = batch.rows
        wanted = [max(0, self._wanted_by(row, rows)) for row in rows]
        return wanted if all(wanted) or not batch.in_step else []

    def _wanted_by(self, row: DecodeRow, rows: Sequence[DecodeRow]) -> int:
        mine = self._rows[row.sequence_id]
        # One token is drawn already.
        most = min(mine.pace.tokens(len(rows)), row.left_tokens - 1, room_tokens(row, rows))
        if mine.pace.pausing:
            return most
        length = len(row.tokens) + (not row.known)
        room = mine.guesser.room_tokens(length)
        if room is not None:
            most = min(most, room)
            if most <= 0:
                return 0
        begin = mine.guesser.read_tokens
        chunk_tokens = self._reading.chunk(begin, decoding=True)
        if mine.guesser.unread_tokens(length) <= chunk_tokens:
            return most
        began_s = self._clock()
        mine.guesser.read(row.tokens[begin : begin + chunk_tokens])
        self._reading.prefilled(chunk_tokens, self._clock() - began_s, begin, decoding=True)
        self._ended_s = None
        return 0

    def _guess(self, row: DecodeRow, drawn: int, count: int) -> mx.array | None:
        if not count or drawn in self._end_ids:
            return None
        guesser = self._rows[row.sequence_id].guesser
        # With the noise of the row's own draw it is more often right than the likeliest token.
        # But penalties and grammars know only the tokens up to the first guess.
        alike = not self._sampler.depends_on_tokens([row.sequence_id])

        def choose(logits: mx.array, guessed: int) -> mx.array:
            if not alike:
                return mx.argmax(logits, axis=-1)
            first = row.generated_tokens + (not row.known) + guessed
            positions = list(range(first, first + logits.shape[0]))
            return self._sampler.sample(logits, [row.sequence_id] * len(positions), positions)

        rest = _rest(row, drawn, guesser.read_tokens)
        threshold = self._rows[row.sequence_id].confidence_threshold
        return guesser.guess(rest, count, choose, threshold)

    def _step_plainly(self, batch: DecodeBatch, *, listen: bool) -> DecodeStep:
        rows = list(batch.rows)
        step = batch.step(listen=listen)
        took_s = self._took_s(tried=False)
        if took_s is not None:
            self._experience.measured(len(rows), took_s)
        for row in rows:
            mine = self._rows[row.sequence_id]
            if mine.pace.pausing:
                _look_back(mine, row.tokens)
            mine.pace.rested()
        self._tell(rows, step)
        return step

    def _took_s(self, *, tried: bool) -> float | None:
        """Return the time since the end of the last step, if that was of the same kind: otherwise
        the work of one kind is waited for in the other."""
        before_s, self._ended_s = self._ended_s, self._clock()
        comparable = before_s is not None and tried == self._last_tried
        self._last_tried = tried
        return self._ended_s - before_s if comparable and before_s is not None else None


def _rest(row: DecodeRow, drawn: int, begin: int) -> list[int]:
    """Return the row's tokens from ``begin`` on, including the one that is drawn and not
    returned."""
    unreturned = [] if row.known else [drawn]
    return row.tokens[begin:] + unreturned * (begin <= len(row.tokens))


def _look_back(row: _Row, tokens: Sequence[int]) -> None:
    """Compare a pausing row's last token with the token that would have been guessed."""
    foreseen = row.guesser.foresaw(tokens[row.guesser.read_tokens :])
    row.streak = row.streak + 1 if foreseen else 0
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
