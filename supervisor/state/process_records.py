"""What a supervisor leaves on disk so that the next one can take over, and nothing runs twice.

A ``flock`` says who is the supervisor, and a small JSON file for each process that it started says
what is running. A pid alone proves nothing after a reboot or when pids start over. That is why each
record also has an id that is part of the process's command line.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import stat
import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.quarantine_file import quarantine_file
from lmx.supervisor.state.disk_retry import Change, change_once
from lmx.supervisor.state.home import COMMAND_MARK, lock_holder
from lmx.supervisor.state.state_file import StateFile, discard_notice

_Record = TypeVar("_Record")

_ACQUIRE_S: Final = 0.5
_UNSIGNED_S: Final = 5.0
"""How long the lock is tried for while its file does not say who holds it. Its holder signs at
once, except on a full disk."""

_ASKED_S: Final = 30.0
"""How long the lock is tried for while only processes have it that ask whether a supervisor runs,
for an instant, which may last on a busy machine; or a command, which deletes a model perhaps."""

_COMMAND_S: Final = 120.0
"""How long a command tries for it while another command has it. It has downloaded a model before,
perhaps; and unlike a supervisor's, its wait can be interrupted."""

_SAID_S: Final = 1.0
"""After this time a command says for which other one it waits."""

_ACQUIRE_RETRY_S: Final = 0.01
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process that was started.

    It is recognized by a word of its command line, and not by its creation time: the system counts
    that from the boot, so that it moves when the clock is set, and then every process would seem to
    be another one.
    """

    pid: int
    token: str
    """A word of its command line that no other process has."""

    @property
    def alive(self) -> bool:
        """Whether this very process still runs. A zombie does not."""
        try:
            process = psutil.Process(self.pid)
            return self.token in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class WorkerRecord(ProcessRecord):
    """A worker, and the bytes that were reserved for it. Its token is its instance id."""

    model_id: str
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class RouterRecord(ProcessRecord):
    """A router, and where it listens."""

    host: str
    port: int
    retiring: bool = False
    """Whether another router serves in its place, or will."""

    def as_retiring(self) -> RouterRecord:
        """Return the record of this router as one that retires."""
        return dataclasses.replace(self, retiring=True)


def holds_within(limit_s: float, condition: Callable[[], bool], poll_s: float = _POLL_S) -> bool:
    """Block until the condition holds, and return whether it did in time."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(poll_s)
    return True


def wait_gone(records: Sequence[ProcessRecord], limit_s: float) -> bool:
    """Block until none of the processes runs, and return whether that was so in time."""
    return holds_within(limit_s, lambda: not any(record.alive for record in records))


def is_running(process: psutil.Process) -> bool:
    """Return whether a process still runs. A zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class SupervisorLock:
    """The right to be the supervisor of one home, held until the process ends. A command that
    changes the files itself, while no supervisor runs, takes it too.

    It can't be given back earlier, because that would say that the supervisor is gone while it is
    not. The file stays behind: if it were removed, two processes could hold locks on two files.
    """

    def __init__(self, path: Path, notify: Callable[[str], None] = discard_notice) -> None:
        self._path = path
        self._notify = notify
        self._descriptor: int | None = None

    def acquire(self, inherited: int | None = None, *, by_command: bool = False) -> None:
        """Take the lock. Raises :class:`OperationError` (already_running) with the holder's pid.

        It tries for a moment, because a process that asks whether a supervisor runs holds the lock
        for an instant, and waits for the end of a command that has it. ``by_command`` says that
        this process is such a command, and no supervisor: then ``notify`` is called with what it
        waits for. ``inherited`` is the descriptor with which this process held the lock before it
        replaced its program. The lock was never free in between.
        """
        if inherited is not None:
            os.set_inheritable(inherited, False)
        descriptor = self._open() if inherited is None else inherited
        try:
            if by_command:
                _lock(descriptor, _COMMAND_S, self._notify)
            else:
                _lock(descriptor, _ASKED_S)
        except BlockingIOError as error:
            holder = lock_holder(descriptor)
            os.close(descriptor)
            if holder is not None and holder.is_command:
                raise OperationError(
                    ErrorCode.INTERNAL,
                    f"another command of lmx (pid {holder.pid}) is changing files: try again when "
                    "it has ended",
                ) from error
            pid = "unknown" if holder is None else holder.pid
            raise OperationError(
                ErrorCode.ALREADY_RUNNING,
                f"lmx is running already (pid {pid}): see `lmx status`, or stop it with `lmx stop`",
            ) from error
        # The lock is held. The pid in the file is for people, and a full disk does not take it.
        mark = f"{COMMAND_MARK if by_command else ''}{os.getpid()}\n"
        change_once(self._path, lambda: _sign(descriptor, mark))
        self._descriptor = descriptor

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except OSError:
            if not os.path.lexists(self._path):
                raise
            if self._path.is_file():
                # The disk can't be written. The file that is there can be locked all the same.
                return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        else:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
        # It is a folder, a pipe or a link to nowhere, and nobody holds that as a lock.
        aside = quarantine_file(self._path)
        self._notify(f"{self._path} was no file: it was set aside as {aside.name}")
        return os.open(self._path, flags, 0o600)

    @property
    def descriptor(self) -> int:
        """The descriptor that holds the lock. Raises ``RuntimeError`` before the lock was taken."""
        if self._descriptor is None:
            raise RuntimeError("the lock was not taken")
        return self._descriptor


def _sign(descriptor: int, mark: str) -> None:
    os.pwrite(descriptor, mark.encode(), 0)
    os.ftruncate(descriptor, len(mark))


def _lock(
    descriptor: int, longest_s: float, notify: Callable[[str], None] = discard_notice
) -> None:
    began_s = known_s = time.monotonic()
    said = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder, now_s = lock_holder(descriptor), time.monotonic()
            if (holder is not None and holder.is_command) or _is_only_asked_for(descriptor):
                known_s, ends_s = now_s, began_s + longest_s
            else:
                # The next holder may have taken it just now, and not signed yet.
                ends_s = known_s + (_UNSIGNED_S if holder is None else _ACQUIRE_S)
            if now_s >= ends_s:
                raise
            if not said and holder is not None and holder.is_command and now_s - began_s >= _SAID_S:
                notify(f"waiting for another command of lmx (pid {holder.pid}) to end")
                said = True
            time.sleep(_ACQUIRE_RETRY_S)


def _is_only_asked_for(descriptor: int) -> bool:
    """Return whether nobody holds the lock who could be a supervisor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


