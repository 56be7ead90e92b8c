"""Finds and ends the processes that a worker started and left behind, also those in sessions of
their own.

Each process that lmx starts has its id and its home in its environment, and its descendants inherit
both. This mark outlives the parents, is unmistakable, and needs no help of the system. A descendant
that was started with an empty environment can only be found by its process group.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil
import structlog

from lmx.protocol.host.lasting import begin
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import holds_within, is_running

log = structlog.get_logger()

_ID: Final = "LMX_PROCESS"
_HOME: Final = "LMX_HOME"
_LOOKS: Final = 5
"""How often to look. A process that is forked during one look is found by the next."""

_GONE_S: Final = 2.0


def mark(home: Home, process_id: str) -> dict[str, str]:
    """Return the variables that mark a process of lmx in its environment."""
    return {_ID: process_id, _HOME: str(home.path)}


def unmarked(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the id, for a process that shall be nobody's descendant."""
    return {name: value for name, value in environment.items() if name != _ID}


def own_mark(environment: Mapping[str, str]) -> str | None:
    """Return the id of the process of lmx from which this process descends."""
    return environment.get(_ID)


def marked(home: Home, process_id: str | None = None) -> list[psutil.Process]:
    """Return the living processes of lmx in a home; with ``process_id`` only that process and its
    descendants. This looks at every process of the user, so it is for a thread or for the command
    line."""
    # With symbolic links one home can have several names.
    real = os.path.realpath(home.path)
    return [
        process
        for process, environment in _environments()
        if environment.get(_ID) is not None
        and process_id in (None, environment[_ID])
        and _HOME in environment
        and os.path.realpath(environment[_HOME]) == real
    ]


def of_same_home(process: psutil.Process) -> list[psutil.Process]:
    """Return the living processes of lmx in the home of one of them; none if this is no process of
    lmx, or another user's. Takes as long as :func:`marked`."""
    try:
        environment = process.environ()
    except (psutil.Error, OSError):
        return []
    home = environment.get(_HOME)
    return [] if home is None or _ID not in environment else marked(Home(Path(home)))


def end_marked(home: Home, process_id: str | None = None) -> list[int]:
    """Send SIGKILL to the processes that :func:`marked` finds, and wait for their ends. Returns the
    pids of those that ended."""
    killed: dict[int, psutil.Process] = {}
    for _ in range(_LOOKS):
        found = marked(home, process_id)
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed.update((process.pid, process) for process in found)
        _wait_gone(found)
    return [pid for pid, process in killed.items() if not is_running(process)]


class Descendants:
    """Ends what workers left behind, in threads. Only the event loop may call it."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._tasks: set[asyncio.Task[None]] = set()

    def end(self, instance: str, what: str) -> None:
        """End the descendants of a process that is gone."""
        task = begin(self._end(instance, what), f"the end of what a {what} left")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end_all(self) -> None:
        """End all processes that are left of this home, and return when there are none."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end(None, "lmx")

    async def _end(self, instance: str | None, what: str) -> None:
        try:
            pids = await asyncio.to_thread(end_marked, self._home, instance)
        except (psutil.Error, OSError) as error:
            log.error("descendants.not_found", of=what, error=str(error))
            return
        if pids:
            log.warning("descendants.ended", of=what, pids=sorted(set(pids)))


def _wait_gone(processes: list[psutil.Process]) -> None:
    holds_within(_GONE_S, lambda: not any(map(is_running, processes)))


def _environments() -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                yield process, process.environ()
        except (psutil.Error, OSError):
            continue  # it has ended, or is another user's
