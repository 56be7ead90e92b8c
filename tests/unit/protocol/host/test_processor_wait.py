"""How long a process waits for a processor: by a table, and of real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lmx.protocol.host.processor_wait import (
    Observed,
    ProcessorWait,
    ProcessorWaits,
    Turns,
    observe,
    waited_s,
)

SPINS = "while True: pass"
BLOCKED = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
STARTS_ONE = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPINS!r}])"


def observed(at_s: float, *threads: tuple[float, float]) -> Observed:
    return Observed(at_s, {number: Turns(*turns) for number, turns in enumerate(threads)})


@pytest.mark.parametrize(
    ("first", "last", "expected_s"),
    [
        # It does nothing: it is stopped, or waits for what never comes.
        (observed(0.0, (5.0, 1.0)), observed(10.0, (5.0, 1.0)), 0.0),
        # It spins, and has a processor all the time; the second has it a tenth of the time.
        (observed(0.0, (5.0, 1.0)), observed(10.0, (15.0, 1.0)), 0.0),
        (observed(0.0, (5.0, 1.0)), observed(10.0, (6.0, 10.0)), 9.0),
        # It wakes now and then, and each time it waits longer than it runs.
        (observed(0.0, (0.0, 0.0)), observed(10.0, (0.1, 0.9)), 0.9),
        # Four threads spin on two processors; then they pass work on to each other.
        (observed(0.0), observed(10.0, *[(5.0, 5.0)] * 4), 5.0),
        (observed(0.0), observed(10.0, (0.5, 4.0), (0.5, 4.0)), 8.0),
        # A thread has ended, and another one has begun.
        (observed(0.0, (1.0, 1.0), (9.0, 9.0)), observed(10.0, (2.0, 4.0)), 3.0),
        # The system says nothing, or its figures go back.
        (observed(0.0), observed(10.0), 0.0),
        (observed(0.0, (5.0, 5.0)), observed(10.0, (1.0, 1.0)), 0.0),
    ],
)
def test_what_counts_is_what_it_wanted_and_did_not_get(
    first: Observed, last: Observed, expected_s: float
) -> None:
    assert waited_s(first, last) == pytest.approx(expected_s)


def test_each_wait_is_counted_once() -> None:
    looks = [observed(now_s, (0.0, waited)) for now_s, waited in enumerate((0, 1, 1, 3, 3, 4.0))]
    seen = iter(looks)
    wait = ProcessorWait(1, lambda _: next(seen))
    assert [wait.more_s() for _ in looks[1:]] == pytest.approx([1, 0, 2, 0, 1])


def test_one_that_was_not_late_for_a_while_begins_again() -> None:
    seen = 0

    def look(_: int) -> Observed:
        nonlocal seen
        seen += 1
        return observed(float(seen), (0.0, float(seen)))

    waits = ProcessorWaits(look)
    assert [waits.more_s(1, now_s) for now_s in (0.0, 0.1, 1.0, 1.1, 2.0)] == [0, 0, 1, 0, 1]
    assert seen == 3
    assert waits.more_s(1, 60.0) == 0


@contextmanager
def running(code: str, *, count: int = 1) -> Iterator[list[int]]:
    """Run programs, all on one processor, with the least right to it that there is for the last."""
    programs = []
    try:
        for _ in range(count):
            command = [sys.executable, "-c", code]
            programs.append(subprocess.Popen(command, start_new_session=True))
            os.sched_setaffinity(programs[-1].pid, {min(os.sched_getaffinity(0))})
        os.setpriority(os.PRIO_PROCESS, programs[-1].pid, 10)
        yield [program.pid for program in programs]
    finally:
        for program in programs:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


def share_waited(pid: int, *, descendants: bool = False) -> float:
    """Return the share of half a second, or more on a busy machine, that a process waits."""
    first = observe(pid, descendants=descendants)
    time.sleep(0.5)
    last = observe(pid, descendants=descendants)
    return waited_s(first, last) / (last.at_s - first.at_s)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are put on one processor")
def test_real_processes() -> None:
    end_s = time.monotonic() + 90
    with running(SPINS, count=4) as spinning:
        starved = spinning[-1]
        # A quarter is its own, where the scheduler shares by sessions and not by nice values.
        while share_waited(starved) < 0.6:
            assert time.monotonic() < end_s
        os.kill(starved, signal.SIGSTOP)
        while share_waited(starved) > 0.0:
            assert time.monotonic() < end_s
        with running(BLOCKED) as (blocked,), running(STARTS_ONE) as (parent,):
            while share_waited(blocked) > 0.01:
                assert time.monotonic() < end_s
            while share_waited(parent, descendants=True) < 0.5:
                assert time.monotonic() < end_s
            assert share_waited(parent) < 0.5
    assert observe(starved).threads == {}
