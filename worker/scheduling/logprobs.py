"""Keeps tokens' logprobs until their text is out. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lmx.protocol.messages.data import TokenLogprob, TopLogprob
from lmx.worker.engine import TokenScores

TokenBytes = Callable[[int], bytes]


def describe(token: int, scores: TokenScores | None, token_bytes: TokenBytes) -> TokenLogprob:
    """Return a token's logprob as it goes over the wire; without scores it has none."""
    if scores is None:
        return TokenLogprob(token_bytes(token), None, token)
    top = tuple(TopLogprob(token_bytes(other), score, other) for other, score in scores.top)
    return TokenLogprob(token_bytes(token), scores.logprob, token, top)


class LogprobTrack:
    """Tokens in order, each with where its text ends. Counted in characters of the raw text.

    A token goes out with the text that its last character is in. One that ends inside a
    character ends where that character does; one without text goes with what follows it.
    """

    __slots__ = ("_ended", "_open")

    def __init__(self) -> None:
        self._open: list[TokenLogprob] = []
        self._ended: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, entry: TokenLogprob, end: int | None) -> None:
        """Take a token; ``end`` is where its text ends, None when no text is final yet."""
        self._open.append(entry)
        if end is not None:
            self._ended.extend((end, waiting) for waiting in self._open)
            self._open.clear()

    def close(self, end: int) -> None:
        """The text is over: what waits for more of it ends here."""
        self._ended.extend((end, waiting) for waiting in self._open)
        self._open.clear()

    def release(self, out: int) -> list[TokenLogprob]:
        """Return the tokens whose text has ended within the first ``out`` characters."""
        released = []
        while self._ended and self._ended[0][0] <= out:
            released.append(self._ended.popleft()[1])
        return released
