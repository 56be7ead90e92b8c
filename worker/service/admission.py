"""What a worker knows of its load: why it accepts no request now, when a full queue may accept one
again, since when it is idle, and what it has done in its life. Pure; times are seconds of one
monotonic clock."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Refused, Timings, Usage


class Refusal(NamedTuple):
    """Why a request is not accepted."""

    code: ErrorCode
    message: str
    retry_after_s: float | None
    """When to try again; None if that is unknown."""

    def message_for(self, stream_id: int) -> Refused:
        """Return the message to the router."""
        return Refused(stream_id, self.code, self.message, retry_after_s=self.retry_after_s)


class IdleClock:
    """Since when the model is idle, and for how long it is to stay loaded.

    Requests that were refused don't count: sending them keeps no model loaded. ``keep_alive_s`` is
    the wish of the last request that could have one; see ``Generate``.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self.keep_alive_s: float | None = None

    def loaded(self, now: float) -> None:
        """Note that the model is loaded."""
        self._since_s = now

    def ended(self, keep_alive_s: float | None, now: float) -> None:
        """Note that a request ended, well or not."""
        self._since_s, self.keep_alive_s = now, keep_alive_s

    def served(self, now: float) -> None:
        """Note that a request ended which does not decide how long the model stays loaded."""
        self._since_s = now

    def idle_for_s(self, held: int, now: float) -> float:
        """Return for how long nothing was in flight. It is 0 while there are requests (``held``),
        and before the model is loaded."""
        return 0.0 if held or self._since_s is None else max(0.0, now - self._since_s)


class Power:
    """What the supervisor knows of the machine's power, for the energy of an answer."""

    def __init__(self) -> None:
        self.computing_watts: float | None = None
        """As in :class:`lmx.protocol.messages.control.BeatSeen`."""

    def joules(self, compute_s: float) -> float | None:
        """Return the energy for a part of the engine's time; None while it is not known."""
        return None if self.computing_watts is None else self.computing_watts * compute_s


_WEIGHT: Final = 0.2  # of the latest stream in the running mean
_MIN_S: Final = 1.0
_MAX_S: Final = 60.0


class QueueEstimate:
    """A running mean of how long streams hold a row: a hint, without their lengths."""

    def __init__(self) -> None:
        self._mean_s = 0.0

    def ended(self, held_s: float) -> None:
        """Note that a stream held its row for ``held_s``."""
        self._mean_s += (held_s - self._mean_s) * (_WEIGHT if self._mean_s else 1.0)

    def retry_after_s(self, rows: int) -> float:
        """Return when one of the ``rows`` that run now is likely to end: 1 to 60 s. If memory for
        KV caches is short, fewer rows run than could."""
        return min(_MAX_S, max(_MIN_S, self._mean_s / max(1, rows)))


@dataclass(slots=True)
class LifetimeCounts:
    """What this worker has done since it began."""

    requests: int = 0
    """Generations and tasks that were accepted."""
    tokens: int = 0
    """Tokens that were made."""
    prompt_tokens: int = 0
    """Tokens of the prompts of generations that have ended."""
    cached_tokens: int = 0
    """How many of the prompt tokens were in the prefix cache."""
    drafted_tokens: int = 0
    """Tokens that speculation has drafted."""
    accepted_tokens: int = 0
    """How many of the drafted tokens were right."""

    def finished(self, usage: Usage, timings: Timings) -> None:
        """Count the tokens that a generation did not have to compute: those of its prompt that were
        cached, and the drafted ones that were right."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.drafted(timings)

    def drafted(self, timings: Timings) -> None:
        """Count the tokens that were drafted for answers."""
        self.drafted_tokens += timings.drafted_tokens
        self.accepted_tokens += timings.accepted_tokens
