"""Which answers of a request with ``best_of`` are returned. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from lmx.protocol.messages.data import Delta
from lmx.worker.scheduling.requests import ChoiceFinished


class Ranking:
    """Holds ``best_of`` answers back until all have ended, then relays the best ``n``.

    The best answers have the highest mean logprob per token, as in OpenAI's ``best_of``; of equal
    ones the first wins. They get new numbers, from 0 for the best.
    """

    def __init__(self, n: int, best_of: int) -> None:
        self._n = n
        self._best_of = best_of
        self._pieces: dict[int, list[Delta]] = {}
        self._ended: list[ChoiceFinished] = []

    def add(self, output: Delta | ChoiceFinished) -> Sequence[Delta | ChoiceFinished]:
        """Add an answer's output; return what may be sent: nothing before the last end."""
        if isinstance(output, Delta):
            self._pieces.setdefault(output.index, []).append(output)
            return ()
        self._ended.append(output)
        if len(self._ended) < self._best_of:
            return ()
        best = sorted(self._ended, key=lambda end: (-end.mean_logprob, end.choice))[: self._n]
        going: list[Delta | ChoiceFinished] = []
        for place, end in enumerate(best):
            pieces = self._pieces.get(end.choice, [])
            going += [replace(piece, index=place) for piece in pieces]
            going.append(end._replace(choice=place))
        return going
