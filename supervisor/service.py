"""A running supervisor: the core and the router's guard, wired to processes and sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.ids import new_epoch
from lmx.protocol.states import LoadPhase
from lmx.supervisor.adoption import Adoption
from lmx.supervisor.budget import Ledger
from lmx.supervisor.child import signal_group, start_child
from lmx.supervisor.commands import Commands
from lmx.supervisor.config import Config, ModelConfig
from lmx.supervisor.control_server import ControlServer
from lmx.supervisor.core import Core
from lmx.supervisor.estimate import estimate
from lmx.supervisor.exit_watch import ExitWatch
from lmx.supervisor.fetching import Fetching
from lmx.supervisor.home import Home
from lmx.supervisor.inbox import Inbox
from lmx.supervisor.records import (
    Records,
    RouterRecord,
    SupervisorLock,
    WorkerRecord,
    create_time_s,
)
from lmx.supervisor.router_guard import RouterGuard
from lmx.supervisor.slots import Asker
from lmx.supervisor.sources import FolderSource, parse_source
from lmx.supervisor.specs import router_spec, worker_spec
from lmx.supervisor.view import worker_status
from lmx.supervisor.worker_state import Worker

log = structlog.get_logger()

_TICK_S: Final = 0.1
_PAUSE_S: Final = 2.0
"""A tick this late means that this process was not running; deadlines are moved by it."""


class Service:
    """One supervisor from its start to its end. Carries out what core and guard decide."""

    def __init__(self, config: Config, home: Home, version: str) -> None:
        self.config = config
        self.home = home
        self.version = version
        self.started_s = time.time()
        self._lock = SupervisorLock(home.run.path)
        self._records = Records(home.state)
        self._stop_asked: asyncio.Event | None = None
        self._wake = asyncio.Event()
        self._stop_at_once = False
        self.serving = False

    async def run(self) -> None:
        """Serve until asked to stop; returns when every process is gone.

        Raises :class:`OperationError` when another supervisor runs or the port is taken.
        """
        self.home.prepare()
        self._lock.acquire()
        await self._run()

    def stop(self, why: str) -> None:
        """Begin to stop: streams may finish. Asked again: at once."""
        if self._stop_asked is None:
            return
        if self._stop_asked.is_set():
            log.warning("supervisor.stop_at_once", why=why)
            self._stop_at_once = True
            self._wake.set()
        else:
            log.info("supervisor.stopping", why=why)
            self._stop_asked.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        timing = self.config.timing
        self._watch = ExitWatch(loop)
        self.core = Core(self.config, Ledger(self._budget_bytes()), self, new_epoch())
        self.guard = RouterGuard(self, self._bind, timing.beat_timeout_s, timing.abort_grace_s)
        self._fetching = Fetching(
            self.home.models, self.home.logs / "fetch.log", self._fetch_advanced, self._fetch_ended
        )
        commands = Commands(self.core, self.reply, self.status, self.stop)
        adoption = Adoption(
            self.core, self.guard, self._records, self.home.run, self._watch_adopted
        )
        inbox = Inbox(self.core, self.guard, commands, adoption, self._send)
        self._server = ControlServer(self.home.run, inbox.take)
        tasks = [loop.create_task(self._server.serve()), loop.create_task(self._tick_forever())]
        try:
            self._come_up(adoption)
            self.serving = True
            log.info(
                "supervisor.ready", version=self.version, home=str(self.home.path),
                budget_bytes=self.core.ledger.budget_bytes, models=len(self.core.slots),
            )  # fmt: skip
            stopped = loop.create_task(self._stop_asked.wait())
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            await self._go_down()
            for task in done - {stopped}:
                task.result()  # a task that ended by itself is a bug: let it be heard
        finally:
            self.serving = False
            for task in tasks:
                task.cancel()
            self.guard.close()
            self._watch.close()
            await self._server.close()

    def _come_up(self, adoption: Adoption) -> None:
        now_s = time.monotonic()
        adoption.take_over(self.config.server.host, self.config.server.port, now_s)
        if self.guard.process is None:
            try:
                self.guard.start(now_s)
            except OSError as error:
                server = self.config.server
                raise OperationError(
                    ErrorCode.CONFIG_INVALID,
                    f"can't listen on {server.host}:{server.port}: {error.strerror}. Stop what "
                    "uses it, or choose another server.port (LMX_SERVER_PORT)",
                ) from error
        for slot in self.core.slots.values():
            if slot.model.preload and slot.worker is None:
                self.core.want(slot, now_s)
        self.core.flush(now_s)

    async def _tick_forever(self) -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            late_s = now_s - last_s - _TICK_S
            last_s = now_s
            paused_s = late_s if late_s > _PAUSE_S else 0.0
            self.core.tick(now_s, paused_s)
            self.guard.tick(now_s, paused_s)
            self.core.flush(now_s)

    async def _go_down(self) -> None:
        """Router first, so that streams can finish; workers after it; then nothing is left."""
        grace_s = self.config.timing.shutdown_grace_s
        self.core.stopping = True
        self.core.flush(time.monotonic())
        # The router ends its streams itself within its grace; the rest is for its exit.
        self.guard.stop(time.monotonic(), grace_s + 2.0)
        await self._until(lambda: self.guard.process is None or self._stop_at_once)
        self.core.stop_workers(time.monotonic(), at_once=self._stop_at_once)
        if self._stop_at_once:
            self.guard.stop(time.monotonic(), 0.0)
        await self._fetching.close()
        hurried = self._stop_at_once
        await self._until(lambda: not self._processes_left() or self._stop_at_once != hurried)
        if self._processes_left():
            self.core.stop_workers(time.monotonic(), at_once=True)
            await self._until(lambda: not self._processes_left())
        log.info("supervisor.stopped")

    def _processes_left(self) -> bool:
        return bool(self.core.workers) or self.guard.process is not None

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that follows from an exit or from being asked to hurry. The
        deadlines are the ticks': they end in SIGKILL."""
        while not condition():
            self._wake.clear()
            await self._wake.wait()

    def status(self, now_s: float) -> dict[str, Any]:
        """Return all that ``lmx-supervisor status --json`` shows."""
        router = self.guard.status()
        router["host"] = self.config.server.host
        if router["port"]:
            host = self.config.server.host
            router["url"] = f"http://{f'[{host}]' if ':' in host else host}:{router['port']}/v1"
        return {
            "supervisor": {
                "state": "stopping" if self.core.stopping else "running",
                "pid": os.getpid(),
                "version": self.version,
                "epoch": self.core.epoch,
                "uptime_s": round(time.time() - self.started_s, 3),
                "memory_bytes": psutil.Process().memory_info().rss,
                "budget_bytes": self.core.ledger.budget_bytes,
                "reserved_bytes": self.core.ledger.reserved_bytes,
                "home": str(self.home.path),
            },
            "router": router,
            "workers": [worker_status(slot, now_s) for slot in self.core.slots.values()],
        }

    # What core and guard have done for them.

    def wall_s(self) -> float:
        return time.time()

    def local_path(self, model: ModelConfig) -> Path | None:
        source = parse_source(model.source)
        if isinstance(source, FolderSource):
            return Path(os.path.abspath(Path(source.path).expanduser()))  # noqa: PTH100
        return None

    def start_fetch(self, model: ModelConfig) -> None:
        self._fetching.start(model)

    def stop_fetch(self, model_id: str) -> None:
        self._fetching.stop(model_id)

    def estimate_bytes(self, model: ModelConfig, path: Path) -> int:
        if model.memory_bytes is not None:
            return int(model.memory_bytes)
        return estimate(path, model.context_length).total_bytes

    def spawn(self, model: ModelConfig, instance: str, path: Path, reserved_bytes: int) -> int:
        spec = worker_spec(self.config, self.home, model, instance, path, reserved_bytes)
        child = start_child(
            "lmx.worker", (model.id, instance), spec, self.home, self.home.worker_log(model.id)
        )
        created_s = create_time_s(child.pid)
        self._records.save_worker(
            WorkerRecord(child.pid, created_s, instance, model.id, reserved_bytes)
        )
        self._watch_worker(instance, child.pid, child)
        return child.pid

    def signal(self, worker: Worker, number: int) -> None:
        signal_group(worker.pid, number)
        if number == signal.SIGABRT:
            # A process that was stopped (SIGSTOP) acts on a signal only once it goes on.
            signal_group(worker.pid, signal.SIGCONT)

    def send(self, worker: Worker, message: Any) -> None:
        self._server.send(f"w:{worker.instance}".encode(), message)

    def forget(self, worker: Worker) -> None:
        self._records.forget_worker(worker.instance)
        self.home.run.worker_socket(worker.instance).unlink(missing_ok=True)

    def reply(self, asker: Asker, message: Any) -> None:
        self._server.send(asker.identity, message, asker.correlation)

    def publish(self, message: Any) -> None:
        self._server.publish(message)

    def spawn_router(self, listener: socket.socket) -> int:
        spec = router_spec(self.config, self.home, listener, self.version)
        child = start_child(
            "lmx.router", (), spec, self.home, self.home.router_log, (listener.fileno(),)
        )
        port = listener.getsockname()[1]
        self._records.save_router(
            RouterRecord(child.pid, create_time_s(child.pid), self.config.server.host, port)
        )
        self._watch_router(child.pid, child)
        return child.pid

    def signal_router(self, pid: int, number: int) -> None:
        signal_group(pid, number)
        if number == signal.SIGABRT:
            signal_group(pid, signal.SIGCONT)

    def forget_router(self) -> None:
        self._records.forget_router()

    # Facts from outside.

    def _send(self, identity: bytes, message: Any) -> None:
        self._server.send(identity, message)

    def _watch_adopted(self, instance: str | None, pid: int) -> None:
        if instance is None:
            self._watch_router(pid, None)
        else:
            self._watch_worker(instance, pid, None)

    def _watch_worker(self, instance: str, pid: int, child: subprocess.Popen[bytes] | None) -> None:
        def ended(status: int | None) -> None:
            now_s = time.monotonic()
            self.core.worker_exited(instance, status, now_s)
            self.core.flush(now_s)
            self._wake.set()

        self._watch.watch(pid, child, ended)

    def _watch_router(self, pid: int, child: subprocess.Popen[bytes] | None) -> None:
        def ended(_status: int | None) -> None:
            self.guard.exited(pid, time.monotonic())
            self._wake.set()

        self._watch.watch(pid, child, ended)

    def _fetch_advanced(self, model_id: str, phase: LoadPhase, fraction: float | None) -> None:
        self.core.fetch_advanced(model_id, phase, fraction)

    def _fetch_ended(self, model_id: str, outcome: Path | LmxError) -> None:
        now_s = time.monotonic()
        self.core.fetch_ended(model_id, outcome, now_s)
        self.core.flush(now_s)

    def _bind(self) -> socket.socket:
        server = self.config.server
        family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
        # An adopted router's port is taken up again, also where the configuration says "any".
        port = server.port or self._last_port
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((server.host, port))
            listener.listen(1024)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._last_port = listener.getsockname()[1]
        return listener

    _last_port = 0

    def _budget_bytes(self) -> int:
        memory = self.config.memory
        share = int(psutil.virtual_memory().total * memory.budget_fraction)
        return min(int(memory.budget_bytes), share) if memory.budget_bytes else share