class Records:
    """The record files below the state folder. ``change`` changes a file, and never raises
    ``OSError``: a process works as well without its record, and the next supervisor adopts it when
    it sends its hello."""

    def __init__(
        self,
        state: Path,
        change: Callable[[Path, Change], None] = change_once,
        notify: Callable[[str], None] = discard_notice,
    ) -> None:
        self._notify = notify
        self._workers = state / "workers"
        self._routers = StateFile(
            state / "router.json",
            lambda values: [_typed(RouterRecord(**value)) for value in values],
            notify,
        )
        self._change = change

    def save_worker(self, record: WorkerRecord) -> None:
        self._save(self._worker_file(record.token), dataclasses.asdict(record))

    def forget_worker(self, instance: str) -> None:
        """Remove the record of a worker that has exited. A record that stays is later found to be
        stale."""
        self._remove(self._worker_file(instance).path)

    def workers(self) -> list[WorkerRecord]:
        """Return the record of every worker. Unreadable files are set aside."""
        paths = sorted(self._workers.glob("*.json"))
        found = [StateFile(path, _worker_record, self._notify).load() for path in paths]
        return [record for record in found if record is not None]

    def save_routers(self, records: Sequence[RouterRecord]) -> None:
        """Write the records of all routers that run. Without any, the file is removed."""
        if records:
            self._save(self._routers, [dataclasses.asdict(record) for record in records])
        else:
            self._remove(self._routers.path)

    def orphans(self) -> list[ProcessRecord]:
        """Return the recorded processes that still run, the routers first. Changes nothing, because
        the caller may not be the supervisor."""
        routers = self._routers.peek() or []
        paths = sorted(self._workers.glob("*.json"))
        workers = [StateFile(path, _worker_record).peek() for path in paths]
        return [each for each in (*routers, *workers) if each is not None and each.alive]

    def routers(self) -> list[RouterRecord]:
        """Return the record of every router. An unreadable file is set aside."""
        return self._routers.load() or []

    def _worker_file(self, instance: str) -> StateFile[WorkerRecord]:
        return StateFile(self._workers / f"{instance}.json", _worker_record, self._notify)

    def _save(self, file: StateFile[Any], values: Any) -> None:
        self._change(file.path, lambda: file.save(values))

    def _remove(self, path: Path) -> None:
        self._change(path, lambda: path.unlink(missing_ok=True))


def _worker_record(value: dict[str, Any]) -> WorkerRecord:
    return _typed(WorkerRecord(**value))


def _typed(record: _Record) -> _Record:
    """Return the record. Raises ``TypeError`` if a value has another type than it should have."""
    for name, kind in typing.get_type_hints(type(record)).items():
        value = getattr(record, name)
        if type(value) is not kind or (kind is int and not 0 <= value < 2**53):
            raise TypeError(f"{name} is {value!r:.80}")
    return record
