"""One stream's credit and the text that waits for it. Pure."""

from __future__ import annotations

from lmx.protocol.data import Delta


class Stream:
    """Turns text into deltas while there is credit, and joins it while there is none.

    The texts of all deltas, joined, are the texts added, joined; there are never more of them
    than credit was given, but for one that goes with the end. Knows no socket and no engine.
    """

    __slots__ = ("_credit_deltas", "_stream_id", "_texts", "_tokens")

    def __init__(self, stream_id: int, credit_deltas: int) -> None:
        self._stream_id = stream_id
        self._credit_deltas = credit_deltas
        self._texts: list[str] = []
        self._tokens = 0

    def add(self, text: str, tokens: int) -> Delta | None:
        """Take text that came of ``tokens`` tokens; return what may be sent now."""
        if self._credit_deltas > 0 and not self._texts:
            self._credit_deltas -= 1
            return Delta(self._stream_id, text, tokens)
        self._texts.append(text)
        self._tokens += tokens
        return None

    def grant(self, deltas: int) -> Delta | None:
        """Take credit for ``deltas`` more; return what may be sent now. Ignores none or less."""
        self._credit_deltas += max(0, deltas)
        if self._credit_deltas <= 0 or not self._texts:
            return None
        self._credit_deltas -= 1
        return self._join()

    def close(self) -> Delta | None:
        """Return what is pending, to be sent with the end, credit or not."""
        return self._join() if self._texts else None

    def _join(self) -> Delta:
        delta = Delta(self._stream_id, "".join(self._texts), self._tokens)
        self._texts.clear()
        self._tokens = 0
        return delta
