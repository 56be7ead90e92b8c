"""Reports when a process ends, also one that is not our child (an adopted worker).

It uses pidfd on Linux and kqueue on macOS. So it does not poll, and it can't take a later process
with the same pid for this one. A zombie counts as ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from lmx.supervisor.processes.child import signal_group

_REAP_RETRY_S: Final = 0.01
OnExit = Callable[[int | None], None]


class ExitWatch:
    """Calls back, on the event loop, once for each watched process that ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # The key is not the pid, because another process may have it before this end is seen.
        self._descriptors: set[int] = set()
        self._queue = None if sys.platform == "linux" else _ProcessQueue(loop)

    def watch(self, pid: int, child: subprocess.Popen[bytes] | None, on_exit: OnExit) -> None:
        """Watch ``pid``. ``child`` is given if this program started the process.

        ``on_exit`` gets the status as in ``Popen.returncode``, or None when it can't be known. It
        is also known for a child that was started before this process replaced its program. A
        process that has ended already is reported too.
        """

        def ended() -> None:
            self._report(pid, child, on_exit)

        if self._queue is not None:
            self._queue.add(pid, ended)
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._loop.call_soon(ended)
            return
        self._descriptors.add(descriptor)
        self._loop.add_reader(descriptor, self._pidfd_ready, descriptor, ended)

    def close(self) -> None:
        """Stop watching all processes. They go on."""
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._descriptors.clear()
        if self._queue is not None:
            self._queue.close()

    def _pidfd_ready(self, descriptor: int, ended: Callable[[], None]) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._descriptors.remove(descriptor)
        ended()

    def _report(self, pid: int, child: subprocess.Popen[bytes] | None, on_exit: OnExit) -> None:
        try:
            if child is not None and child.returncode is None:
                # Before the child is reaped no other process can have its pid, so this is the time
                # to kill what it forked.
                signal_group(pid, signal.SIGKILL)
            status = _reaped(pid) if child is None else child.poll()
        except ChildProcessError:
            on_exit(None)
            return
        if status is None:
            # kqueue may report the end just before the child can be waited for.
            self._loop.call_later(_REAP_RETRY_S, self._report, pid, child, on_exit)
            return
        on_exit(status)


def reap_children() -> None:
    """Wait for the children that have ended, so that no zombie stays. It may be called only before
    this program has started children of its own, because their owners read their status."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def _reaped(pid: int) -> int | None:
    """Return a child's status, None while it can't be waited for. Raises ``ChildProcessError`` if
    the process is not a child."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if found == 0 else os.waitstatus_to_exitcode(status)


class _ProcessQueue:
    """One kqueue for all processes. The event loop watches the kqueue itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended: dict[int, Callable[[], None]] = {}
        if sys.platform == "darwin":
            self._kqueue = select.kqueue()
            loop.add_reader(self._kqueue.fileno(), self._ready)

    def add(self, pid: int, ended: Callable[[], None]) -> None:
        if sys.platform == "darwin":
            event = select.kevent(
                pid,
                filter=select.KQ_FILTER_PROC,
                flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
                fflags=select.KQ_NOTE_EXIT,
            )
            try:
                self._kqueue.control([event], 0)
            except ProcessLookupError:
                self._loop.call_soon(ended)
                return
            self._ended[pid] = ended

    def close(self) -> None:
        if sys.platform == "darwin":
            self._loop.remove_reader(self._kqueue.fileno())
            self._kqueue.close()

    def _ready(self) -> None:
        if sys.platform == "darwin":
            for event in self._kqueue.control(None, 64, 0):
                ended = self._ended.pop(event.ident, None)
                if ended is not None:
                    ended()
