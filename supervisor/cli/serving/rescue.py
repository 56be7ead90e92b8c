"""``lmx rescue``: takes care of a supervisor from which a router has received nothing.

It wakes a supervisor that was stopped by a signal. It ends one that hangs, with its stacks in its
log. If no service manager does so, it then starts another supervisor, which adopts what runs.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import psutil
import structlog

from lmx.protocol.host.logs import LogFile, configure_logs
from lmx.protocol.host.processor_wait import ProcessorWait
from lmx.protocol.host.stacks import STACKS, WRITTEN_S
from lmx.supervisor.cli.serving.background import spawn_background
from lmx.supervisor.processes.descendants import own_mark
from lmx.supervisor.processes.handover import Guarded
from lmx.supervisor.processes.hang_detection import Look, Patience, Verdict, judge
from lmx.supervisor.processes.supervisor_pid import probe_supervisor, supervisor_process
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import holds_within, is_running

log = structlog.get_logger()

_LOOK_S: Final = 0.5
_GONE_S: Final = 5.0
_START_S: Final = 60.0


def run_rescue(home: Home, config: Path | None, guarded: Guarded, silence_s: float) -> None:
    """Take care of the supervisor of a home once. Only one process at a time does this. Raises
    ``OSError``."""
    # A folder can be locked too, and needs no file on a disk that may take none.
    lock = os.open(home.logs, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    LogFile(home.supervisor_log, 0, 0).attach()  # else it says it to the router's log
    configure_logs("rescue")
    holder = supervisor_process(home)
    if holder is None:
        because = "the supervisor had died"
        if guarded is not Guarded.BACKGROUND:
            return
    else:
        verdict = _watched(home, holder, silence_s)
        if verdict is not Verdict.END:
            return
        because = f"the supervisor (pid {holder.pid}) hung, and was ended"
        _notify_terminal(holder, guarded)
        if not _ended(holder):
            # The system holds it, because of a disk or a driver, and would hold another one too.
            log.error("supervisor.not_ended", supervisor_pid=holder.pid)
            return
        if guarded is Guarded.SERVICE:
            return
    requester_id = own_mark(os.environ)
    if requester_id is not None:
        log.warning("supervisor.started_again", because=because)
        options = ["--asker", requester_id, "--because", because]
        _see_up(home, spawn_background(home, config, options))


def _watched(home: Home, holder: psutil.Process, silence_s: float) -> Verdict:
    """Look at a supervisor until it is clear what is wrong with it."""
    patience, wait = Patience(silence_s), ProcessorWait(holder.pid)
    while True:
        look = _look(home, holder, wait)
        if look is None:
            return Verdict.WELL  # it has ended, or replaced its program just now
        patience, verdict = judge(patience, look, time.monotonic())
        match verdict:
            case Verdict.WAIT:
                time.sleep(_LOOK_S)
            case Verdict.WAKE:
                log.warning("supervisor.woken", supervisor_pid=holder.pid)
                with contextlib.suppress(psutil.Error):
                    holder.send_signal(signal.SIGCONT)
            case _:
                log.info("supervisor.checked", supervisor_pid=holder.pid, verdict=verdict.value)
                return verdict


def _look(home: Home, holder: psutil.Process, wait: ProcessorWait) -> Look | None:
    answers = probe_supervisor(home) is None
    try:
        status, used = holder.status(), holder.cpu_times()
    except psutil.Error:
        return None
    return Look(
        answers=answers,
        stopped=status == psutil.STATUS_STOPPED,
        traced=status == psutil.STATUS_TRACING_STOP,
        waits_on_disk=status == psutil.STATUS_DISK_SLEEP,
        cpu_s=used.user + used.system,
        waited_s=wait.more_s(),
    )


def _ended(holder: psutil.Process) -> bool:
    log.error("supervisor.unresponsive", supervisor_pid=holder.pid)
    for number, limit_s in ((STACKS, WRITTEN_S), (signal.SIGKILL, _GONE_S)):
        with contextlib.suppress(psutil.Error):
            holder.send_signal(number)
            holder.send_signal(signal.SIGCONT)
        if holds_within(limit_s, lambda: not is_running(holder)):
            return True
    return False


def _see_up(home: Home, child: subprocess.Popen[bytes]) -> None:
    """Wait until the new supervisor answers, so that routers do not start this again meanwhile."""
    answers = holds_within(
        _START_S,
        lambda: child.poll() is not None or probe_supervisor(home) is None,
        poll_s=_LOOK_S / 10,
    )
    if not answers:
        log.error("supervisor.not_up", supervisor_pid=child.pid)


def _notify_terminal(holder: psutil.Process, guarded: Guarded) -> None:
    """Notify the person at the terminal of a supervisor that hung."""
    if guarded is not Guarded.FOREGROUND:
        return
    with contextlib.suppress(psutil.Error, OSError):
        terminal = holder.terminal()
        if terminal is not None:
            descriptor = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                os.write(descriptor, _GONE_FROM_HERE)
            finally:
                os.close(descriptor)


_GONE_FROM_HERE: Final = (
    b"\r\nlmx: the supervisor hung. Another one has taken over, in the background: see "
    b"`lmx status`; `lmx stop` ends it\r\n"
)
