"""Keeps one router running: starts it, watches its beats, starts it again when it ends."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from lmx.protocol import control
from lmx.protocol.states import ExitCause
from lmx.supervisor import restart

log = structlog.get_logger()

_POLICY: Final = restart.RestartPolicy(
    base_s=0.1, max_s=5.0, stable_after_s=10.0, max_failures=1_000_000, window_s=60.0
)
"""A router is never given up: without it nobody is served, and it costs little to try."""


class RouterActions(Protocol):
    """What the guard has done for it."""

    def spawn_router(self, listener: socket.socket) -> int:
        """Start a router on a listening socket and return its pid. Raises ``OSError``."""

    def signal_router(self, pid: int, number: int) -> None:
        """Signal the router; nothing if it is gone."""

    def forget_router(self) -> None:
        """Remove the record of a router that has exited."""


@dataclass(slots=True)
class RouterProcess:
    """The running router. ``port`` is 0 and beats are None until it has said so."""

    pid: int
    started_s: float
    beat_at_s: float
    port: int
    adopted: bool
    streams: int = 0
    requests_total: int = 0
    memory_bytes: int = 0
    kill_at_s: float | None = None


class RouterGuard:
    """The router's state; a single writer like the core. ``beat_timeout_s`` without a beat
    means it hangs: SIGABRT (it dumps its stacks), then SIGKILL after ``abort_grace_s``."""

    def __init__(
        self,
        actions: RouterActions,
        bind: Callable[[int], socket.socket],
        beat_timeout_s: float,
        abort_grace_s: float,
    ) -> None:
        self._actions = actions
        self._bind = bind
        self._beat_timeout_s = beat_timeout_s
        self._abort_grace_s = abort_grace_s
        self._listener: socket.socket | None = None
        self._port = 0
        self._failures = restart.FailureRecord()
        self._retry_at_s: float | None = None
        self._stopping = False
        self.restarts = 0
        self.process: RouterProcess | None = None

    def start(self, now_s: float) -> None:
        """Start a router, where "any port" is configured on the port of the one before it.

        Raises ``OSError`` when the address can't be bound, or no process started.
        """
        if self._listener is None:
            self._listener = self._bind(self._port)
        pid = self._actions.spawn_router(self._listener)
        port = self._port = self._listener.getsockname()[1]
        self.process = RouterProcess(pid, now_s, now_s, port, adopted=False)
        log.info("router.spawned", router_pid=pid, port=port)

    def adopt(self, pid: int, port: int, now_s: float) -> None:
        """Take over a router that an earlier supervisor started; it has the listening socket."""
        self._port = port
        self._retry_at_s = None
        self.process = RouterProcess(pid, now_s, now_s, port, adopted=True)
        log.info("router.adopted", router_pid=pid, port=port)

    def beat(self, message: control.RouterBeat, now_s: float) -> None:
        """Take a router's beat."""
        if self.process is not None and message.pid == self.process.pid:
            self.process.beat_at_s = now_s
            self.process.streams = message.streams
            self.process.requests_total = message.requests_total
            self.process.memory_bytes = message.memory_bytes

    def exited(self, pid: int, now_s: float) -> None:
        """Take the observed end of the router, and plan the next one."""
        if self.process is None or self.process.pid != pid:
            return
        lived_s = now_s - self.process.started_s
        self.process = None
        self._actions.forget_router()
        if self._stopping:
            return
        self._failures, decision = restart.after_exit(
            self._failures, ExitCause.CRASH, wanted=True, was_ready_for_s=lived_s,
            now_s=now_s, jitter=random.random(), policy=_POLICY,
        )  # fmt: skip
        wait_s = decision.wait_s if isinstance(decision, restart.StartAgain) else _POLICY.max_s
        self.restarts += 1
        self._retry_at_s = now_s + wait_s
        log.warning("router.exited", router_pid=pid, lived_s=round(lived_s, 3), retry_in_s=wait_s)

    def tick(self, now_s: float, paused_s: float) -> None:
        """Let time pass: a silent router is ended, a planned one is started."""
        router = self.process
        if router is None:
            if self._retry_at_s is not None and now_s >= self._retry_at_s:
                self._retry_at_s = None
                self._start_again(now_s)
            return
        router.beat_at_s += paused_s
        if router.kill_at_s is not None:
            if now_s >= router.kill_at_s:
                self._actions.signal_router(router.pid, signal.SIGKILL)
                router.kill_at_s = now_s + 1.0
        elif now_s - router.beat_at_s > self._beat_timeout_s and not self._stopping:
            log.error("router.hung", router_pid=router.pid)
            self._actions.signal_router(router.pid, signal.SIGABRT)
            router.kill_at_s = now_s + self._abort_grace_s

    def stop(self, now_s: float, grace_s: float) -> None:
        """End the router: SIGTERM lets its streams finish, SIGKILL after ``grace_s``."""
        self._stopping = True
        self._retry_at_s = None
        if self.process is not None:
            number = signal.SIGTERM if grace_s > 0 else signal.SIGKILL
            self._actions.signal_router(self.process.pid, number)
            self.process.kill_at_s = now_s + grace_s

    def close(self) -> None:
        """Close the listening socket, if this process holds it."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def status(self) -> dict[str, Any]:
        """Return the router as ``lmx-supervisor status --json`` shows it."""
        router = self.process
        return {
            "state": "running" if router else "restarting",
            "pid": router.pid if router else None,
            "port": router.port if router else None,
            "adopted": router.adopted if router else False,
            "memory_bytes": router.memory_bytes if router else 0,
            "streams": router.streams if router else 0,
            "requests_total": router.requests_total if router else 0,
            "restarts": self.restarts,
        }

    def _start_again(self, now_s: float) -> None:
        try:
            self.start(now_s)
        except OSError as error:
            log.error("router.not_started", error=str(error))
            self._retry_at_s = now_s + 1.0
