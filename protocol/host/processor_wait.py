"""How long a process has waited for a processor, and so how much of its time it could not use.

A process on a busy machine is slow, and is not to be ended for that: a limit on what a process does
counts only the time in which it had a processor, or wanted none. One that is stopped, or waits for
what never comes, wants none, and one that spins gets some: all of them reach their limit. It needs
only the standard library.
"""

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from lmx.protocol.host.memory import mac_usage

_NS: Final = 1e-9

LOOK_EVERY_S: Final = 0.25
"""How often a process that is late is looked at."""

_FORGOTTEN_S: Final = 5.0
"""A look that is older than this says nothing about how things are now."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What a thread (on a Mac a process) has had of the processors in its life."""

    ran_s: float
    waited_s: float
    """How long it was ready to run while others ran."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A process as it was seen at one moment. It is empty where the system says nothing."""

    at_s: float
    threads: Mapping[int, Turns]


def waited_s(first: Observed, last: Observed) -> float:
    """Return how much of the time between two looks the process waited for a processor. Pure.

    Threads wait side by side, so that their waits together may exceed that time. What counts is
    the share of the time that they wanted and did not get.
    """
    ran_s = wait_s = 0.0
    for thread, turns in last.threads.items():
        before = first.threads.get(thread, _NONE)
        ran_s += max(0.0, turns.ran_s - before.ran_s)
        wait_s += max(0.0, turns.waited_s - before.waited_s)
    wanted_s = ran_s + wait_s
    if wanted_s <= 0.0:
        return 0.0
    return min(wanted_s, max(0.0, last.at_s - first.at_s)) * wait_s / wanted_s


_NONE: Final = Turns(0.0, 0.0)


def observe(pid: int, *, descendants: bool = False) -> Observed:
    """Look at a process; on Linux with those that it has started, if they are to count. The look is
    empty if the process is gone, or the system does not say it (Linux without CONFIG_SCHED_INFO).
    """
    if sys.platform == "darwin":
        return Observed(time.monotonic(), _mac_turns(pid))
    threads: dict[int, Turns] = {}
    found = [pid]
    # A process can't have that many descendants, but the list changes while it is read.
    while found and len(threads) < _MOST_THREADS:
        for task in _tasks(found.pop()):
            with contextlib.suppress(OSError, ValueError):
                ran, waited, _ = (task / "schedstat").read_text().split()
                threads[int(task.name)] = Turns(int(ran) * _NS, int(waited) * _NS)
            if descendants:
                with contextlib.suppress(OSError, ValueError):
                    found += map(int, (task / "children").read_text().split())
    return Observed(time.monotonic(), threads)


_MOST_THREADS: Final = 10_000


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


class ProcessorWait:
    """Counts, for one process that is late, how long it has waited for a processor since it was
    first looked at."""

    def __init__(self, pid: int, observe: Callable[[int], Observed] = observe) -> None:
        self._pid = pid
        self._observe = observe
        self._first = observe(pid)
        self._counted_s = 0.0

    def more_s(self) -> float:
        """Return how much of the time since the last call it has waited."""
        # All looks are compared with the first: a thread that waits shows it only when its turn
        # has come.
        total_s = max(self._counted_s, waited_s(self._first, self._observe(self._pid)))
        more_s, self._counted_s = total_s - self._counted_s, total_s
        return more_s


class ProcessorWaits:
    """The same for any number of processes. One that is not asked about for some seconds, because
    it is not late any more, begins again."""

    def __init__(self, observe: Callable[[int], Observed] = observe) -> None:
        self._observe = observe
        self._waits: dict[int, tuple[ProcessorWait, float]] = {}

    def more_s(self, pid: int, now_s: float) -> float:
        """Return how long a process that is late has waited since the last call; 0 at the first
        call, and until the next look is due."""
        for other, (_, at_s) in list(self._waits.items()):
            if now_s - at_s > _FORGOTTEN_S:
                del self._waits[other]
        known = self._waits.get(pid)
        if known is None:
            self._waits[pid] = ProcessorWait(pid, self._observe), now_s
            return 0.0
        wait, at_s = known
        if now_s - at_s < LOOK_EVERY_S:
            return 0.0
        self._waits[pid] = wait, now_s
        return wait.more_s()


def _mac_turns(pid: int) -> dict[int, Turns]:
    usage = mac_usage(pid)
    if usage is None:
        return {}
    unit_s = _mac_unit_s()
    ran = usage.user_time + usage.system_time
    # The time in which its threads could run includes that in which they ran.
    return {pid: Turns(ran * unit_s, max(0, usage.runnable_time - ran) * unit_s)}


class _Timebase(ctypes.Structure):
    """``struct mach_timebase_info`` of macOS."""

    _fields_ = (("numer", ctypes.c_uint32), ("denom", ctypes.c_uint32))


@cache
def _mac_unit_s() -> float:
    """Return the length of the unit of those times: 41.7 ns on Apple Silicon."""
    base = _Timebase()
    ctypes.CDLL(None).mach_timebase_info(ctypes.byref(base))
    return float(base.numer) / float(base.denom) * _NS
