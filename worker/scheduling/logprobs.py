"""Holds tokens' logprobs until their text is sent. Pure."""

from collections import deque
from collections.abc import Callable, Sequence

from lmx.protocol.messages.data import TokenLogprob, TopLogprob
from lmx.worker.engine.values import TokenScores

TokenBytes = Callable[[int], bytes]


def describe(token: int, scores: TokenScores | None, token_bytes: TokenBytes) -> TokenLogprob:
    """Return a token's logprob in the form of the wire. Without scores it has none."""
    if scores is None:
        return TokenLogprob(token_bytes(token), None, token)
    top = tuple(TopLogprob(token_bytes(other), score, other) for other, score in scores.top)
    return TokenLogprob(token_bytes(token), scores.logprob, token, top, scores.rank)


def describe_prompt(
    prompt: Sequence[int], scores: Sequence[TokenScores], top: int, token_bytes: TokenBytes
) -> list[TokenLogprob]:
    """Return the logprobs of a prompt's tokens, with ``top`` alternatives each. The first token has
    none, and ``scores`` are those of the others."""
    each = [None, *(one._replace(top=one.top[:top]) for one in scores)]
    return [describe(token, one, token_bytes) for token, one in zip(prompt, each, strict=True)]


class LogprobTrack:
    """Tokens in order, each with the place where its text ends, counted in characters of the raw
    text.

    A token is sent with the text that has its last character. If its text ends inside a character,
    it ends where that character does; a token without text is sent with the text after it.
    """

    def __init__(self) -> None:
        self._open: list[TokenLogprob] = []
        self._ended: deque[tuple[int, TokenLogprob]] = deque()

    def add(self, entry: TokenLogprob, end: int | None) -> None:
        """Add a token; ``end`` is where its text ends, None if no text is final yet."""
        self._open.append(entry)
        if end is not None:
            self._ended.extend((end, waiting) for waiting in self._open)
            self._open.clear()

    def close(self, end: int) -> None:
        """The text is complete: tokens that wait for more of it end here."""
        self._ended.extend((end, waiting) for waiting in self._open)
        self._open.clear()

    def release(self, out: int) -> list[TokenLogprob]:
        """Return the tokens whose text has ended within the first ``out`` characters."""
        released = []
        while self._ended and self._ended[0][0] <= out:
            released.append(self._ended.popleft()[1])
        return released
