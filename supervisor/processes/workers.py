"""Carries out the core's actions on real worker processes, signals, files and sockets."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.processor_wait import ProcessorWaits, observe
from lmx.protocol.messages.peers import PeerList
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.config.sources import FolderSource, folder_path, parse_source
from lmx.supervisor.core.actions import WorkerStart
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.events import Events
from lmx.supervisor.memory.inspection import Inspection, Question
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.plan import Estimate, MemoryPlan, plan_memory
from lmx.supervisor.processes.child import signal_group
from lmx.supervisor.processes.descendants import Descendants
from lmx.supervisor.processes.fetching import LoadFetches
from lmx.supervisor.processes.inspector import Inspections
from lmx.supervisor.processes.launcher import Launcher
from lmx.supervisor.processes.spare import SpareWorker
from lmx.supervisor.processes.specs import worker_spec
from lmx.supervisor.sockets.server import ControlServer
from lmx.supervisor.state.files import StateFiles
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import WorkerRecord


@dataclass(eq=False, repr=False)
class WorkerProcesses:
    """The real :class:`lmx.supervisor.core.actions.Actions`. ``exited(instance, status)`` is called
    on the event loop when a worker has ended. ``left(worker, reserved_bytes)`` starts to measure
    whether its memory comes back."""

    _settings: Settings
    _home: Home
    _launcher: Launcher
    _spare: SpareWorker
    _server: ControlServer
    _fetches: LoadFetches
    _inspections: Inspections
    _descendants: Descendants
    _files: StateFiles
    _measured: Measured
    _ledger: Ledger
    _events: Events
    _exited: Callable[[str, int | None], None]
    _left: Callable[[Worker, int], None]
    _peers: Callable[[], PeerList]
    # A worker may wait for what it has started: on a CPU mlx starts a compiler.
    _waits: ProcessorWaits = field(
        default_factory=lambda: ProcessorWaits(partial(observe, descendants=True)), init=False
    )
    # The followers of a divided model spin while they wait for a rank 0 that is stopped.
    _own_waits: ProcessorWaits = field(default_factory=ProcessorWaits, init=False)

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        self._events.note(name, model_id, detail, **data)

    def save_pins(self, pins: Mapping[str, bool]) -> str | None:
        return self._files.pins.save(pins)

    def save_holds(self, held: Collection[str]) -> None:
        self._files.disk.change(self._files.holds.path, lambda: self._files.holds.save(held))

    def measure_back(self, worker: Worker, reserved_bytes: int) -> None:
        self._left(worker, reserved_bytes)

    def wall_s(self) -> float:
        return time.time()

    def local_path(self, model: ModelConfig) -> Path | None:
        source = parse_source(model.source)
        if isinstance(source, FolderSource) and not model.hub_adapters:
            return folder_path(source.path)
        return None

    def inspect(self, model_id: str, question: Question) -> Inspection | None:
        self._inspections.ask(model_id, question)
        return None

    def start_fetch(self, model: ModelConfig) -> None:
        self._fetches.start(model)

    def stop_fetch(self, model_id: str) -> None:
        self._fetches.stop(model_id)

    def plan_memory(self, model: ModelConfig, found: Inspection) -> MemoryPlan:
        return self.estimate(model, found)[1]

    def estimate(self, model: ModelConfig, found: Inspection) -> tuple[Estimate, MemoryPlan]:
        """Return what a worker will need, also line by line. Raises :class:`LmxError`."""
        kind, files = model.kind or found.kind, found.files
        if found.problem is not None or files is None or kind is None:
            problem = found.problem or f"{model.source} is not whole: {found.missing} is missing"
            raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, problem)
        config = self._settings.current
        return plan_memory(
            model, kind, files, found.draft_files, self._ledger.budget_bytes, self._measured,
            config.memory.kv_bits, config.media.decode_limits(model.media).process_bytes,
            len(config.models),
        )  # fmt: skip

    def remember(self, plan: MemoryPlan, static_bytes: int, peak_bytes: int) -> None:
        self._measured.record(plan.settings_key, static_bytes, peak_bytes)

    def instance_for(self, model: ModelConfig) -> str:
        return self._spare.instance_for(model)

    def spawn(self, start: WorkerStart) -> int:
        instance, model_id = start.instance, start.model.id
        spec = worker_spec(self._settings.current, self._home, start, self._peers())

        def exited(_pid: int, status: int | None) -> None:
            self._exited(instance, status)

        pid = self._spare.take(spec, exited)
        if pid is None:
            path = self._home.worker_log(model_id)
            pid = self._launcher.start("lmx.worker", (model_id, instance), spec, path, exited)
        reserved_bytes = start.plan.reserve_bytes
        self._files.records.save_worker(WorkerRecord(pid, instance, model_id, reserved_bytes))
        return pid

    def keep_reservation(self, worker: Worker, reserved_bytes: int) -> None:
        self._files.records.save_worker(
            WorkerRecord(worker.pid, worker.instance, worker.model_id, reserved_bytes)
        )

    def signal(self, worker: Worker, number: int) -> None:
        signal_group(worker.pid, number)

    def waited_s(self, worker: Worker, now_s: float) -> float:
        waits = self._own_waits if worker.figures.ranks else self._waits
        return waits.more_s(worker.pid, now_s)

    def send(self, worker: Worker, message: Any) -> None:
        self._server.send(f"w:{worker.instance}".encode(), message)

    def forget(self, worker: Worker) -> None:
        self._files.records.forget_worker(worker.instance)
        self._descendants.end(worker.instance, f"worker of {worker.model_id}")
        run = self._home.run
        for path in (run.worker_socket(worker.instance), *run.ring_files(worker.instance)):
            self._files.disk.change(path, partial(path.unlink, missing_ok=True))

    def reply(self, requester: Requester, message: Any) -> None:
        self._server.send(requester.identity, message, requester.correlation)

    def publish(self, message: Any) -> None:
        self._server.publish(message)

    def watch(self, instance: str, pid: int) -> None:
        """Report the end of a worker that an earlier supervisor started."""
        self._launcher.watch(pid, lambda _pid, status: self._exited(instance, status))
