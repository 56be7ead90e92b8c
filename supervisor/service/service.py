"""One supervisor from its start to its end. At its start it takes over the processes that still
run, and then starts the router and the models."""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import Final

import psutil
import structlog

from lmx.protocol.errors import LmxError
from lmx.protocol.host.lasting import begin
from lmx.protocol.messages.status import SystemStatus
from lmx.supervisor.config.schema import Config, LogConfig, ServerConfig
from lmx.supervisor.control.status import (
    OwnProcess,
    supervisor_status,
    with_energy,
    with_urls,
)
from lmx.supervisor.inventory.disk import delete_unfinished
from lmx.supervisor.memory.system import read_memory
from lmx.supervisor.processes.descendants import marked
from lmx.supervisor.processes.exit_watch import reap_children
from lmx.supervisor.processes.handover import Handover, Invocation, leave, resume, unload_leaving
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.service.clock import tick_forever
from lmx.supervisor.service.launch import left_launch, taken_over
from lmx.supervisor.service.parts import Parts, wire
from lmx.supervisor.sockets import listening
from lmx.supervisor.sockets.reachable import own_addresses
from lmx.supervisor.state.home import Home, keep_out_of_backups
from lmx.supervisor.state.process_records import SupervisorLock

log = structlog.get_logger()


