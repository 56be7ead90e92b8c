"""What the core and the router's guard have done for them: processes, signals, files, sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.set_aside import clear_for_file
from lmx.protocol.states import ModelKind
from lmx.protocol.wire.endpoints import new_instance_id
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.config.sources import FolderSource, folder_path, parse_source
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.slots.demand import Asker
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.memory.inspection import Inspection, Question
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import MemoryPlan, plan_memory
from lmx.supervisor.processes.child import signal_group, start_child
from lmx.supervisor.processes.descendants import Descendants
from lmx.supervisor.processes.exit_watch import ExitWatch
from lmx.supervisor.processes.fetching import Fetching
from lmx.supervisor.processes.handover import Invocation
from lmx.supervisor.processes.inspector import Inspections
from lmx.supervisor.processes.specs import router_spec, worker_spec
from lmx.supervisor.sockets.event_log import EventLog
from lmx.supervisor.sockets.server import ControlServer
from lmx.supervisor.state.disk_retry import DiskRetry
from lmx.supervisor.state.drained import Holds
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.pins import Pins
from lmx.supervisor.state.process_records import Records, RouterRecord, WorkerRecord

log = structlog.get_logger()

_WATCH_AGAIN_S: Final = 1.0


class Processes:
    """:class:`lmx.supervisor.core.actions.Actions` and ``RouterActions``, for real.

    Ends of processes are reported to ``worker_exited(instance, status)`` and
    ``router_exited(pid, status)``, on the event loop. ``worker_left`` has what an exited worker
    held measured back.
    """

    def __init__(
        self,
        settings: Settings,
        home: Home,
        version: str,
        records: Records,
        watch: ExitWatch,
        server: ControlServer,
        fetching: Fetching,
        inspections: Inspections,
        events: EventLog,
        pins: Pins,
        holds: Holds,
        disk: DiskRetry,
        descendants: Descendants,
        measured: Measured,
        ledger: Ledger,
        worker_left: Callable[[Worker, int], None],
        admin_key: str,
        invocation: Invocation,
        worker_exited: Callable[[str, int | None], None],
        router_exited: Callable[[int, int | None], None],
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._admin_key = admin_key
        self._invocation = invocation
        self._home = home
        self._version = version
        self._records = records
        self._watch = watch
        self._server = server
        self._fetching = fetching
        self._inspections = inspections
        self._events = events
        self._pins = pins
        self._holds = holds
        self._disk = disk
        self._descendants = descendants
        self._measured = measured
        self._ledger = ledger
        self._worker_left = worker_left
        self._worker_exited = worker_exited
        self._router_exited = router_exited
        self._say = say

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        self._events.note(name, model_id, detail, **data)

    def save_pins(self, pins: Mapping[str, bool]) -> str | None:
        return self._pins.save(pins)

    def save_holds(self, held: Collection[str]) -> None:
        self._disk.change(self._holds.path, lambda: self._holds.save(held))

    def measure_back(self, worker: Worker, reserved_bytes: int) -> None:
        self._worker_left(worker, reserved_bytes)

    def wall_s(self) -> float:
        return time.time()

    def local_path(self, model: ModelConfig) -> Path | None:
        source = parse_source(model.source)
        if isinstance(source, FolderSource):
            return folder_path(source.path)
        return None

    def inspect(self, model_id: str, question: Question) -> Inspection | None:
        self._inspections.ask(model_id, question)
        return None

    def start_fetch(self, model: ModelConfig) -> None:
        self._fetching.start(model)

    def stop_fetch(self, model_id: str) -> None:
        self._fetching.stop(model_id)

    def plan_memory(self, model: ModelConfig, found: Inspection) -> MemoryPlan:
        kind, files = model.kind or found.kind, found.files
        if found.problem is not None or files is None or kind is None:
            problem = found.problem or f"{model.source} is not whole: {found.missing} is missing"
            raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, problem)
        budget_bytes = self._ledger.budget_bytes
        return plan_memory(model, kind, files, found.draft_files, budget_bytes, self._measured)

    def remember(self, plan: MemoryPlan, static_bytes: int, peak_bytes: int) -> None:
        self._measured.record(plan.settings_key, static_bytes, peak_bytes)

    def spawn(
        self, model: ModelConfig, instance: str, path: Path, kind: ModelKind, plan: MemoryPlan
    ) -> int:
        spec = worker_spec(self._settings.current, self._home, model, instance, path, kind, plan)
        output = self._log(self._home.worker_log(model.id))
        child = start_child("lmx.worker", (model.id, instance), spec, self._home, output)
        self._watch_child(instance, child)
        self._records.save_worker(WorkerRecord(child.pid, instance, model.id, plan.reserve_bytes))
        return child.pid

    def keep_reservation(self, worker: Worker, reserved_bytes: int) -> None:
        self._records.save_worker(
            WorkerRecord(worker.pid, worker.instance, worker.model_id, reserved_bytes)
        )

    def signal(self, worker: Worker, number: int) -> None:
        signal_group(worker.pid, number)

    def send(self, worker: Worker, message: Any) -> None:
        self._server.send(f"w:{worker.instance}".encode(), message)

    def forget(self, worker: Worker) -> None:
        self._records.forget_worker(worker.instance)
        self._descendants.end(worker.instance, f"worker of {worker.model_id}")
        socket_path = self._home.run.worker_socket(worker.instance)
        self._disk.change(socket_path, lambda: socket_path.unlink(missing_ok=True))

    def reply(self, asker: Asker, message: Any) -> None:
        self._server.send(asker.identity, message, asker.correlation)

    def publish(self, message: Any) -> None:
        self._server.publish(message)

    def spawn_router(self, listener: socket.socket) -> RouterRecord:
        router_id = new_instance_id()
        config = self._settings.current
        spec = router_spec(
            config, self._home, router_id, listener, self._version, self._admin_key,
            self._invocation.rescue(config.timing.beat_timeout_s, os.environ),
        )  # fmt: skip
        child = start_child(
            "lmx.router",
            (router_id,),
            spec,
            self._home,
            self._log(self._home.router_log),
            (listener.fileno(),),
        )
        self._watch_child(None, child)
        port = listener.getsockname()[1]
        return RouterRecord(child.pid, router_id, config.server.host, port)

    def _log(self, path: Path) -> Path:
        """Return where a child is to log, once nothing stands in the way there."""
        aside = clear_for_file(path)
        if aside is not None:
            self._say(f"{path} was no file: it was set aside as {aside.name}")
        return path

    def signal_router(self, pid: int, number: int) -> None:
        signal_group(pid, number)

    def save_routers(self, records: list[RouterRecord]) -> None:
        self._records.save_routers(records)

    def watch(
        self, instance: str | None, pid: int, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Have the end of a process reported; instance None is a router."""
        try:
            if instance is None:
                self._watch.watch(pid, child, lambda status: self._router_exited(pid, status))
            else:
                self._watch.watch(pid, child, lambda status: self._worker_exited(instance, status))
        except OSError as error:
            if child is not None:
                raise
            # Out of descriptors, most likely. It was adopted, and serves: its end is seen later.
            log.error("process.not_watched", watched_pid=pid, error=str(error))
            loop = asyncio.get_running_loop()
            loop.call_later(_WATCH_AGAIN_S, self.watch, instance, pid)

    def _watch_child(self, instance: str | None, child: subprocess.Popen[bytes]) -> None:
        try:
            self.watch(instance, child.pid, child)
        except OSError:
            # Out of descriptors, most likely. A process that nobody watches must not stay.
            child.kill()
            child.wait()
            raise
