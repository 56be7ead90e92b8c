"""Finds stop strings in text that arrives in pieces. Pure."""

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string and holds back text that may turn out to begin one.

    The result doesn't depend on how the text is cut into pieces. The stop string that is complete
    first wins, and the longest of several that are. With ``include`` it is part of the text. It is
    no matcher of regular expressions.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Return the text that certainly comes before any stop string's end.

        After a match (``matched`` names the stop string) this is the last text, and nothing more
        may be added.
        """
        if not self._stops or not text:
            return text
        text = self._held + text
        end, start = min(
            ((at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0),
            default=(-1, -1),
        )
        if end >= 0:
            self.matched = text[start:end]
            self._held = ""
            return text[: end if self._include else start]
        keep = max(_overlap(text, stop) for stop in self._stops)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]

    def release(self) -> str:
        """Return the text that is held back, at the end: no stop string came of it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins, but is not, ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
