"""What the command line itself does with lmx's processes when no supervisor answers.

It recognizes the processes that it ends by the records, and by the ids that processes of lmx have
in their environment. A pid alone is never enough.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

import psutil

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.host.stacks import STACKS, WRITTEN_S
from lmx.protocol.messages import control
from lmx.protocol.messages.specs import SPARE
from lmx.protocol.states import SupervisorState
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.memory.system import read_footprint
from lmx.supervisor.processes.child import signal_group
from lmx.supervisor.processes.descendants import end_marked, marked
from lmx.supervisor.processes.supervisor_pid import (
    ANSWER_S,
    Unresponsive,
    is_stopped,
    probe_supervisor,
    supervisor_process,
)
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import (
    ProcessRecord,
    Records,
    SupervisorLock,
    WorkerRecord,
    holds_within,
    is_running,
    wait_gone,
)

Notify = Callable[[str], None]

_POLL_S: Final = 0.1
_GONE_S: Final = 5.0
_TERM_GRACE_S: Final = 21.0
"""How long routers and workers have to end after SIGTERM. It is longer than any of their graces
by default: a Mac may keep the memory of a worker that is killed."""

_HUNG_S: Final = 10.0
"""A supervisor that was asked to stop and reports nothing for this long is ended."""

_ROUNDS: Final = 5
"""A supervisor that was being started meanwhile is stopped in another one."""


def kill_worker(home: Home, model: str, why: Unresponsive) -> str:
    """Send SIGKILL to a model's worker and its descendants. Returns what was done, for people.

    Raises :class:`OperationError` (model_not_loaded) when none is found.
    """
    workers = _workers(home)
    found = [worker for worker in workers if worker.model_id == model]
    if not found:
        others = ", ".join(f"{w.model_id} (pid {w.pid})" for w in workers) or "none"
        raise OperationError(
            ErrorCode.MODEL_NOT_LOADED,
            f"{why.words}, and the records have no worker of {model!r} that runs; workers that do: "
            f"{others}. Without a supervisor only a model's id names it",
        )
    began_s = time.monotonic()
    footprints = [read_footprint(worker.pid) for worker in found]
    held_bytes = sum(each.held_bytes for each in footprints if each is not None)
    for worker in found:
        signal_group(worker.pid, signal.SIGKILL)
    gone = wait_gone(found, _GONE_S)
    took_s = time.monotonic() - began_s
    for worker in found:
        end_marked(home, worker.token)
    pids = ", ".join(str(worker.pid) for worker in found)
    end = f"it was gone after {took_s:.1f} s" if gone else f"it is not gone after {took_s:.0f} s"
    return (
        f"{why.words}: killed {model}'s worker (pid {pids}) by its record; it held "
        f"{format_bytes(held_bytes)}, {end}. {_who_starts_again(why)}"
    )


def _who_starts_again(why: Unresponsive) -> str:
    if why.holder is None:
        return "Nobody starts it again before there is a supervisor: `lmx serve` or `start`"
    return (
        "The supervisor starts it again when it continues, or the one that replaces it: lmx's "
        "router replaces one that stays unresponsive"
    )


def stop(home: Home, notify: Notify) -> int | None:
    """Stop the supervisor, and end what a dead or hung one leaves. Returns the first pid that
    ended, None if nothing ran. No process is left then. ``notify`` is called with everything that
    is out of the ordinary.

    Raises :class:`OperationError` about what could not be ended.
    """
    first: int | None = None
    stuck: psutil.Process | None = None
    for number in range(1, _ROUNDS + 1):
        holder = supervisor_process(home)
        if holder is not None:
            first = first or holder.pid
            if not _stop_supervisor(home, holder, notify):
                stuck = holder
        try:
            ended = _end_rest(home, notify, locked=stuck is None)
        except OperationError as error:
            if error.code is ErrorCode.ALREADY_RUNNING and number < _ROUNDS:
                continue
            raise
        first = first or next(iter(ended), None)
        break
    if stuck is not None:
        raise OperationError(
            ErrorCode.INTERNAL,
            f"the supervisor (pid {stuck.pid}) does not end, not even by SIGKILL: the system holds "
            "it, most likely for a disk or a driver that does not answer. All that it started "
            "has ended",
        )
    return first


def _stop_supervisor(home: Home, holder: psutil.Process, notify: Notify) -> bool:
    """Stop the supervisor, and return whether it has ended. As long as it answers it gets its own
    graces."""
    unresponsive = probe_supervisor(home)
    asked = unresponsive is None and _asked_to_stop(home)
    if not asked and is_running(holder):
        why = f"the supervisor (pid {holder.pid}) was asked to stop, and does not"
        why = why if unresponsive is None else unresponsive.words
        notify(f"{why}: it is sent SIGTERM, and SIGCONT")
        _signal(holder, signal.SIGTERM)
        _signal(holder, signal.SIGCONT)
    answered_s = looked_s = time.monotonic()
    while is_running(holder):
        time.sleep(_POLL_S)
        now_s = time.monotonic()
        if now_s - looked_s >= 1.0:
            answers = probe_supervisor(home) is None
            looked_s = time.monotonic()
            answered_s = looked_s if answers else answered_s
            if is_stopped(holder):
                _signal(holder, signal.SIGCONT)
        if now_s - answered_s > _HUNG_S:
            return _end_hung(holder, notify)
    return True


def _asked_to_stop(home: Home) -> bool:
    """Ask the supervisor to stop, and return whether it is stopping. It must not be asked twice,
    because that means "at once"."""
    try:
        with ControlClient(home) as client:
            client.ask(control.StopAll())
        return True
    except OperationError as error:
        if error.code is ErrorCode.NOT_RUNNING:
            return True  # it has given up its lock: it ends
    except ProtocolError:
        pass
    # The question is lost, or its answer, or it was denied.
    try:
        with ControlClient(home, ANSWER_S) as client:
            return client.status().supervisor.state is SupervisorState.STOPPING
    except (OperationError, ProtocolError):
        return False


def _end_hung(holder: psutil.Process, notify: Notify) -> bool:
    notify(
        f"the supervisor (pid {holder.pid}) does not end: killed, with its threads' stacks in its "
        "log. If launchd or systemd runs lmx, stop it there: they start it again"
    )
    _signal(holder, STACKS)
    _signal(holder, signal.SIGCONT)
    if not holds_within(WRITTEN_S, lambda: not is_running(holder)):
        _signal(holder, signal.SIGKILL)
    return holds_within(_GONE_S, lambda: not is_running(holder))


def _end_rest(home: Home, notify: Notify, *, locked: bool) -> list[int]:
    """End the processes that are left of a home, and return their pids. The lock is held meanwhile,
    so that no supervisor adopts them."""
    if not home.lock.exists():
        return []
    if locked:
        SupervisorLock(home.lock).acquire()
    left = [*Records(home.state).orphans(), *_others(home)]
    if left:
        notify(f"ending what the supervisor has left (pids {_pids(left)})")
    for number in (signal.SIGTERM, signal.SIGKILL):
        for record in left:
            if record.alive:
                signal_group(record.pid, number)
        if wait_gone(left, _TERM_GRACE_S if number == signal.SIGTERM else _GONE_S):
            break
    rest = end_marked(home)
    for path in home.run.path.glob("w-*"):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    still = [*(each.pid for each in left if each.alive), *(each.pid for each in marked(home))]
    if still:
        pids = ", ".join(map(str, dict.fromkeys(still)))
        raise OperationError(
            ErrorCode.INTERNAL, f"not even SIGKILL ends pids {pids}: the system holds them"
        )
    return list(dict.fromkeys([*(record.pid for record in left), *rest]))


def _workers(home: Home) -> list[WorkerRecord]:
    """Return the workers that run: those with a record, and those whose record was never
    written."""
    recorded = [record for record in Records(home.state).workers() if record.alive]
    known = {record.pid for record in recorded}
    return [*recorded, *(each for each in _others(home) if each.pid not in known)]


def _others(home: Home) -> list[WorkerRecord]:
    """Return the workers that are found by their command lines: ``-m lmx.worker MODEL INSTANCE``.
    One that was a spare worker has no model there, but a record."""
    found = []
    for process in marked(home):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "lmx.worker" in command and SPARE not in command and len(command) >= 3:
                found.append(WorkerRecord(process.pid, command[-1], command[-2], 0))
    return found


def _pids(records: Sequence[ProcessRecord]) -> str:
    return ", ".join(dict.fromkeys(str(record.pid) for record in records))


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
