"""Decides when a model that lost its worker is started again. This module is pure: it has no clock
and no random source.

It uses exponential backoff with full jitter, as in Marc Brooker, "Exponential Backoff and Jitter"
(AWS, 2015): each wait is uniform between 0 and the capped exponential, so that models which failed
together do not start together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from lmx.protocol.states import ExitCause

_COUNTED: Final = frozenset(
    {
        ExitCause.CRASH,
        ExitCause.SIGNAL,
        ExitCause.HANG,
        ExitCause.LOAD_FAILED,
        ExitCause.OUT_OF_MEMORY,
    }
)
"""The causes that are the model's own fault. The others were requested, but for HOST, which is
tried again for as long as it takes, and never leads to quarantine."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a model is started again, and when it is put into quarantine."""

    base_s: float
    """The longest wait after the first failure. It doubles with each further one."""
    max_s: float
    """The longest wait of all."""
    stable_after_s: float
    """The backoff restarts for a model that was ready for this long."""
    max_failures: int
    """How many failures within ``window_s`` are still retried. One more leads to quarantine."""
    window_s: float


MOST_LOSSES: Final = 2
"""After this many workers in a row whose memory did not come back, no further one is started: wired
memory that macOS keeps is gone until the machine is restarted, and each start would lose as much
again. One server was restarted 233 times so."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """What is remembered about a model's failures."""

    failed_at_s: tuple[float, ...] = ()
    attempt: int = 0
    """The number of failures since the model was stable."""
    losses: int = 0
    """How many of its last workers in a row left memory behind when they ended."""

    def settled(self, missing_bytes: int) -> FailureRecord:
        """Return the record after the memory of an ended worker came back, all but
        ``missing_bytes``."""
        return replace(self, losses=self.losses + 1 if missing_bytes else 0)

    @property
    def loses_memory(self) -> bool:
        """Whether another start would be likely to lose memory again."""
        return self.losses >= MOST_LOSSES


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start the model again after ``wait_s`` (0: now)."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class StayDown:
    """Nobody wants the model, and its slot becomes cold."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The model failed too often, or in such a way that another try would fail too. Only an
    operator starts it again."""

    failures: int


Decision = StartAgain | StayDown | Quarantine


def after_exit(
    record: FailureRecord,
    cause: ExitCause,
    *,
    wanted: bool,
    was_ready_for_s: float,
    now_s: float,
    jitter: float,
    policy: RestartPolicy,
    permanent: bool = False,
) -> tuple[FailureRecord, Decision]:
    """Decide whether and when a model is started again. ``jitter`` is a uniform random number in
    [0, 1).

    ``was_ready_for_s`` is how long the model had been ready. If that is ``stable_after_s`` or more,
    the backoff restarts, but failures within the window still count for quarantine.
    ``permanent`` means that each try fails, so that the first failure leads to quarantine.
    """
    if was_ready_for_s >= policy.stable_after_s:
        record = replace(record, attempt=0)
    if cause in _COUNTED:
        recent = tuple(at for at in record.failed_at_s if now_s - at < policy.window_s)
        record = replace(record, failed_at_s=(*recent, now_s))
        if permanent or len(record.failed_at_s) > policy.max_failures:
            return record, Quarantine(len(record.failed_at_s))
    elif cause is not ExitCause.HOST:
        return record, StartAgain(0.0) if wanted else StayDown()
    record = replace(record, attempt=record.attempt + 1)
    if not wanted:
        return record, StayDown()
    # The exponent is bounded before the power is taken: 2.0 ** 2000 would overflow.
    ceiling_s = min(policy.max_s, policy.base_s * 2.0 ** min(record.attempt - 1, 30))
    return record, StartAgain(ceiling_s * jitter)
