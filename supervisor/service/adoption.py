"""Takes over from a supervisor that died. Processes that still run are kept, and those that have no
place any more are ended."""

import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from lmx.protocol.messages import control
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.supervisor.core.core import Core
from lmx.supervisor.processes.child import signal_group
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.state.disk_retry import Change
from lmx.supervisor.state.process_records import (
    ProcessRecord,
    Records,
    RouterRecord,
    WorkerRecord,
    wait_gone,
)

log = structlog.get_logger()

_END_S: Final = 2.0


@dataclass(eq=False, repr=False)
class Adoption:
    """Finds the processes of an earlier supervisor: by their records at the start, and by their
    hellos if a record is missing because the earlier supervisor died too early.

    ``watch_worker(instance, pid)`` and ``watch_router(pid)`` make a process's exit be reported.
    ``change`` changes a file, and never raises ``OSError``. ``end_left(instance, what)`` ends what
    a worker left behind.
    """

    _core: Core
    _guard: RouterGuard
    _records: Records
    _run: RunDirectory
    _watch_worker: Callable[[str, int], None]
    _watch_router: Callable[[int], None]
    _change: Callable[[Path, Change], None]
    _end_left: Callable[[str, str], None]

    def take_over(self, host: str, port: int, now_s: float) -> None:
        """Adopt every recorded process that lives and has a place, and end the others."""
        for worker in self._records.workers():
            self._take_worker(worker, now_s)
        for path in self._run.path.glob("w-*"):
            # A worker without a record may still listen on this socket, and will send its hello.
            if not _is_bound(path):
                self._remove(path)
        for router in self._records.routers():
            self._take_router(router, host, port, now_s)

    def unknown_instances(self) -> list[str]:
        """Return the instances on whose sockets a process listens that this supervisor does not
        know."""
        instances = [path.name.removeprefix("w-") for path in self._run.path.glob("w-*")]
        return [
            instance
            for instance in instances
            if not self._core.has_worker(instance) and _is_bound(self._run.worker_socket(instance))
        ]

    def admits_worker(self, hello: control.WorkerHello, now_s: float) -> bool:
        """Return whether a worker that sends its hello belongs to this supervisor, or does from now
        on. Any other worker is ended."""
        if self._core.has_worker(hello.instance):
            return True
        # No record says how far this worker may still grow. It gets what its start would reserve,
        # as soon as the model's files have been read.
        planned_bytes = self._core.planned_bytes(hello.model_id)
        held_bytes = max(hello.memory_bytes, planned_bytes)
        record = WorkerRecord(hello.pid, hello.instance, hello.model_id, held_bytes)
        if not record.alive:
            return False
        self._records.save_worker(record)
        self._take_worker(record, now_s)
        known = self._core.has_worker(hello.instance)
        if known and not planned_bytes:
            self._core.reserve_once_read(hello.instance)
        return known

    def admit_router(self, hello: control.RouterHello, host: str, now_s: float) -> None:
        """Take a router that sends its hello: adopt it if there is no router, and end it if there
        is one already."""
        if self._guard.has_router(hello.pid):
            self._guard.hello(hello.pid, hello.port, now_s)
            return
        record = RouterRecord(hello.pid, hello.router_id, host, hello.port)
        if not record.alive:
            return
        if self._guard.process is None and not self._core.stopping:
            self._guard.adopt(record, now_s)
            self._watch_router(record.pid)
        else:
            self._end(record, "second router")

    def _take_worker(self, record: WorkerRecord, now_s: float) -> None:
        if not record.alive:
            log.info("record.stale", instance=record.token, model=record.model_id)
            self._forget(record)
            return
        if self._core.adopt(
            record.token, record.model_id, record.pid, record.reserved_bytes, now_s
        ):
            self._watch_worker(record.token, record.pid)
        else:
            self._end(record, f"worker of {record.model_id}")
            self._forget(record)
            self._remove(self._run.worker_socket(record.token))

    def _forget(self, record: WorkerRecord) -> None:
        self._records.forget_worker(record.token)
        self._end_left(record.token, f"worker of {record.model_id}")

    def _take_router(self, record: RouterRecord, host: str, port: int, now_s: float) -> None:
        if not record.alive:
            log.info("record.stale", router=record.token)
        elif record.retiring or (record.host == host and port in (0, record.port)):
            self._guard.adopt(record, now_s)
            self._watch_router(record.pid)
        else:
            self._end(record, f"router on {record.host}:{record.port}")

    def _remove(self, path: Path) -> None:
        self._change(path, lambda: path.unlink(missing_ok=True))

    def _end(self, record: ProcessRecord, what: str) -> None:
        """End a process with SIGKILL, because it serves nobody, and wait for its end, because its
        memory and its port are needed next."""
        log.warning("process.ended_stray", what=what, stray_pid=record.pid)
        signal_group(record.pid, signal.SIGKILL)
        wait_gone([record], _END_S)


def _is_bound(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # Its backlog is full.
        except OSError:
            return False
        return True
