"""Which of the answers that were sampled are returned: the likeliest by token. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lmx.worker.jobs import AnswerEnded, Piece


class Ranking:
    """Holds ``best_of`` answers back until all have ended, then gives out the best ``n``.

    The best have the highest mean logprob a token, as OpenAI's ``best_of`` has it; of equal
    ones the first. They are numbered anew, the best is 0.
    """

    __slots__ = ("_best_of", "_ended", "_n", "_pieces")

    def __init__(self, n: int, best_of: int) -> None:
        self._n = n
        self._best_of = best_of
        self._pieces: dict[int, list[Piece]] = {}
        self._ended: list[AnswerEnded] = []

    def add(self, output: Piece | AnswerEnded) -> Sequence[Piece | AnswerEnded]:
        """Take what an answer gave; return what may go out: nothing, and then everything."""
        if isinstance(output, Piece):
            self._pieces.setdefault(output.answer, []).append(output)
            return ()
        self._ended.append(output)
        if len(self._ended) < self._best_of:
            return ()
        best = sorted(self._ended, key=lambda end: (-_mean(end), end.answer))[: self._n]
        going: list[Piece | AnswerEnded] = []
        for place, end in enumerate(best):
            pieces = self._pieces.get(end.answer, [])
            going += [piece._replace(answer=place) for piece in pieces]
            going.append(end._replace(answer=place))
        return going


def _mean(end: AnswerEnded) -> float:
    return end.logprob / max(1, end.tokens)
