"""Decides why a worker or router process ended. This module is pure."""

import signal
from typing import Final

from lmx.protocol.states import ExitCause, WorkerExit, WorkerState
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.decisions.worker import Worker

_FAULTS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
)

_ADVICE: Final = (
    "lower the model's context_length or concurrency, unload another model, or lower "
    "memory.budget_fraction if other programs need the memory"
)

HOST_FAULT: Final = (
    "the worker could not make its socket: the disk of LMX_HOME is full, read-only or gone, or the "
    "machine has no descriptors left; lmx tries again by itself"
)

RANK_LOST: Final = (
    "one of the processes that the model is divided among ended or stopped answering, and all were "
    "ended with it; the worker's log says which"
)


def exit_cause(
    worker: Worker, status: int | None, out_of_memory: bool = False
) -> tuple[ExitCause, str]:
    """Return why a process ended: what was first asked of it, else what its status says.

    ``out_of_memory`` means that the system killed a process because memory ran out, at the time
    when this one ended.
    """
    if worker.cause is not None and not _died_while_draining(worker, status):
        return worker.cause, worker.detail
    if out_of_memory and status in (None, -signal.SIGKILL):
        return ExitCause.OUT_OF_MEMORY, (
            "the system killed the worker process because memory ran out; it held "
            f"{format_bytes(worker.figures.memory_bytes)} at its last heartbeat: {_ADVICE}"
        )
    if status == WorkerExit.OUT_OF_MEMORY:
        return ExitCause.OUT_OF_MEMORY, (
            "the engine could not get the memory that it needed; the worker held "
            f"{format_bytes(worker.figures.memory_bytes)} at its last heartbeat: {_ADVICE}"
        )
    if status == WorkerExit.HOST:
        return ExitCause.HOST, HOST_FAULT
    if status == WorkerExit.RANK_LOST:
        return ExitCause.CRASH, RANK_LOST
    if status is None:
        return ExitCause.CRASH, "the worker process is gone; its exit status is unknown"
    if status >= 0:
        return ExitCause.CRASH, f"the worker process exited by itself with status {status}"
    name = _signal_name(-status)
    if -status == signal.SIGKILL:
        return ExitCause.SIGNAL, (
            f"the worker process was ended by {name}, which lmx did not send: an operator, "
            "or the system because memory ran out"
        )
    if -status in _FAULTS:
        return ExitCause.CRASH, f"the worker process crashed ({name})"
    return ExitCause.SIGNAL, f"the worker process was ended by {name}, which lmx did not send"


def router_end(status: int | None) -> str:
    """Return how a router process ended that nobody asked to end. A ``status`` of None is one that
    can't be known."""
    if status is None:
        return "its exit status is unknown"
    if status < 0:
        return f"it was ended by {_signal_name(-status)}"
    return f"it exited by itself with status {status}"


def _died_while_draining(worker: Worker, status: int | None) -> bool:
    """Return whether a draining worker crashed. No signal is sent to a worker while it drains, so
    that an end that is not clean is its own fault, and its streams must get that reason."""
    return worker.state is WorkerState.DRAINING and status not in (None, 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
