"""Whether a supervisor that is silent hangs, or is only slow. Pure.

It is judged by what it does, never by elapsed time alone. A machine that sleeps or is overloaded
holds up who looks just as well: then nothing is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

BUSY_SHARE: Final = 0.1
"""Of a processor: what uses more works, at whatever. One whose loop hangs uses next to none."""

BUSY_S: Final = 60.0
"""For what works or waits for the disk, and does not answer."""

LATE_S: Final = 5.0
"""Between two looks there are up to four seconds. After more, who looks was held up itself."""


class Verdict(Enum):
    """WAIT: look again. WELL: it answers. WAKE: send SIGCONT. END: it hangs. LEAVE: a debugger has
    it."""

    WAIT = "wait"
    WELL = "well"
    WAKE = "wake"
    END = "end"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Look:
    """A supervisor at one moment. ``answers``: it did so within a second. ``cpu_s``: what it has
    used of processors in its life."""

    answers: bool
    stopped: bool = False
    traced: bool = False
    waits_on_disk: bool = False
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Patience:
    """``hung_s``: how long it may do nothing. ``since_s``: since when it is looked at, ``idle_s``
    since when it does nothing."""

    hung_s: float
    since_s: float = 0.0
    idle_s: float = 0.0
    looked_s: float | None = None
    cpu_s: float = 0.0
    woken: bool = False


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
    if _works(patience, look, now_s):
        after = replace(after, idle_s=now_s)
    if now_s - after.idle_s >= patience.hung_s or now_s - after.since_s >= BUSY_S:
        return after, Verdict.END
    return after, Verdict.WAIT


def _works(patience: Patience, look: Look, now_s: float) -> bool:
    if look.stopped or patience.looked_s is None:
        return False
    used_s = look.cpu_s - patience.cpu_s
    return look.waits_on_disk or used_s >= BUSY_SHARE * (now_s - patience.looked_s)
