"""Why a worker takes no request now.

When a worker was last of use, and for how long it is to stay. Pure; seconds of any one clock.

When a full queue may have room again: the Retry-After of a refusal. Pure.

What a worker has done over its life, as its beats tell it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Refused, Timings, Usage


class Refusal(NamedTuple):
    """What a request is told that is not taken."""

    code: ErrorCode
    message: str
    retry_after_s: float | None
    """When to try again; None: that can't be told."""

    def message_for(self, stream_id: int) -> Refused:
        """Return the message that says so."""
        return Refused(stream_id, self.code, self.message, retry_after_s=self.retry_after_s)


class IdleClock:
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


_WEIGHT: Final = 0.2  # of the latest stream in the running mean
_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 60.0


class QueueEstimate:
    """A running mean of how long streams hold a row. A hint: it knows nothing of lengths."""

    __slots__ = ("_mean_s",)

    def __init__(self) -> None:
        self._mean_s = 0.0

    def ended(self, held_s: float) -> None:
        """A stream ended after holding its row for ``held_s``."""
        self._mean_s += (held_s - self._mean_s) * (_WEIGHT if self._mean_s else 1.0)

    def retry_after_s(self, rows: int) -> float:
        """Return when one of ``rows`` that run now is likely to end: 1 to 60 s. Those that could
        run are more, where memory for their caches is short."""
        return min(_LONGEST_S, max(_SHORTEST_S, self._mean_s / max(1, rows)))


@dataclass(slots=True)
class LifetimeCounts:
    """What this worker has done since it began."""

    requests: int = 0
    """Generations that were accepted, and tasks that were taken."""
    tokens: int = 0
    """Tokens that were made."""
    prompt_tokens: int = 0
    """Tokens of the prompts of generations that have ended."""
    cached_tokens: int = 0
    """Those of them that were in the prefix cache."""
    drafted_tokens: int = 0
    """Tokens that were guessed ahead."""
    accepted_tokens: int = 0
    """Those of them that were right."""

    def finished(self, usage: Usage, timings: Timings) -> None:
        """Count what a generation did not have to compute: of its prompt's tokens those that were
        cached, and of the tokens that were guessed ahead those that were right."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.drafted_tokens += timings.drafted_tokens
        self.accepted_tokens += timings.accepted_tokens
