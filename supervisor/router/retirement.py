"""Routers that were replaced. Each finishes its requests, and is ended if that takes too long."""

from __future__ import annotations

import signal
from typing import Final

import structlog

from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.router.actions import RouterActions
from lmx.supervisor.router.state import Retiring, RouterProcess, retiring_signals

log = structlog.get_logger()

_KILL_AGAIN_S: Final = 1.0


class Retirement:
    """A part of the guard: the routers that retire, by pid, and the signals that they will get."""

    def __init__(self, actions: RouterActions) -> None:
        self._actions = actions
        self._retiring: dict[int, Retiring] = {}

    @property
    def routers(self) -> list[RouterProcess]:
        """The retiring routers whose end was not observed yet."""
        return [retiring.router for retiring in self._retiring.values()]

    def begin(self, router: RouterProcess, timing: TimingConfig, now_s: float) -> None:
        """Let a router finish its requests. One that is being ended already gets no new plan."""
        signals = () if router.kill_at_s is not None else retiring_signals(router, timing)
        due = tuple((now_s + after_s, number) for after_s, number in signals)
        self._retiring[router.pid] = Retiring(router, due)
        self.tick(now_s)

    def exited(self, pid: int) -> bool:
        """Take the observed end of a process, and return whether it was a retiring router."""
        if self._retiring.pop(pid, None) is None:
            return False
        log.info("router.retired", router_pid=pid)
        return True

    def stop(self) -> None:
        """Drop the planned signals, because the guard now ends all routers."""
        for retiring in self._retiring.values():
            retiring.signals = ()

    def tick(self, now_s: float) -> None:
        """Let time pass: send the signals that are due."""
        for retiring in self._retiring.values():
            due = [number for at_s, number in retiring.signals if now_s >= at_s]
            retiring.signals = retiring.signals[len(due) :]
            for number in due:
                self._actions.signal_router(retiring.router.pid, number)
                if number == signal.SIGKILL:
                    retiring.router.kill_at_s = now_s + _KILL_AGAIN_S
            if not due:
                kill_overdue(retiring.router, self._actions, now_s)


def kill_overdue(router: RouterProcess, actions: RouterActions, now_s: float) -> None:
    """Send SIGKILL to a router whose time to end is over, and again each second."""
    if router.kill_at_s is not None and now_s >= router.kill_at_s:
        actions.signal_router(router.pid, signal.SIGKILL)
        router.kill_at_s = now_s + _KILL_AGAIN_S
