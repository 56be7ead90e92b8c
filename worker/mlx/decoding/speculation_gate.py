"""Whether speculation pays, and how many tokens to draft. Pure; times are seconds.

It pays if the row's tokens come faster than by plain steps, with all costs: the drafting, the
checking, and that a step can't begin before the tokens of the last one are known. The costs depend
on the device, the model and the other rows.

Who names a method of speculation has it tried at once. What lmx has found by itself must also be
within an :class:`Allowance`.
"""

import math
from typing import Final

from lmx.protocol.models.sampling import MAX_ASSISTANT_TOKENS

_TRIAL_STEPS: Final = 4
_SUCCESS_STEPS: Final = 16
_FIRST_PAUSE_STEPS: Final = 16
_LONGEST_PAUSE_STEPS: Final = 256
# Of the next pause's length, which has doubled when this one began.
_PREDICTED_SHARE: Final = 4
_DISCOURAGING_TRIALS: Final = 8
# Plain steps are measured again after this many of the others: a context grows, a machine heats up.
_REFRESH_STEPS: Final = 256
_PLAIN_SAMPLES: Final = 2
_NEW_SHARE: Final = 0.25
# Measurements scatter: an equal result is no reason to pause.
_MARGIN: Final = 1.05
# A trial that is this much slower than plain steps ends at once.
_HOPELESS: Final = 2.0
_ALLOWED_SHARE: Final = 0.02
_MOST_SPARE_STEPS: Final = 16
_LEAST_DRAFT_STEPS: Final = 0.02


def why_off(
    *, takes_back: bool, computes_again: bool, looked_up: bool, in_turns: bool
) -> str | None:
    """Return why nothing is drafted that nobody has requested, for people; None: it may be tried.

    ``takes_back``: whether the model's caches can take tokens back. ``computes_again``: whether a
    wrong draft costs another forward pass for that. ``in_turns``: whether the model's requests
    don't run together.
    """
    if not takes_back:
        return "its caches can't take tokens back"
    if in_turns:
        return "its requests don't run together"
    if looked_up and computes_again:
        return "its caches take tokens back only by computing others again"
    return None


class Experience:
    """What is known for all rows of an engine: how long a plain step takes, by the number of rows,
    and how many consecutive trials have failed."""

    def __init__(self) -> None:
        self.failed_trials = 0
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


class Allowance:
    """What speculation may cost that nobody has requested: from the worker's start to any later
    moment, 2 % of the time that the same tokens take by plain steps.

    A step is allowed if it could be wrong with all of its drafts. Its cost is predicted: until one
    was measured, each drafted token is taken to cost a plain step. One that costs more than was
    predicted is paid back before there is another, up to 16 plain steps for each draft: what takes
    longer is a process that stood still. What speculation saves can be spent later, up to 16 plain
    steps.
    """

    def __init__(self) -> None:
        self._spare_s = 0.0
        self._draft_s: dict[int, float] = {}
        """What each drafted token adds to a step, by the number of rows."""

    @property
    def is_used_up(self) -> bool:
        """Whether nothing may be computed for speculation now."""
        return self._spare_s <= 0

    def affordable(self, rows: int, plain_s: float) -> int:
        """Return how many tokens may be drafted in the next step."""
        draft_s = self._draft_s.get(rows, plain_s)
        if draft_s <= 0:
            return MAX_ASSISTANT_TOKENS
        return max(0, min(MAX_ASSISTANT_TOKENS, int(self._spare_s / draft_s)))

    def stepped_plainly(self, plain_s: float) -> None:
        """Note a plain step."""
        self._settle(plain_s, 1, plain_s)

    def spent(self, took_s: float) -> None:
        """Note what was computed for speculation besides a step."""
        self._spare_s -= took_s

    def tried(
        self, rows: int, plain_s: float, drafted: int, made: float, took_s: float | None
    ) -> None:
        """Note a step that drafted so many tokens for a row at most, and made ``made`` tokens for
        each row on average. ``took_s`` is None if the time is not known."""
        draft_s = self._draft_s.get(rows)
        if took_s is None:
            took_s = plain_s + drafted * (plain_s if draft_s is None else draft_s)
        else:
            took_s = min(took_s, plain_s * (1 + max(drafted, 1) * _MOST_SPARE_STEPS))
            if drafted:
                seen_s = max(_LEAST_DRAFT_STEPS * plain_s, (took_s - plain_s) / drafted)
                draft_s = seen_s if draft_s is None else draft_s
                self._draft_s[rows] = draft_s + _NEW_SHARE * (seen_s - draft_s)
        self._settle(plain_s, made, took_s)

    def _settle(self, plain_s: float, made: float, took_s: float) -> None:
        spare_s = self._spare_s + (1 + _ALLOWED_SHARE) * made * plain_s - took_s
        self._spare_s = min(spare_s, _MOST_SPARE_STEPS * plain_s)


