"""One stream's credit and the text that waits for it, and the choice of the answers to return.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lmx.protocol.messages.data import Delta, TokenLogprob, ToolCallPart
from lmx.protocol.states import DeltaKind
from lmx.worker.scheduling.requests import ChoiceFinished

# With twenty alternatives each, four megabytes: well within one message.
_MAX_LOGPROBS: Final = 4096


@dataclass(slots=True)
class _Waiting:
    """Text of one answer and one kind that will go in one delta."""

    index: int
    kind: DeltaKind
    call: ToolCallPart | None
    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def accepts(self, piece: Delta) -> bool:
        """Return whether a piece of the same answer can be joined to it."""
        if piece.kind is not self.kind or len(self.logprobs) >= _MAX_LOGPROBS:
            return False
        if self.call is None or piece.call is None:
            return True
        return piece.call.index == self.call.index and piece.call.name is None

    def add(self, piece: Delta) -> None:
        self.texts.append(piece.text)
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.token_ids += piece.token_ids


class Stream:
    """Turns text into deltas while there is credit, and joins it otherwise.

    For each answer and kind, the joined texts of all deltas are the joined texts that were added,
    in their order. There are never more deltas than credit, except those that go with an answer's
    end. A stream knows no socket and no engine.
    """

    def __init__(self, stream_id: int, credit_deltas: int) -> None:
        self._stream_id = stream_id
        self._credit_deltas = credit_deltas
        self._waiting: list[_Waiting] = []

    def add(self, piece: Delta) -> Delta | None:
        """Add a piece; return what may be sent now."""
        if self._credit_deltas > 0 and not self._waiting:
            self._credit_deltas -= 1
            piece.stream_id = self._stream_id
            return piece
        last = next((part for part in reversed(self._waiting) if part.index == piece.index), None)
        if last is None or not last.accepts(piece):
            last = _Waiting(piece.index, piece.kind, piece.call)
            self._waiting.append(last)
        last.add(piece)
        return None

    def grant(self, deltas: int) -> list[Delta]:
        """Add credit for ``deltas`` more; return what may be sent now. Ignores numbers below 1."""
        self._credit_deltas += max(0, deltas)
        ready = max(0, min(self._credit_deltas, len(self._waiting)))
        self._credit_deltas -= ready
        going, self._waiting = self._waiting[:ready], self._waiting[ready:]
        return [self._join(part) for part in going]

    def end(self, index: int) -> list[Delta]:
        """Return the waiting text of an answer. It is sent with the answer's end, with or without
        credit."""
        going = [part for part in self._waiting if part.index == index]
        self._waiting = [part for part in self._waiting if part.index != index]
        return [self._join(part) for part in going]

    def _join(self, part: _Waiting) -> Delta:
        return Delta(
            self._stream_id,
            "".join(part.texts),
            part.tokens,
            part.index,
            part.kind,
            part.call,
            tuple(part.logprobs),
            tuple(part.token_ids),
        )


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
        """Add an answer's output; return what may be sent: nothing at first, and everything at the
        end."""
        if isinstance(output, Delta):
            self._pieces.setdefault(output.index, []).append(output)
            return ()
        self._ended.append(output)
        if len(self._ended) < self._best_of:
            return ()
        best = sorted(self._ended, key=lambda end: (-_mean(end), end.choice))[: self._n]
        going: list[Delta | ChoiceFinished] = []
        for place, end in enumerate(best):
            pieces = self._pieces.get(end.choice, [])
            going += [replace(piece, index=place) for piece in pieces]
            going.append(end._replace(choice=place))
        return going


def _mean(end: ChoiceFinished) -> float:
    return end.logprob / max(1, end.tokens)
