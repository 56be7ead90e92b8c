"""Whether guessing ahead pays for a row, and how many tokens to guess. Pure.

It pays when the row's tokens come faster than by plain steps, all told: the guessing, the
checking, and that a step can't begin before the tokens of the last one are known. What that
costs depends on the device, the model and the other rows, so it is measured.
"""

from __future__ import annotations

from typing import Final

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
# Measurements scatter: a draw is no reason to pause.
_MARGIN: Final = 1.05
# So much slower than plain steps, a trial ends at once.
_HOPELESS: Final = 2.0


class Experience:
    """What the rows of an engine have in common: how long a plain step takes, by the number of
    rows, and how many trials on end were in vain."""

    def __init__(self) -> None:
        self.vain_trials = 0
        self._average_s: dict[int, float] = {}
        self._samples: dict[int, int] = {}

    def measured(self, rows: int, took_s: float) -> None:
        """Take in a step that followed on a plain one. (After another there is nothing to wait
        for: its tokens are known.)"""
        average_s = self._average_s.get(rows, took_s)
        self._average_s[rows] = average_s + _NEW_SHARE * (took_s - average_s)
        self._samples[rows] = self._samples.get(rows, 0) + 1

    def average_s(self, rows: int) -> float | None:
        """Return what a step takes; None: measure first."""
        return self._average_s[rows] if self._samples.get(rows, 0) >= _PLAIN_SAMPLES else None

    def renew(self, rows: int) -> None:
        """Ask for new samples."""
        self._samples[rows] = 0


class SpeculationPace:
    """One row's pace. A pause is short at first and doubles each time it ends in vain.

    A row begins with a pause where the rows before it tried in vain. So a draft model that is
    too slow for this device doesn't read every prompt for nothing.
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
        """Whether nothing is to be guessed for now because it didn't pay."""
        return self._left_steps > 0

    def tokens(self, rows: int) -> int:
        """Return how many tokens to guess in the next step, of ``rows`` rows; 0: none."""
        if self.pausing or self._experience.average_s(rows) is None:
            return 0
        # One more than what is accepted as a rule, so that it can become more.
        return min(self._most_tokens, int(self._accepted + 0.5) + 1)

    def rested(self) -> None:
        """A step went by without an attempt."""
        self._left_steps = max(0, self._left_steps - 1)

    def foreseen(self, tokens: int) -> None:
        """So many tokens on end came as they would have been guessed. Ends a pause when that is
        many for its length."""
        if tokens >= self._pause_steps // _FORESEEN_SHARE:
            self._left_steps = 0

    def tried(self, rows: int, guessed: int, accepted: int, took_s: float | None) -> None:
        """A step of ``rows`` rows took so long, with ``guessed`` tokens for this row, maybe
        none because there was nothing to go by, and ``accepted`` of them right. ``took_s``
        None: nobody knows."""
        if guessed:
            # All right: nobody knows how many more would have been.
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
