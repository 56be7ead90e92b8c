"""Taking over from a supervisor that died: what still runs is kept, what has no place ends."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import structlog

from lmx.protocol import control
from lmx.protocol.endpoints import RunDirectory
from lmx.supervisor.child import signal_group
from lmx.supervisor.core import Core
from lmx.supervisor.records import ProcessRecord, Records, RouterRecord, WorkerRecord, create_time_s
from lmx.supervisor.router_guard import RouterGuard

log = structlog.get_logger()


class Adoption:
    """Finds processes of an earlier supervisor: by their records at the start, and by what
    they say when a record is missing (its writer died too early).

    ``watch(instance, pid)`` has a process's exit watched; instance None is the router.
    """

    def __init__(
        self,
        core: Core,
        guard: RouterGuard,
        records: Records,
        run: RunDirectory,
        watch: Callable[[str | None, int], None],
    ) -> None:
        self._core = core
        self._guard = guard
        self._records = records
        self._run = run
        self._watch = watch

    def take_over(self, host: str, port: int, now_s: float) -> None:
        """Adopt every recorded process that lives and has a place; end the others."""
        for worker in self._records.workers():
            self._take_worker(worker, now_s)
        for path in self._run.path.glob("w-*"):
            if not self._core.knows(path.name.removeprefix("w-")):
                path.unlink(missing_ok=True)
        router = self._records.router()
        if router is not None:
            self._take_router(router, host, port, now_s)

    def admits_worker(self, hello: control.WorkerHello, now_s: float) -> bool:
        """Whether a worker that says Hello is ours, or is from now on; if not, it is ended."""
        if self._core.knows(hello.instance):
            return True
        if not _is_lmx(hello.pid, "lmx.worker"):
            return False
        record = WorkerRecord(
            hello.pid, create_time_s(hello.pid), hello.instance, hello.model_id,
            hello.memory_bytes,
        )  # fmt: skip
        self._records.save_worker(record)
        self._take_worker(record, now_s)
        return self._core.knows(hello.instance)

    def admit_router(self, hello: control.RouterHello, now_s: float) -> None:
        """Keep a router that says Hello if there is none; end a second one."""
        process = self._guard.process
        if process is not None and process.pid == hello.pid:
            process.port = hello.port
        elif _is_lmx(hello.pid, "lmx.router"):
            self._end(ProcessRecord(hello.pid, create_time_s(hello.pid)), "router")

    def _take_worker(self, record: WorkerRecord, now_s: float) -> None:
        if not record.alive:
            log.info("record.stale", instance=record.instance, model=record.model_id)
            self._records.forget_worker(record.instance)
            return
        if self._core.adopt(
            record.instance, record.model_id, record.pid, record.reserved_bytes, now_s
        ):
            self._watch(record.instance, record.pid)
        else:
            self._end(record, f"worker of {record.model_id}")
            self._records.forget_worker(record.instance)

    def _take_router(self, record: RouterRecord, host: str, port: int, now_s: float) -> None:
        if not record.alive:
            self._records.forget_router()
        elif record.host == host and port in (0, record.port):
            self._guard.adopt(record.pid, record.port, now_s)
            self._watch(None, record.pid)
        else:
            self._end(record, f"router on {record.host}:{record.port}")
            self._records.forget_router()

    def _end(self, record: ProcessRecord, what: str) -> None:
        """SIGKILL: whatever this is, nobody is there to serve through it."""
        log.warning("process.ended_stray", what=what, stray_pid=record.pid)
        signal_group(record.pid, signal.SIGKILL)


def _is_lmx(pid: int, module: str) -> bool:
    """Whether a pid that somebody claims to have is an lmx process of that module."""
    try:
        return module in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
