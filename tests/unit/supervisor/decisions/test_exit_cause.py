"""Why a worker ended: every status, asked for or not, with and without missing memory."""

from dataclasses import replace

import pytest

from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import ExitCause, WorkerExit, WorkerState
from lmx.supervisor.decisions.exit_cause import exit_cause
from lmx.supervisor.decisions.lifecycle import spawned
from lmx.supervisor.decisions.worker import Limits, Worker

LIMITS = Limits(10, 20, 5, 30, 8, 3, 2)
FIGURES = WorkerFigures(memory_bytes=3 * 1024**3)
NEW = replace(spawned("i", "m", 42, LIMITS, 0.0), figures=FIGURES)


@pytest.mark.parametrize(
    ("status", "short", "cause", "words"),
    [
        (0, False, ExitCause.CRASH, "status 0"),
        (1, True, ExitCause.CRASH, "status 1"),
        (WorkerExit.HOST, False, ExitCause.HOST, "the disk of LMX_HOME"),
        (WorkerExit.OUT_OF_MEMORY, False, ExitCause.OUT_OF_MEMORY, "could not get the memory"),
        (WorkerExit.RANK_LOST, False, ExitCause.CRASH, "divided among ended or stopped"),
        (-9, False, ExitCause.SIGNAL, "by SIGKILL, which lmx did not send: an operator, or the"),
        (-9, True, ExitCause.OUT_OF_MEMORY, "the system killed"),
        (-11, True, ExitCause.CRASH, "SIGSEGV"),
        (-15, True, ExitCause.SIGNAL, "SIGTERM"),
        (-63, False, ExitCause.SIGNAL, "signal"),
        (None, False, ExitCause.CRASH, "unknown"),
        (None, True, ExitCause.OUT_OF_MEMORY, "the system killed"),
    ],
)
def test_what_nobody_asked_for(
    status: int | None, short: bool, cause: ExitCause, words: str
) -> None:
    found, detail = exit_cause(NEW, status, short)
    assert found is cause
    assert words in detail
    if cause is ExitCause.OUT_OF_MEMORY:
        assert "3.0 GiB" in detail
        assert "lower the model's context_length or concurrency" in detail


@pytest.mark.parametrize("status", [0, 1, WorkerExit.OUT_OF_MEMORY, -9, -15, None])
@pytest.mark.parametrize("short", [False, True])
def test_what_was_asked_for_comes_first(status: int | None, short: bool) -> None:
    asked = replace(
        NEW, state=WorkerState.STOPPING, cause=ExitCause.OUT_OF_MEMORY, detail="the guard"
    )
    assert exit_cause(asked, status, short) == (ExitCause.OUT_OF_MEMORY, "the guard")


def draining() -> Worker:
    return replace(NEW, state=WorkerState.DRAINING, cause=ExitCause.EVICTED, detail="for b")


def test_an_end_of_its_own_while_it_drains() -> None:
    assert exit_cause(draining(), -9, True)[0] is ExitCause.OUT_OF_MEMORY
    assert exit_cause(draining(), -11)[0] is ExitCause.CRASH
    assert exit_cause(draining(), WorkerExit.OUT_OF_MEMORY)[0] is ExitCause.OUT_OF_MEMORY
    assert exit_cause(draining(), 0) == (ExitCause.EVICTED, "for b")
    assert exit_cause(draining(), None) == (ExitCause.EVICTED, "for b")
