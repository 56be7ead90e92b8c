"""Decides whether a supervisor that is silent hangs, or is only slow. This module is pure.

It judges the supervisor by what it does, never by elapsed time alone: time in which it waited for a
processor does not count. A machine that sleeps or is overloaded also delays the process that looks,
and then nothing is decided.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

BUSY_SHARE: Final = 0.1
"""A supervisor that uses more than this share of a processor is working, at whatever. One whose
loop hangs uses next to none."""

BUSY_S: Final = 60.0
"""A supervisor that works or waits for the disk, and does not answer, gets this long."""

LATE_S: Final = 5.0
"""There are up to four seconds between two looks. If there were more than this, the process that
looks was delayed itself."""


class Verdict(Enum):
    """What is to be done about a supervisor."""

    WAIT = "wait"
    """Look again later."""
    WELL = "well"
    """Nothing: it answers."""
    WAKE = "wake"
    """Send SIGCONT: it was stopped."""
    END = "end"
    """End it: it hangs."""
    LEAVE = "leave"
    """Leave it alone: a debugger holds it."""


@dataclass(frozen=True, slots=True)
class Look:
    """A supervisor as it was seen at one moment."""

    answers: bool
    """Whether it answered within a second."""
    stopped: bool = False
    """Whether a signal stopped it."""
    traced: bool = False
    """Whether a debugger holds it."""
    waits_on_disk: bool = False
    cpu_s: float = 0.0
    """The processor time that it has used in its life."""
    waited_s: float = 0.0
    """How much of the time since the last look it waited for a processor."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What is remembered about a silent supervisor from one look to the next."""

    hung_s: float
    """For how long it may do nothing."""
    since_s: float = 0.0
    """When it was first looked at, was woken, or a look was late. It is judged from then on."""
    idle_s: float = 0.0
    """Since when it has done nothing."""
    looked_s: float | None = None
    """When it was looked at last."""
    cpu_s: float = 0.0
    """The processor time that it had used at the last look."""
    woken: bool = False
    """Whether SIGCONT was sent."""


def judge(patience: Patience, look: Look, now_s: float) -> tuple[Patience, Verdict]:
    """Take a look, and return what is to be done."""
    before_s = patience.looked_s
    if before_s is None:
        patience = replace(patience, since_s=now_s, idle_s=now_s)
    after = replace(patience, looked_s=now_s, cpu_s=look.cpu_s)
    if look.answers:
        return after, Verdict.WELL
    if look.traced:
        return after, Verdict.LEAVE
    if look.stopped and not patience.woken:
        return replace(after, woken=True, since_s=now_s, idle_s=now_s), Verdict.WAKE
    if before_s is not None and now_s - before_s > LATE_S:
        return replace(after, since_s=now_s, idle_s=now_s), Verdict.WAIT
    after = replace(
        after, since_s=after.since_s + look.waited_s, idle_s=after.idle_s + look.waited_s
    )
    if _works(patience, look, now_s):
        after = replace(after, idle_s=now_s)
    if now_s - after.idle_s >= patience.hung_s or now_s - after.since_s >= BUSY_S:
        return after, Verdict.END
    return after, Verdict.WAIT


def _works(patience: Patience, look: Look, now_s: float) -> bool:
    if look.stopped or patience.looked_s is None:
        return False
    used_s = look.cpu_s - patience.cpu_s
    could_s = now_s - patience.looked_s - look.waited_s
    return look.waits_on_disk or used_s >= BUSY_SHARE * could_s
