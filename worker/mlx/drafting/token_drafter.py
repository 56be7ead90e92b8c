"""What all drafters have in common: a drafter opens rows, and each row drafts its next tokens.

A draft decides nothing: :mod:`lmx.worker.mlx.decoding.verify` draws the true tokens. So
a drafter may know less of a row than there is to know, and only its drafts get worse.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx

from lmx.protocol.messages.data import Assist
from lmx.worker.mlx.model.hidden import HiddenStates

Choose = Callable[[mx.array, int], mx.array]
"""Takes logits [tokens, vocabulary] and how many tokens were drafted before the first of them;
returns the tokens [tokens]: those that the row itself would draw from such logits."""


class SequenceDrafter(Protocol):
    """One row's drafter. It takes each of the row's tokens once, in their order. What it does not
    define costs nothing, and knows no limit."""

    @property
    def read_tokens(self) -> int:
        """How many of the row's first tokens it has taken."""

    def most_drafts(self, length: int) -> int | None:
        """Return how many tokens it can draft after the row's first ``length`` tokens; None: any
        number."""
        return None

    def unread_tokens(self, length: int) -> int:
        """Return how many of the row's first ``length`` tokens it has still to compute; 0 if
        taking them costs next to nothing."""
        return 0

    def read(self, tokens: Sequence[int]) -> None:
        """Take the row's next tokens ahead of a draft, and wait until that is done."""
        return

    def draft(
        self,
        rest: Sequence[int],
        num_tokens: int,
        choose: Choose,
        confidence_threshold: float | None,
    ) -> mx.array | None:
        """Take the rest of the row's tokens, at least one, and draft what follows.

        Returns up to ``num_tokens`` token ids [drafted], maybe not evaluated; None for no draft.
        With a threshold, the drafts end before one that is less likely, if the drafter knows how
        likely its drafts are. Each call is to be followed by one of ``keep``.
        """

    def keep(self, accepted_tokens: int) -> None:
        """Learn how many of the last drafts were right; the others are forgotten."""

    def observe(self, hidden: HiddenStates) -> None:
        """Take what the model has computed of the row's tokens. Rows of a drafter that wants hidden
        states observe those of each token that is fed; there are gaps where none were captured."""
        return

    def predicted(self, rest: Sequence[int]) -> bool:
        """Take the row's tokens that came while nothing was drafted, and return whether the
        drafter would have drafted the last of them. If that costs more than next to nothing, do
        neither, and return False."""
        return False


class TokenDrafter(Protocol):
    """Makes drafts for any number of rows. Engine thread."""

    @property
    def observed_tokens(self) -> int:
        """Of how many of a prompt's last tokens its rows observe the hidden states; 0: it
        wants none at all."""

    @property
    def foresees(self) -> bool:
        """Whether it knows for next to nothing which token it would have drafted
        (:meth:`SequenceDrafter.predicted`)."""

    def open_sequence(self, assist: Assist) -> SequenceDrafter:
        """Begin a row, whose request has these options."""
