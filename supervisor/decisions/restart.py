"""When a model that lost its worker is started again. Pure: no clock, no random source.

Full-jitter exponential backoff, as in Marc Brooker, "Exponential Backoff and Jitter" (AWS,
2015): each wait is uniform between 0 and the capped exponential, so that models which fell
together do not rise together.
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
"""Causes that are the model's own fault. The others were asked for."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """``max_failures`` failures within ``window_s`` are still retried; one more quarantines."""

    base_s: float
    max_s: float
    stable_after_s: float
    max_failures: int
    window_s: float


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """What is remembered of a model's failures. ``attempt`` counts since it was stable."""

    failed_at_s: tuple[float, ...] = ()
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start after ``wait_s`` (0: now)."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class StayDown:
    """Nobody wants it: the slot becomes cold."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """It failed too often, or in a way that trying again does not mend: only an operator starts
    it again."""

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
    """Decide on a restart. ``jitter`` is a uniform random number in [0, 1).

    ``was_ready_for_s`` is how long the model had been ready; ``stable_after_s`` of it
    starts the backoff anew (failures within the window still count for quarantine).
    ``permanent``: the failure comes again with each try, so the first one quarantines.
    """
    if was_ready_for_s >= policy.stable_after_s:
        record = replace(record, attempt=0)
    if cause not in _COUNTED:
        return record, StartAgain(0.0) if wanted else StayDown()
    recent = tuple(at for at in record.failed_at_s if now_s - at < policy.window_s)
    record = FailureRecord((*recent, now_s), record.attempt + 1)
    if permanent or len(record.failed_at_s) > policy.max_failures:
        return record, Quarantine(len(record.failed_at_s))
    if not wanted:
        return record, StayDown()
    # The exponent is bounded before the power is taken: 2.0 ** 2000 would overflow.
    ceiling_s = min(policy.max_s, policy.base_s * 2.0 ** min(record.attempt - 1, 30))
    return record, StartAgain(ceiling_s * jitter)