class Service:
    """A supervisor as the command line starts and ends it. ``logs_changed`` is called when a
    changed ``logs`` section is put into effect."""

    def __init__(
        self,
        config: Config,
        home: Home,
        version: str,
        invocation: Invocation,
        logs_changed: Callable[[LogConfig], None],
    ) -> None:
        self.home = home
        self.version = version
        self.started_s = time.time()
        self._config = config
        self._invocation = invocation
        self._logs_changed = logs_changed
        self.notices: list[str] = []
        self._lock = SupervisorLock(home.lock, self.notify)
        self._stop_asked = asyncio.Event()
        self._replace_asked = asyncio.Event()
        self._parts: Parts | None = None
        """None until the lock is held."""

        self._took_over: str | None = None
        """What the event says if an earlier supervisor has died and left processes."""

        self.serving = False

    async def run(self) -> Handover | None:
        """Serve until it is asked to stop, and return None when every process is gone.

        If it is asked to put another program in its place, it returns the handover for that program
        instead, and all processes continue. Raises :class:`OperationError` when another supervisor
        runs or the port is taken.
        """
        inherited = self._invocation.handover
        self.home.prepare()
        for folder in (self.home.models, self.home.temporary, self.home.cache):
            keep_out_of_backups(folder)
        self._lock.acquire(None if inherited is None else inherited.lock_fd)
        if inherited is not None:
            reap_children()
        successor = self._invocation.successor
        if successor is not None and not marked(self.home, successor.requester_id):
            log.info("supervisor.not_needed", requester_id=successor.requester_id)  # it was stopped
            return None
        if inherited is None:
            launch = left_launch(self.home, locked=True)
            self._took_over = None if launch is None else taken_over(launch, self._config)
        self._parts = wire(
            self._config, self.home, self.version, self._invocation, self.started_s, self,
            self._logs_changed, self.notify,
        )  # fmt: skip
        return await self._serve(self._parts)

    def notify(self, text: str) -> None:
        """Report a fault that does not keep lmx from serving: in the log, in the status, where each
        stands once, and in the events once there are any."""
        log.warning("supervisor.notice", detail=text)
        if text not in self.notices:
            self.notices.append(text)
        if self.serving and self._parts is not None:
            self._parts.events.note("supervisor.notice", None, text)

    @property
    def stop_asked(self) -> bool:
        """Whether the supervisor was asked to stop."""
        return self._stop_asked.is_set()

    def stop(self, why: str) -> None:
        """Begin to stop. Streams may finish, unless this is called a second time."""
        if self._parts is None:
            return
        if self._stop_asked.is_set():
            log.info("supervisor.stop_at_once", why=why)
            self._parts.shutdown.hurry()
        else:
            log.info("supervisor.stopping", why=why)
            self._stop_asked.set()

    def replace(self) -> None:
        """Begin to put another program in this one's place."""
        self._replace_asked.set()

    @property
    def replacing(self) -> bool:
        """Whether that has begun."""
        return self._replace_asked.is_set()

    def reload(self, why: str) -> None:
        """Read the configuration again. An event notes the result, also when the configuration is
        rejected. The program that is put in this one's place reads it by itself."""
        if self._parts is None or not self.serving or self.replacing:
            return
        now_s = time.monotonic()
        with contextlib.suppress(LmxError):
            self._parts.reloader.reload(why, now_s)
        self._parts.core.flush(now_s)

    def status(self, now_s: float) -> SystemStatus:
        """Return the status of all of lmx. It may be called only once lmx serves."""
        parts = self._parts
        assert parts is not None
        energy = parts.energy.energy(now_s)
        own = OwnProcess(
            pid=os.getpid(),
            version=self.version,
            home=str(self.home.path),
            uptime_s=time.time() - self.started_s,
            memory_bytes=psutil.Process().memory_info().rss,
            notices=tuple(self.notices),
            lent=parts.lent.status,
            energy=energy,
        )
        soft_line = parts.settings.current.memory.soft_line
        reading = parts.memory.reading or read_memory()
        return SystemStatus(
            supervisor=supervisor_status(
                parts.core, own, soft_line, parts.memory.pressure, reading
            ),
            router=with_urls(parts.guard.status(), own_addresses, parts.announcer.label),
            workers=with_energy(parts.core.status(now_s), energy),
        )

    async def _serve(self, parts: Parts) -> Handover | None:
        loop = asyncio.get_running_loop()
        stirred = asyncio.Event()
        parts.core.after_event = stirred.set
        tasks = [
            loop.create_task(parts.processes.server.serve(parts.inbox.take)),
            loop.create_task(tick_forever(parts.ticks, parts.quiet_until_s, stirred)),
        ]
        asked = [
            loop.create_task(self._stop_asked.wait()),
            loop.create_task(self._replace_asked.wait()),
        ]
        clearing = begin(delete_unfinished(self.home.models), "the removal of unfinished folders")
        try:
            await _come_up(parts, self._invocation.handover)
            self.serving = True
            parts.spare.serving = True
            parts.downloads.resume()
            self._report_ready(parts)
            done, _ = await asyncio.wait([*asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if done == {asked[1]}:
                # Only the fetches end. The next program continues them where they were.
                log.info("supervisor.replacing")
                await parts.downloads.close(resume=True)
                if not self.stop_asked:
                    return leave(parts.core, self._lock.descriptor, parts.guard.listener)
            await parts.shutdown.run(parts.settings.current.timing.shutdown_grace_s)
            await parts.processes.spare.close()
            await parts.processes.descendants.end_all()
            parts.launches.forget()
            for task in done - set(asked):
                task.result()  # a task that ended by itself is a bug: let it be seen
            return None
        finally:
            self.serving = parts.spare.serving = False
            for task in (*asked, *tasks):
                task.cancel()
            clearing.cancel()
            await parts.close()

    def _report_ready(self, parts: Parts) -> None:
        for notice in self.notices:
            parts.events.note("supervisor.notice", None, notice)
        parts.events.note(
            "supervisor.ready", None, f"lmx {self.version}", home=str(self.home.path),
            budget_bytes=parts.core.ledger.budget_bytes, models=len(parts.core.slots),
        )  # fmt: skip
        if self._invocation.successor is not None:
            because = self._invocation.successor.because
            parts.events.note("supervisor.took_over", None, because)
        elif self._took_over is not None:
            parts.events.note("supervisor.took_over", None, self._took_over)


_POLL_S: Final = 0.1
_INTRODUCTION_S: Final = 3.0
"""How long workers without a record have to send their hello. By default heartbeats and reconnects
take at most half of this."""

_ATTEMPTS: Final = int(_INTRODUCTION_S / _POLL_S)


async def _come_up(parts: Parts, handover: Handover | None) -> None:
    """Start everything, while messages are handled and ticks continue.

    Raises :class:`lmx.protocol.errors.OperationError` when the port is taken.
    """
    core, adoption, server = parts.core, parts.adoption, parts.settings.current.server
    now_s = time.monotonic()
    adoption.take_over(server.host, server.port, now_s)
    if handover is not None:
        unload_leaving(handover, core, now_s)
    # Workers whose record was never written are made known by their next heartbeat.
    for _ in range(_ATTEMPTS):
        if not adoption.unknown_instances():
            break
        await asyncio.sleep(_POLL_S)
    await _start_router(parts.guard, server)
    now_s = time.monotonic()
    if handover is None:
        core.preload(now_s)
    else:
        resume(handover, core, now_s)
    core.flush(now_s)


async def _start_router(guard: RouterGuard, server: ServerConfig) -> None:
    """Start the router. If the port is taken, this tries again for a moment: a router whose record
    was never written may hold it and will send its hello, or a router that was just ended is not
    quite gone."""
    for attempt in range(_ATTEMPTS, 0, -1):
        if guard.process is not None:
            return
        try:
            guard.start(time.monotonic())
        except OSError as error:
            if attempt == 1 or error.errno != errno.EADDRINUSE:
                by_lmx = await asyncio.to_thread(listening.lmx_answers, server)
                raise listening.cannot_listen(server, error, by_lmx=by_lmx) from error
            await asyncio.sleep(_POLL_S)