class SpeculationPace:
    """One row's pace. A pause is short at first and doubles each time the trial after it fails.

    A row begins with a pause if the trials of earlier rows failed. So a draft model that is too
    slow for this device doesn't read every prompt for nothing.

    ``by_signs``: the row begins with a pause, and each pause lasts until enough tokens have come as
    they would have been drafted. It is for drafters that know that for next to nothing.
    """

    def __init__(self, experience: Experience, most_tokens: int, *, by_signs: bool = False) -> None:
        self._experience = experience
        self._most_tokens = most_tokens
        self._accepted = float(most_tokens)
        self._pause_steps = _FIRST_PAUSE_STEPS
        discouraged = experience.failed_trials >= _DISCOURAGING_TRIALS
        self._left_steps: float = _LONGEST_PAUSE_STEPS if discouraged else 0
        self._by_signs = by_signs
        if by_signs:
            self._left_steps = math.inf
        self._begin_trial()

    @property
    def pausing(self) -> bool:
        """Whether nothing is drafted for now because it didn't pay."""
        return self._left_steps > 0

    def tokens(self, rows: int) -> int:
        """Return how many tokens to draft in the next step, of ``rows`` rows; 0: none."""
        if self.pausing or self._experience.average_s(rows) is None:
            return 0
        # One more than what is accepted as a rule, so that it can become more.
        return min(self._most_tokens, int(self._accepted + 0.5) + 1)

    def rested(self) -> None:
        """Note that a step passed without a trial."""
        self._left_steps = max(0, self._left_steps - 1)

    def predicted(self, tokens: int) -> None:
        """Note that the last ``tokens`` tokens came as they would have been drafted. This ends a
        pause if the number is large for its length."""
        if tokens >= self._pause_steps // _PREDICTED_SHARE:
            self._left_steps = 0

    def tried(self, rows: int, drafted: int, accepted: int, took_s: float | None) -> None:
        """Note a step of ``rows`` rows with ``drafted`` tokens for this row, of which ``accepted``
        were right. ``drafted`` is 0 if there was nothing to draft from. ``took_s`` is None if the
        time is not known."""
        if drafted:
            # All drafts were right: how many more would have been is unknown.
            seen = 2 * drafted if accepted == drafted else accepted
            self._accepted += _NEW_SHARE * (min(seen, self._most_tokens) - self._accepted)
        if self._by_signs and accepted == 0:
            if drafted:
                self._pause()
            self._left_steps = math.inf
            return
        if self._by_signs and accepted == drafted:
            self._pause_steps = _FIRST_PAUSE_STEPS
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
            self._experience.failed_trials += 1
            self._pause()
        elif self._steps >= _SUCCESS_STEPS:
            self._pause_steps = _FIRST_PAUSE_STEPS
            self._experience.failed_trials = 0
            if self._steps % _REFRESH_STEPS == 0:
                self._experience.renew(rows)

    def _pause(self) -> None:
        self._left_steps = math.inf if self._by_signs else self._pause_steps
        self._pause_steps = min(2 * self._pause_steps, _LONGEST_PAUSE_STEPS)
        self._begin_trial()

    def _begin_trial(self) -> None:
        self._steps = 0
        self._took_s = 0.0
        self._made = 0.0
