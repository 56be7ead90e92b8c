"""Starts the processes of lmx, and watches for their ends."""

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.host.quarantine_file import clear_for_file
from lmx.supervisor.processes.child import start_child, start_waiting
from lmx.supervisor.processes.exit_watch import ExitWatch
from lmx.supervisor.state.home import Home

log = structlog.get_logger()

_WATCH_AGAIN_S: Final = 1.0

Exited = Callable[[int, int | None], None]
"""``exited(pid, status)`` is called on the event loop when a process has ended. ``status`` is as in
``Popen.returncode``, None if it can't be known."""


@dataclass(eq=False, repr=False)
class Launcher:
    """Starts processes so that there is never one that nobody watches. It owns no state. ``notify``
    reports to people what is not as it should be."""

    _home: Home
    _exits: ExitWatch
    _notify: Callable[[str], None]

    def start(
        self,
        module: str,
        names: tuple[str, ...],
        spec: Any,
        log_path: Path,
        exited: Exited,
        pass_fds: tuple[int, ...] = (),
    ) -> int:
        """Start a process with :func:`start_child`, and watch it. Returns its pid. Raises what
        :func:`start_child` raises."""
        try:
            aside = clear_for_file(log_path)
        except OSError as error:
            log.warning("log.not_opened", path=str(log_path), error=str(error))
        else:
            if aside is not None:
                self._notify(f"{log_path} was no file: it was set aside as {aside.name}")
        child = start_child(module, names, spec, self._home, log_path, pass_fds)
        self._watch(child, exited)
        return child.pid

    def start_waiting(
        self, module: str, names: tuple[str, ...], log_path: Path, exited: Exited
    ) -> subprocess.Popen[bytes]:
        """Start a process with :func:`lmx.supervisor.processes.child.start_waiting`, and watch it.
        Raises ``OSError``."""
        child = start_waiting(module, names, self._home, log_path)
        self._watch(child, exited)
        return child

    def _watch(self, child: subprocess.Popen[bytes], exited: Exited) -> None:
        try:
            self._exits.watch(child.pid, child, partial(exited, child.pid))
        except OSError:
            # The descriptors have run out, most likely. A process that nobody watches must not
            # stay.
            child.kill()
            child.wait()
            raise

    def watch(self, pid: int, exited: Exited) -> None:
        """Report the end of a process that an earlier supervisor started."""
        try:
            self._exits.watch(pid, None, partial(exited, pid))
        except OSError as error:
            # The descriptors have run out, most likely. The process serves all the same, and its
            # end is seen later.
            log.error("process.not_watched", watched_pid=pid, error=str(error))
            loop = asyncio.get_running_loop()
            loop.call_later(_WATCH_AGAIN_S, self.watch, pid, exited)
