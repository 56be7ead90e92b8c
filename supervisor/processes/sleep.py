"""Keeps a Mac from going to sleep while it works. Nothing is done on other machines."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from lmx.supervisor.config.schema import PreventSleep
from lmx.supervisor.config.settings import Settings

log = structlog.get_logger()

_CAFFEINATE: Final = "/usr/bin/caffeinate"

LINGER_S: Final = 60.0
"""A Mac stays awake for this long after its last request. An agent takes its time between two."""

_AGAIN_S: Final = 60.0
"""A program that could not be started, or has ended by itself, is started again after this time."""


_END_S: Final = 1.0


class Awake(Protocol):
    """The program that keeps the machine awake as long as it runs."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def wants_awake(prevent: PreventSleep, worked_at_s: float | None, now_s: float) -> bool:
    """Return whether the machine is to stay awake. ``worked_at_s`` is when it worked last;
    None: not yet. Pure."""
    match prevent:
        case "always":
            return True
        case "never":
            return False
        case "active":
            return worked_at_s is not None and now_s - worked_at_s < LINGER_S


class SleepPrevention:
    """Runs macOS's ``caffeinate`` while it is needed. ``works`` says whether there is work now. The
    program ends with this process in any case."""

    def __init__(
        self,
        settings: Settings,
        works: Callable[[], bool],
        start: Callable[[Sequence[str]], Awake] | None = None,
        *,
        needed: bool = sys.platform == "darwin",
    ) -> None:
        self._settings = settings
        self._works = works
        self._start = start or _start
        self._needed = needed
        self._awake: Awake | None = None
        self._worked_at_s: float | None = None
        self._not_before_s = 0.0

    def tick(self, now_s: float) -> None:
        if not self._needed:
            return
        if self._works():
            self._worked_at_s = now_s
        if self._awake is not None and self._awake.poll() is not None:
            log.warning("sleep.not_prevented", status=self._awake.poll())
            self._awake, self._not_before_s = None, now_s + _AGAIN_S
        wanted = wants_awake(self._settings.current.server.prevent_sleep, self._worked_at_s, now_s)
        if not wanted:
            self.close()
        elif self._awake is None and now_s >= self._not_before_s:
            try:
                self._awake = self._start([_CAFFEINATE, "-i", "-w", str(os.getpid())])
            except OSError as error:
                log.warning("sleep.not_prevented", reason=str(error))
                self._not_before_s = now_s + _AGAIN_S

    def close(self) -> None:
        if self._awake is not None:
            self._awake.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                # It has no handler, and ends at once. At the latest it ends with this process.
                self._awake.wait(_END_S)
            self._awake = None


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
