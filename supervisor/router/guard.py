"""Keeps one router running: starts it, watches its heartbeats, starts it again when it ends, and
replaces it by another one without losing a request."""

from __future__ import annotations

import random
import signal
import socket
from typing import Final

import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.stacks import STACKS
from lmx.protocol.messages import control
from lmx.protocol.messages.status import RouterStatus
from lmx.protocol.states import ExitCause, RouterState
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.settings import Change, Settings
from lmx.supervisor.decisions import restart
from lmx.supervisor.decisions.exit_cause import router_end
from lmx.supervisor.router.actions import RouterActions
from lmx.supervisor.router.retirement import Retirement, kill_overdue
from lmx.supervisor.router.state import RouterProcess
from lmx.supervisor.sockets import listening
from lmx.supervisor.state.process_records import RouterRecord

log = structlog.get_logger()

_POLICY: Final = restart.RestartPolicy(
    base_s=0.1, max_s=5.0, stable_after_s=10.0, max_failures=1_000_000, window_s=60.0
)
"""The supervisor never gives a router up: without it nobody is served, and a try costs little."""

_BIND_AGAIN_S: Final = 0.1

_HANG_NOTICE_S: Final = 3.0
"""How long a router that hangs has to notify its clients. One of its threads may still be alive."""


class RouterGuard:
    """The owner of the routers' state, and its single writer, like the core.

    ``process`` is the router that serves. ``successor`` was started to replace it and has not sent
    its RouterHello yet. Routers that were replaced finish their requests. A router that sends no
    heartbeat for ``timing.beat_timeout_s``, in which it did not wait for a processor, hangs: it
    gets SIGUSR2, by which it notifies its clients if it can, then SIGQUIT, by which it writes its
    stacks, and after ``timing.abort_grace_s`` SIGKILL."""

    def __init__(self, actions: RouterActions, settings: Settings) -> None:
        self._actions = actions
        self._settings = settings
        self.listener: socket.socket | None = None
        self._moved: socket.socket | None = None
        self._port = 0
        self._failures = restart.FailureRecord()
        self._retry_at_s: float | None = None
        self._stopping = False
        self.restarts = 0
        self._served = 0
        """The requests that routers which have ended had answered."""
        self.process: RouterProcess | None = None
        self.successor: RouterProcess | None = None
        self._retirement = Retirement(actions)

    def start(self, now_s: float) -> None:
        """Start a router. If "any port" is configured, it gets the port of the router before it.

        Raises ``OSError`` when the address can't be bound or the process can't be started.
        """
        self._take_moved()
        if self.listener is None:
            self.listener = listening.bind(self._settings.current.server, self._port)
        self.process = self._spawn(self.listener, now_s)
        self._port = self.process.port
        self._save()

    def replace(self, now_s: float, listener: socket.socket | None = None) -> int | None:
        """Start another router, on ``listener`` if one is given. The new router takes over when it
        sends its RouterHello, and the old one finishes its requests. If the new one ends before,
        the old one stays.

        Returns the pid of the new router. Returns None when only the old router has the listening
        socket: then it frees the address first, and the next tick binds it again. Raises
        ``OSError`` when the process can't be started; nothing has changed then.
        """
        source = listener or self._moved or self.listener
        if source is None:
            self._retry_at_s = now_s
            if self.process is not None:
                self._retire(self.process, now_s)
                self.process = None
            self._save()
            return None
        started = self._spawn(source, now_s)
        if listener is not None:
            if self._moved is not None:
                self._moved.close()
            self._moved = listener
        if self.successor is not None:
            self._retire(self.successor, now_s)
        self.successor = started
        if self.process is None:
            self._retry_at_s = None
            self._promote(now_s)
        self._save()
        return started.pid

    def reconfigured(self, change: Change, now_s: float) -> None:
        """Replace the router if a change of the configuration needs it, with another listening
        socket if the address has changed. Raises :class:`OperationError` when the address can't be
        bound or the process can't be started; nothing has changed then."""
        if not change.diff.router:
            return
        listener = self._bind_elsewhere(change) if change.diff.moved else None
        try:
            self.replace(now_s, listener)
        except OSError as error:
            if listener is not None:
                listener.close()
            message = f"can't start a new router: {error.strerror or error}"
            raise OperationError(ErrorCode.INTERNAL, message) from error

    def adopt(self, record: RouterRecord, now_s: float) -> None:
        """Take over a router that an earlier supervisor started."""
        self._port = record.port
        self._retry_at_s = None
        self.process = self._process(record, now_s, adopted=True)
        self._save()
        log.info("router.adopted", router_pid=record.pid, port=record.port)

    def adopt_retiring(self, record: RouterRecord, now_s: float) -> None:
        """Take over a router that was being replaced, or was to replace another one."""
        self._retire(self._process(record, now_s, adopted=True), now_s)
        self._save()

    def has_router(self, pid: int) -> bool:
        """Return whether this process is a router of this supervisor."""
        return any(router.pid == pid for router in self._routers())

    def hello(self, pid: int, port: int, now_s: float) -> None:
        """Take the RouterHello of a router of this supervisor."""
        takes_over = False
        if self.successor is not None and self.successor.pid == pid:
            takes_over = self.process is not None
            self._promote(now_s)
            self._save()
        if self.process is not None and self.process.pid == pid:
            # Its heartbeats are expected from now on, however long its start took.
            self.process.beat_at_s = now_s
            if not (takes_over or self.process.has_reported):
                self._note("router.started", f"it serves on port {port}", pid)
            self.process.port, self.process.has_reported = port, True

    def beat(self, message: control.RouterBeat, now_s: float) -> None:
        """Take a router's heartbeat."""
        for router in self._routers():
            if router.pid == message.pid:
                router.beat_at_s, router.has_reported = now_s, True
                router.streams, router.waiting = message.streams, message.waiting
                router.requests_total = message.requests_total
                router.memory_bytes, router.retired = message.memory_bytes, message.retired

    def exited(self, pid: int, now_s: float, status: int | None = None) -> None:
        """Take the observed end of a router, and plan the next one if it was the one that served.
        ``status`` is that of ``Popen.returncode``; None when it can't be known."""
        self._served += sum(one.requests_total for one in self._routers() if one.pid == pid)
        if self.successor is not None and self.successor.pid == pid:
            self.successor = None
            self._note("router.not_replaced", "the new router ended at its start", pid)
        elif self.process is not None and self.process.pid == pid:
            self._serving_exited(self.process, status, now_s)
        elif not self._retirement.exited(pid):
            return
        self._save()

    def tick(self, now_s: float, paused_s: float) -> None:
        """Let time pass: end a router that is silent, and start one that is planned."""
        self._retirement.tick(now_s)
        if self.successor is not None:
            self._tick_running(self.successor, now_s, paused_s)
        if self.process is not None:
            self._tick_running(self.process, now_s, paused_s)
        elif self._retry_at_s is not None and now_s >= self._retry_at_s:
            self._retry_at_s = None
            self._start_again(now_s)

    def stop(self, now_s: float, grace_s: float) -> None:
        """End every router: SIGTERM lets streams finish, SIGKILL after ``grace_s``."""
        self._stopping = True
        self._retry_at_s = None
        number = signal.SIGTERM if grace_s > 0 else signal.SIGKILL
        for router in self._routers():
            self._actions.signal_router(router.pid, number)
            router.kill_at_s = now_s + grace_s
        self._retirement.stop()

    @property
    def settled(self) -> bool:
        """Whether no router takes requests that has older settings than the next one would have."""
        retiring = self._retirement.routers
        return self.successor is None and all(router.retired for router in retiring)

    @property
    def running(self) -> bool:
        """Whether there is a router whose end was not observed yet."""
        return bool(self._routers())

    def close(self) -> None:
        """Close the listening sockets that this process holds."""
        for listener in (self.listener, self._moved):
            if listener is not None:
                listener.close()
        self.listener = self._moved = None

    def status(self) -> RouterStatus:
        """Return the router as ``lmx status`` shows it, without its URLs. While there is
        no router, the host is the one on which the next one will listen."""
        router, all_routers = self.process, self._routers()
        return RouterStatus(
            state=RouterState.RUNNING if router else RouterState.RESTARTING,
            pid=router.pid if router else None,
            host=(router.record.host if router else "") or self._settings.current.server.host,
            port=router.port if router else None,
            adopted=router.adopted if router else False,
            memory_bytes=router.memory_bytes if router else 0,
            streams=sum(router.streams for router in all_routers),
            waiting=sum(router.waiting for router in all_routers),
            requests_total=self._served + sum(router.requests_total for router in all_routers),
            restarts=self.restarts,
            retiring=len(self._retirement.routers),
        )

    @property
    def _timing(self) -> TimingConfig:
        return self._settings.current.timing

    def _bind_elsewhere(self, change: Change) -> socket.socket | None:
        """Return a socket on the new address, None if the router listens there already."""
        server = change.new.server
        port = 0 if self.process is None else self.process.port
        if server.host == change.old.server.host and server.port in (0, port):
            return None
        try:
            return listening.bind(server, port)
        except OSError as error:
            raise listening.cannot_listen(server, error) from error

    def _routers(self) -> list[RouterProcess]:
        chief = [router for router in (self.process, self.successor) if router is not None]
        return [*chief, *self._retirement.routers]

    def _spawn(self, listener: socket.socket, now_s: float) -> RouterProcess:
        record = self._actions.spawn_router(listener)
        log.info("router.spawned", router_pid=record.pid, port=record.port)
        return self._process(record, now_s, adopted=False)

    def _process(self, record: RouterRecord, now_s: float, *, adopted: bool) -> RouterProcess:
        grace_s = self._timing.shutdown_grace_s
        return RouterProcess(
            record, now_s, now_s, record.port, adopted, grace_s, has_reported=adopted
        )

    def _save(self) -> None:
        serving = [] if self.process is None else [self.process.record]
        others = [router.record for router in self._routers() if router is not self.process]
        self._actions.save_routers(
            [*serving, *(record.as_retiring() for record in others)],
        )

    def _take_moved(self) -> None:
        if self._moved is not None:
            if self.listener is not None:
                self.listener.close()
            self.listener, self._moved = self._moved, None

    def _promote(self, now_s: float) -> None:
        """Let the successor serve, and the router before it finish its requests."""
        old, self.process, self.successor = self.process, self.successor, None
        assert self.process is not None
        self._take_moved()
        self._port = self.process.port
        if old is not None:
            self._retire(old, now_s)
            self._note("router.restarted", f"it took over from {old.pid}", self.process.pid)

    def _retire(self, router: RouterProcess, now_s: float) -> None:
        self._retirement.begin(router, self._timing, now_s)

    def _serving_exited(self, router: RouterProcess, status: int | None, now_s: float) -> None:
        self.process = None
        if self._stopping:
            return
        lived_s = now_s - router.started_s
        self._failures, decision = restart.after_exit(
            self._failures, ExitCause.CRASH, wanted=True, was_ready_for_s=lived_s,
            now_s=now_s, jitter=random.random(), policy=_POLICY,
        )  # fmt: skip
        wait_s = decision.wait_s if isinstance(decision, restart.StartAgain) else _POLICY.max_s
        self.restarts += 1
        # Nobody knows when an earlier supervisor started an adopted router.
        since = "since this supervisor took it over" if router.adopted else "since its start"
        detail = f"{router_end(status)}, {lived_s:.1f} s {since}"
        self._note("router.exited", detail, router.pid)
        if self.successor is not None:
            self._promote(now_s)
        else:
            self._retry_at_s = now_s + wait_s

    def _tick_running(self, router: RouterProcess, now_s: float, paused_s: float) -> None:
        kill_overdue(router, self._actions, now_s)
        timing = self._timing
        limit_s = timing.beat_timeout_s if router.has_reported else timing.start_timeout_s
        # One that waits for a processor is slow, and does not hang.
        late = now_s - router.beat_at_s > limit_s / 4
        waited_s = self._actions.waited_s(router.pid, now_s) if late else 0.0
        router.beat_at_s += max(paused_s, waited_s)
        if router.kill_at_s is None and now_s - router.beat_at_s > limit_s and not self._stopping:
            log.error("router.unresponsive", router_pid=router.pid)
            # A router that has sent nothing yet has no clients either.
            notice_s = _HANG_NOTICE_S if router.has_reported else 0.0
            if router.has_reported:
                self._actions.signal_router(router.pid, signal.SIGUSR2)
                # A router that was stopped (SIGSTOP) reacts to no other signal.
                self._actions.signal_router(router.pid, signal.SIGCONT)
            router.stacks_at_s = now_s + notice_s
            router.kill_at_s = router.stacks_at_s + timing.abort_grace_s
        if router.stacks_at_s is not None and now_s >= router.stacks_at_s:
            router.stacks_at_s = None
            self._actions.signal_router(router.pid, STACKS)

    def _start_again(self, now_s: float) -> None:
        try:
            self.start(now_s)
        except OSError as error:
            log.error("router.not_started", error=str(error))
            # A router that retires frees the address in a moment.
            self._retry_at_s = now_s + (_BIND_AGAIN_S if self._retirement.routers else 1.0)

    def _note(self, name: str, detail: str, pid: int) -> None:
        self._actions.note(name, None, detail, router_pid=pid)
