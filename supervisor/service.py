"""A running supervisor: the core and the router's guard, wired to processes and sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.ids import new_epoch
from lmx.protocol.states import LoadPhase
from lmx.supervisor.admin_key import read_admin_key
from lmx.supervisor.adoption import Adoption
from lmx.supervisor.budget import Ledger
from lmx.supervisor.commands import Commands
from lmx.supervisor.config import Config
from lmx.supervisor.control_server import ControlServer
from lmx.supervisor.core import Core
from lmx.supervisor.exit_watch import ExitWatch
from lmx.supervisor.fetching import Fetching
from lmx.supervisor.home import Home
from lmx.supervisor.inbox import Inbox
from lmx.supervisor.processes import Processes
from lmx.supervisor.records import (
    Records,
    SupervisorLock,
)
from lmx.supervisor.router_guard import RouterGuard
from lmx.supervisor.view import worker_status

log = structlog.get_logger()

_TICK_S: Final = 0.1
_INTRODUCTION_S: Final = 3.0
"""Beats and reconnects take at most half of it, by their defaults."""

_ATTEMPTS: Final = int(_INTRODUCTION_S / _TICK_S)

_PAUSE_S: Final = 2.0
"""A tick this late means that this process was not running; deadlines are moved by it."""


class Service:
    """One supervisor from its start to its end. Carries out what core and guard decide."""

    def __init__(self, config: Config, home: Home, version: str) -> None:
        self.config = config
        self.home = home
        self.version = version
        self.started_s = time.time()
        self._lock = SupervisorLock(home.lock)
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
        watch = ExitWatch(loop)
        server = ControlServer(self.home.run)
        records = Records(self.home.state)
        self._fetching = Fetching(
            self.home.models, self.home.logs / "fetch.log", self._fetch_advanced, self._fetch_ended
        )
        processes = Processes(
            self.config, self.home, self.version, records, watch, server, self._fetching,
            read_admin_key(self.home.admin_key), self._worker_exited, self._router_exited,
        )  # fmt: skip
        self.core = Core(self.config, Ledger(self._budget_bytes()), processes, new_epoch())
        self.guard = RouterGuard(processes, self._bind, timing.beat_timeout_s, timing.abort_grace_s)
        commands = Commands(self.core, processes.reply, self.status, self.stop)
        adoption = Adoption(self.core, self.guard, records, self.home.run, processes.watch)
        inbox = Inbox(
            self.core, self.guard, commands, adoption, server.send, self.config.server.host
        )
        tasks = [loop.create_task(server.serve(inbox.take)), loop.create_task(self._tick_forever())]
        try:
            await self._come_up(adoption)
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
            watch.close()
            await server.close()

    async def _come_up(self, adoption: Adoption) -> None:
        now_s = time.monotonic()
        server = self.config.server
        adoption.take_over(server.host, server.port, now_s)
        if adoption.strangers():
            # Workers whose record was never written. Their next beat brings them in.
            await self._within(_INTRODUCTION_S, lambda: not adoption.strangers())
        await self._start_router()
        now_s = time.monotonic()
        for slot in self.core.slots.values():
            if slot.model.preload and slot.worker is None:
                self.core.want(slot, now_s)
        self.core.flush(now_s)

    async def _start_router(self) -> None:
        """Start the router. A taken port is tried for a moment: a router whose record was never
        written may hold it, and will say Hello, or one that was just ended is not quite gone."""
        server = self.config.server
        for attempt in range(_ATTEMPTS, 0, -1):
            if self.guard.process is not None:
                return
            try:
                self.guard.start(time.monotonic())
            except OSError as error:
                if attempt == 1 or error.errno != errno.EADDRINUSE:
                    raise OperationError(
                        ErrorCode.CONFIG_INVALID,
                        f"can't listen on {server.host}:{server.port}: {error.strerror}. Stop "
                        "what uses it, or choose another server.port (LMX_SERVER_PORT)",
                    ) from error
                await asyncio.sleep(_TICK_S)

    async def _within(self, limit_s: float, condition: Callable[[], bool]) -> bool:
        """Wait for what messages bring; returns whether it came in time."""
        for _ in range(int(limit_s / _TICK_S)):
            if condition():
                return True
            await asyncio.sleep(_TICK_S)
        return condition()

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
        self.core.begin_stopping()
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

    # Facts from outside.

    def _worker_exited(self, instance: str, status: int | None) -> None:
        now_s = time.monotonic()
        self.core.worker_exited(instance, status, now_s)
        self.core.flush(now_s)
        self._wake.set()

    def _router_exited(self, pid: int) -> None:
        self.guard.exited(pid, time.monotonic())
        self._wake.set()

    def _fetch_advanced(self, model_id: str, phase: LoadPhase, fraction: float | None) -> None:
        self.core.fetch_advanced(model_id, phase, fraction)

    def _fetch_ended(self, model_id: str, outcome: Path | LmxError) -> None:
        now_s = time.monotonic()
        self.core.fetch_ended(model_id, outcome, now_s)
        self.core.flush(now_s)

    def _bind(self, last_port: int) -> socket.socket:
        server = self.config.server
        family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((server.host, server.port or last_port))
            listener.listen(1024)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        return listener

    def _budget_bytes(self) -> int:
        memory = self.config.memory
        share = int(psutil.virtual_memory().total * memory.budget_fraction)
        return min(int(memory.budget_bytes), share) if memory.budget_bytes else share
