"""A running supervisor: the core and the router's guard, wired to processes and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import structlog

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.counts import ReportCounts
from lmx.protocol.states import LoadPhase
from lmx.protocol.wire.endpoints import new_epoch
from lmx.supervisor.config.schema import Config, LogConfig
from lmx.supervisor.config.settings import Change, Settings
from lmx.supervisor.config.sources import HubSource, parse_source
from lmx.supervisor.control.handlers import Handlers
from lmx.supervisor.control.inventory import AddedCommands, DiskCommands
from lmx.supervisor.control.loading import Loading
from lmx.supervisor.control.models import ModelCommands
from lmx.supervisor.control.reload import Reloader, tell_routing_gaps
from lmx.supervisor.control.service import (
    ServiceCommands,
    memory_status,
    supervisor_status,
    with_urls,
)
from lmx.supervisor.core.core import Core
from lmx.supervisor.decisions.ledger import Ledger, budget_bytes
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.inventory.added import AddedModels, with_added
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.inventory.deletion import Deletion
from lmx.supervisor.inventory.download_records import Download, DownloadFile
from lmx.supervisor.inventory.downloaded import serve_download
from lmx.supervisor.inventory.downloads import Downloads
from lmx.supervisor.memory.inspection import Inspection
from lmx.supervisor.memory.measured import Measured
from lmx.supervisor.memory.system import read_memory
from lmx.supervisor.memory.watch import MemoryWatch
from lmx.supervisor.processes.descendants import Descendants, marked
from lmx.supervisor.processes.exit_watch import ExitWatch, reap_children
from lmx.supervisor.processes.fetching import Fetching, FetchProgram
from lmx.supervisor.processes.handover import Handover, Invocation, leave
from lmx.supervisor.processes.inspector import Inspections, Inspector
from lmx.supervisor.processes.processes import Processes
from lmx.supervisor.router.counts import RouterCounts
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.service.adoption import Adoption
from lmx.supervisor.service.clock import Tick, tick_forever
from lmx.supervisor.service.inbox import Inbox
from lmx.supervisor.service.shutdown import Shutdown
from lmx.supervisor.service.startup import come_up
from lmx.supervisor.sockets import listening
from lmx.supervisor.sockets.event_log import EventLog
from lmx.supervisor.sockets.reachable import own_addresses
from lmx.supervisor.sockets.server import ControlServer
from lmx.supervisor.state.admin_key import read_admin_key
from lmx.supervisor.state.disk_retry import DiskRetry
from lmx.supervisor.state.drained import Holds
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.pins import Pins
from lmx.supervisor.state.process_records import Records, SupervisorLock

log = structlog.get_logger()


class Service:
    """One supervisor from its start to its end. Carries out what core and guard decide.
    ``logs_changed`` is called with another ``logs`` section that is put in force."""

    def __init__(
        self,
        config: Config,
        home: Home,
        version: str,
        invocation: Invocation,
        logs_changed: Callable[[LogConfig], None],
    ) -> None:
        self._config = config
        self.home = home
        self.version = version
        self.started_s = time.time()
        self._invocation = invocation
        self._logs_changed = logs_changed
        self.notices: list[str] = []
        self._lock = SupervisorLock(home.lock, self.say)
        self._stop_asked: asyncio.Event | None = None
        self._replace_asked = asyncio.Event()
        self._came: set[asyncio.Task[None]] = set()
        self.serving = False

    async def run(self) -> Handover | None:
        """Serve until asked to stop; returns None when every process is gone. Asked to put
        another program in its place, it returns what that one goes on with, all else as it is.

        Raises :class:`OperationError` when another supervisor runs or the port is taken.
        """
        inherited = self._invocation.handover
        self.home.prepare()
        self._lock.acquire(None if inherited is None else inherited.lock_fd)
        if inherited is not None:
            reap_children()
        successor = self._invocation.successor
        if successor is not None and not marked(self.home, successor.asker_id):
            log.info("supervisor.not_needed", asker_id=successor.asker_id)  # it was stopped
            return None
        return await self._run()

    def say(self, text: str) -> None:
        """Have the log, the status and, once there are any, the events tell what is not as it
        should be, and keeps nobody from serving."""
        log.warning("supervisor.notice", detail=text)
        self.notices.append(text)
        if self.serving:
            self._events.note("supervisor.notice", None, text)

    @property
    def stop_asked(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop_asked is not None and self._stop_asked.is_set()

    def stop(self, why: str) -> None:
        """Begin to stop: streams may finish. Asked again: at once."""
        if self._stop_asked is None:
            return
        if self._stop_asked.is_set():
            log.warning("supervisor.stop_at_once", why=why)
            self._shutdown.hurry()
        else:
            log.info("supervisor.stopping", why=why)
            self._stop_asked.set()

    def replace(self) -> None:
        """Begin to put another program in this one's place."""
        self._replace_asked.set()

    def reload(self, why: str) -> None:
        """Read the configuration again. What comes of it is noted, also when it is rejected."""
        if not self.serving:
            return
        now_s = time.monotonic()
        with contextlib.suppress(LmxError):
            self._reloader.reload(why, now_s)
        self.core.flush(now_s)

    async def _run(self) -> Handover | None:
        loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        self._wire(loop)
        ticks: dict[str, Tick] = {
            "memory": lambda now_s, _paused_s: self._memory.tick(now_s),
            "core": self.core.tick,
            "router": self.guard.tick,
            "disk": self._disk.tick,
            "snapshot": lambda now_s, _paused_s: self.core.flush(now_s),
        }
        tasks = [
            loop.create_task(self._server.serve(self._inbox.take)),
            loop.create_task(tick_forever(ticks)),
        ]
        asked = [
            loop.create_task(self._stop_asked.wait()),
            loop.create_task(self._replace_asked.wait()),
        ]
        try:
            await come_up(
                self.core, self.guard, self._adoption, self._settings.current.server,
                self._invocation.handover,
            )  # fmt: skip
            self.serving = True
            self._downloads.resume()
            for notice in self.notices:
                self._events.note("supervisor.notice", None, notice)
            self._events.note(
                "supervisor.ready", None, f"lmx {self.version}", home=str(self.home.path),
                budget_bytes=self.core.ledger.budget_bytes, models=len(self.core.slots),
            )  # fmt: skip
            if self._invocation.successor is not None:
                because = self._invocation.successor.because
                self._events.note("supervisor.took_over", None, because)
            done, _ = await asyncio.wait([*asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if done == {asked[1]}:
                return await self._hand_over()
            await self._shutdown.run(self._settings.current.timing.shutdown_grace_s)
            await self._descendants.end_all()
            for task in done - set(asked):
                task.result()  # a task that ended by itself is a bug: let it be heard
            return None
        finally:
            self.serving = False
            for task in (*asked, *tasks):
                task.cancel()
            self._handlers.close()
            self._inspections.close()
            self.guard.close()
            self._watch.close()
            await self._inspector.wait_closed()
            await self._server.close()

    def _wire(self, loop: asyncio.AbstractEventLoop) -> None:
        epoch = new_epoch()
        self._watch = ExitWatch(loop)
        self._server = ControlServer(self.home.run)
        self._events = EventLog(epoch)
        self._disk = DiskRetry(self._events.note)
        self._descendants = Descendants(self.home)
        records = Records(self.home.state, self._disk.change, self.say)
        program = FetchProgram.of(self.home)
        self._fetching = Fetching(program, self._fetch_advanced, self._fetch_ended)
        self._inspector = Inspector(self.home)
        self._inspections = Inspections(self._inspector, self._inspected)
        added_file = AddedFile(self.home.added_models, self.say)
        added_models = added_file.load()
        settings = self._settings = Settings(with_added(self._config, added_models))
        pins, holds = Pins(self.home.pins, self.say), Holds(self.home.holds, self.say)
        ledger = Ledger(_budget_bytes(settings.current))
        self._processes = Processes(
            settings, self.home, self.version, records, self._watch, self._server,
            self._fetching, self._inspections, self._events, pins, holds, self._disk,
            self._descendants, Measured.load(self.home.measured, self.say), ledger,
            self._worker_left, read_admin_key(self.home.admin_key, self.say),
            self._invocation, self._worker_exited, self._router_exited, self.say,
        )  # fmt: skip
        inspect = self._inspector.inspect_soon
        self.core = Core(settings, ledger, self._processes, epoch, pins.load(), holds.load())
        added = AddedModels(added_file, added_models, self.core, settings, inspect, time.monotonic)
        added.tell_shadowed(self._config, self._events.note)
        tell_routing_gaps(settings.current, self._events.note)
        loading = Loading(self.core, added, inspect, time.monotonic)
        self._memory = MemoryWatch(self.core, settings, self._processes.send, self._events.note)
        self.guard = RouterGuard(self._processes, settings)
        # Only the router can refuse a change, and the core places models by the new budget.
        settings.on_change(
            self.guard.reconfigured, self._set_budget, self.core.reconfigured, self._follow_logs
        )
        self._counts = RouterCounts(self.started_s, self.guard.knows)
        self._downloads = Downloads(
            DownloadFile(self.home.downloads, self.say), program,
            lambda download, path: self._download_came(added, download, path),
            self._download_is_whole, self._events.note,
        )  # fmt: skip
        deletion = Deletion(self.core, added, self._downloads, self.home, self._events.note)
        self._shutdown = Shutdown(self.core, self.guard, self._close_fetches)
        handed = self._invocation.handover
        if handed is not None:
            self.guard.listener = listening.inherited(handed.listen_fd, settings.current.server)
        self._reloader = Reloader(
            self._invocation.read_config, added, self.core, settings, self._events.note
        )
        self._handlers = Handlers(self._processes.reply)
        self._handlers.add(ModelCommands(self.core, loading).handlers)
        self._handlers.add(AddedCommands(added).handlers)
        self._handlers.add(DiskCommands(self._downloads, deletion).handlers)
        self._handlers.add({ReportCounts: self._counts.take_report})
        self._handlers.add(
            ServiceCommands(
                self, self.core, self.guard, self._events, self._reloader, self._invocation
            ).handlers
        )
        self._adoption = Adoption(
            self.core, self.guard, records, self.home.run, self._processes.watch,
            self._disk.change, self._descendants.end,
        )  # fmt: skip
        self._inbox = Inbox(
            self.core, self.guard, self._handlers, self._adoption, self._server.send, settings
        )

    async def _hand_over(self) -> Handover:
        """End nothing but the fetches, which go on where they were."""
        log.info("supervisor.replacing")
        await self._close_fetches(goes_on=True)
        return leave(self.core, self._lock.descriptor, self.guard.listener)

    async def _close_fetches(self, *, goes_on: bool = False) -> None:
        await asyncio.gather(self._fetching.close(), self._downloads.close(goes_on=goes_on))

    def status(self, now_s: float) -> dict[str, Any]:
        """Return all that ``lmx-supervisor status --json`` shows."""
        return {
            "supervisor": {
                **supervisor_status(self.core, self._settings.current.memory),
                **memory_status(self._memory.pressure, self._memory.reading or read_memory()),
                "pid": os.getpid(),
                "version": self.version,
                "uptime_s": round(time.time() - self.started_s, 3),
                "memory_bytes": psutil.Process().memory_info().rss,
                "home": str(self.home.path),
                "notices": list(self.notices),
            },
            "router": with_urls(
                self.guard.status(), self._settings.current.server.host, own_addresses
            ),
            "workers": self.core.status(now_s),
        }

    def _set_budget(self, change: Change, _now_s: float) -> None:
        if change.new.memory != change.old.memory:
            self.core.ledger.budget_bytes = _budget_bytes(change.new)

    def _follow_logs(self, change: Change, _now_s: float) -> None:
        if change.new.logs != change.old.logs:
            self._logs_changed(change.new.logs)

    # Facts from outside.

    def _worker_exited(self, instance: str, status: int | None) -> None:
        now_s = time.monotonic()
        by_system = self._memory.killed_by_system(status, now_s)
        self.core.worker_exited(instance, status, now_s, out_of_memory=by_system)
        self.core.flush(now_s)
        self._shutdown.exited()

    def _worker_left(self, worker: Worker, reserved_bytes: int) -> None:
        self._memory.left(worker, reserved_bytes, time.monotonic())

    def _router_exited(self, pid: int, status: int | None) -> None:
        self.guard.exited(pid, time.monotonic(), status)
        self._counts.router_ended(pid)
        self._shutdown.exited()

    def _fetch_advanced(self, model_id: str, phase: LoadPhase, fraction: float | None) -> None:
        self.core.fetch_advanced(model_id, phase, fraction)

    async def _download_came(
        self, added: AddedModels, download: Download, path: Path
    ) -> str | None:
        model_id = await serve_download(added, download, path)
        if model_id is not None:
            self.core.files_changed(model_id)
        self.core.flush(time.monotonic())
        return model_id

    async def _download_is_whole(self, download: Download) -> bool:
        if download.path is None:
            return False
        file = download.filename is not None
        return await self._inspector.is_whole(Path(download.path), file=file)

    def _inspected(self, model_id: str, found: Inspection) -> None:
        now_s = time.monotonic()
        self.core.inspected(model_id, found, now_s)
        self.core.flush(now_s)

    def _fetch_ended(self, model_id: str, outcome: Path | LmxError) -> None:
        now_s = time.monotonic()
        slot = self.core.slots.get(model_id)
        source = None if slot is None else parse_source(slot.model.source)
        if isinstance(outcome, Path) and isinstance(source, HubSource):
            came = self._downloads.completed_elsewhere(source.repo_id, source.revision, outcome)
            task = asyncio.get_running_loop().create_task(came)
            self._came.add(task)
            task.add_done_callback(self._came.discard)
        self.core.fetch_ended(model_id, outcome, now_s)
        self.core.flush(now_s)


def _budget_bytes(config: Config) -> int:
    return budget_bytes(config.memory, read_memory().total_bytes)
