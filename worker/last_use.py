"""When a worker was last of use, and for how long it is to stay. Pure; seconds of any one clock."""

from __future__ import annotations


class LastUse:
    """What the ends of requests leave behind. Requests that were refused don't count: who sends
    those keeps no model loaded.

    ``keep_alive_s``: what the last request that could say so asked for; see ``Generate``.
    """

    __slots__ = ("_since_s", "keep_alive_s")

    def __init__(self) -> None:
        self._since_s: float | None = None
        self.keep_alive_s: float | None = None

    def loaded(self, now: float) -> None:
        """The model is there."""
        self._since_s = now

    def ended(self, keep_alive_s: float | None, now: float) -> None:
        """A request ended, well or not."""
        self._since_s, self.keep_alive_s = now, keep_alive_s

    def served(self, now: float) -> None:
        """A request ended that has no say in how long the model stays."""
        self._since_s = now

    def idle_for_s(self, held: int, now: float) -> float:
        """Return for how long nothing was in flight; 0 while ``held`` requests are, and before
        the model is loaded."""
        return 0.0 if held or self._since_s is None else max(0.0, now - self._since_s)
