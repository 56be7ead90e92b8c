"""Finds the process that is the supervisor of a home, and looks from outside how it is."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.host.processor_wait import Observed, observe, waited_s
from lmx.supervisor.sockets.client import ControlClient, supervisor_runs
from lmx.supervisor.state.home import Home

ANSWER_S: Final = 1.0
"""A supervisor answers within milliseconds: its loop does nothing that takes long."""

_LONGER_S: Final = 2.0
"""How much longer a supervisor that works is waited for. With this value a look is not late yet
(:data:`~lmx.supervisor.processes.hang_detection.LATE_S`); if it were, a supervisor that spins would
never be judged."""

_WORKS_S: Final = 0.05
"""A supervisor that in a second uses this much processor time, or waits this long for a processor,
is working. One that hangs does next to neither."""


_SERVING: Final = frozenset({"up", "serve", "demo"})
"""The commands that become a supervisor."""


@dataclass(frozen=True, slots=True)
class Unresponsive:
    """The supervisor does not answer."""

    holder: psutil.Process | None
    """The supervisor's process, or None."""

    @property
    def words(self) -> str:
        """A sentence about it, for people."""
        if self.holder is None:
            return "the supervisor is not running"
        who = f"the supervisor (pid {self.holder.pid})"
        if is_stopped(self.holder):
            return f"{who} does not answer: it is stopped (SIGSTOP)"
        return f"{who} has not answered for {ANSWER_S:g} s"


def probe_supervisor(home: Home) -> Unresponsive | None:
    """Ask the supervisor how it is, and return None if it answers. A supervisor that works
    meanwhile, on a busy machine, gets a little longer to answer."""
    holder = supervisor_process(home)
    before_s, seen = _cpu_s(holder), _observed(holder)
    if _answers(home, ANSWER_S):
        return None
    wanted_s = _cpu_s(holder) - before_s + waited_s(seen, _observed(holder))
    if wanted_s >= _WORKS_S and _answers(home, _LONGER_S):
        return None
    return Unresponsive(supervisor_process(home))


def _answers(home: Home, limit_s: float) -> bool:
    try:
        with ControlClient(home, limit_s) as client:
            client.status()
    except OperationError as error:
        # A denial is an answer too.
        return error.code not in (ErrorCode.NOT_RUNNING, ErrorCode.SUPERVISOR_UNAVAILABLE)
    except ProtocolError:
        return True  # it speaks another version of the protocol, or nonsense
    return True


def _observed(process: psutil.Process | None) -> Observed:
    return Observed(time.monotonic(), {}) if process is None else observe(process.pid)


def _cpu_s(process: psutil.Process | None) -> float:
    try:
        used = None if process is None else process.cpu_times()
    except psutil.Error:
        used = None
    return 0.0 if used is None else used.user + used.system


def supervisor_process(home: Home) -> psutil.Process | None:
    """Return the process that holds the home's lock, or None. It is recognized by the
    lock file that it has open, because its pid alone may belong to another process by now."""
    if not supervisor_runs(home):
        return None
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int(home.lock.read_text()))
        if _has_open(process, home):
            return process
    # On a full disk the supervisor could not write its pid into the file.
    return next((each for each in psutil.process_iter() if _has_open(each, home)), None)


def is_stopped(process: psutil.Process) -> bool:
    """Return whether a signal (SIGSTOP, Ctrl-Z) stopped a process. A debugger does not count."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _has_open(process: psutil.Process, home: Home) -> bool:
    try:
        if _SERVING.isdisjoint(process.cmdline()):
            return False
        lock = home.lock.stat()
        return any(_is_same(file.path, lock) for file in process.open_files())
    except (psutil.Error, OSError):
        return False


def _is_same(path: str, lock: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(Path(path).stat(), lock)
    return False
