"""Holds the ends of a job's answers back until they have been checked against its schema. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lmx.protocol.states import DeltaKind, FinishReason
from lmx.worker.engine import AnswerCheck
from lmx.worker.jobs import AnswerEnded, Piece


class AnswerReview:
    """What has come of the answers of one job that is not known to satisfy its schema.

    With ``whole`` the text is held back too, so that nobody has seen it and another answer may
    be made in its place. Checked are answers that the model itself ended; one that calls tools
    has no text to check.
    """

    __slots__ = ("_called", "_check", "_ends", "_held", "_texts", "_whole", "again")

    def __init__(self, check: AnswerCheck, *, whole: bool, again: bool = False) -> None:
        self._check = check
        self._whole = whole
        self.again = again
        self._texts: dict[int, list[str]] = {}
        self._called: set[int] = set()
        self._ends: list[AnswerEnded] = []
        self._held: list[Piece | AnswerEnded] = []

    @property
    def may_repeat(self) -> bool:
        """Whether other answers may be made in the place of these."""
        return self._whole and not self.again

    def next(self) -> AnswerReview:
        """Return the review of the answers that are made in the place of these."""
        return AnswerReview(self._check, whole=self._whole, again=True)

    def take(self, output: Piece | AnswerEnded) -> Sequence[Piece | AnswerEnded]:
        """Take what an answer gave; return what may go out now."""
        if isinstance(output, AnswerEnded):
            self._ends.append(output)
            self._held.append(output)
            return ()
        if output.call is not None:
            self._called.add(output.answer)
        elif output.kind is DeltaKind.CONTENT:
            self._texts.setdefault(output.answer, []).append(output.text)
        if self._whole:
            self._held.append(output)
            return ()
        return (output,)

    def fault(self) -> str | None:
        """Return what is wrong with one of the answers, None when nothing is. Takes long."""
        for end in self._ends:
            by_itself = end.reason is FinishReason.STOP and end.stop is None
            if by_itself and end.answer not in self._called:
                fault = self._check("".join(self._texts.get(end.answer, ())))
                if fault is not None:
                    return fault
        return None

    def held(self) -> Sequence[Piece | AnswerEnded]:
        """Return what was held back, in its order."""
        return self._held
