"""Why a worker process ended. Pure."""

from __future__ import annotations

import signal
from typing import Final

from lmx.protocol.states import ExitCause
from lmx.supervisor.worker_state import Worker

_FAULTS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
)


def exit_cause(worker: Worker, status: int | None) -> tuple[ExitCause, str]:
    """Say why a process ended: what was asked of it first, else what its status tells."""
    if worker.cause is not None:
        return worker.cause, worker.detail
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
