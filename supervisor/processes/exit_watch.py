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
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from lmx.supervisor.processes.child import signal_group

_REAP_RETRY_S: Final = 0.01
_MOST_EVENTS: Final = 64
OnExit = Callable[[int | None], None]


class ExitWatch:
    """Calls back, on the event loop, once for each watched process that ends. With ``queue`` it
    watches as on macOS."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: ExitQueue | None = None) -> None:
        self._loop = loop
        # The key is not the pid, because another process may have it before this end is seen.
        self._descriptors: set[int] = set()
        if queue is None and sys.platform == "darwin":
            queue = _Kqueue()
        self._queue = None if queue is None else _ProcessQueue(loop, queue)

    def watch(self, pid: int, child: subprocess.Popen[bytes] | None, on_exit: OnExit) -> None:
        """Watch ``pid``. ``child`` is given if this program started the process.

        ``on_exit`` gets the status as in ``Popen.returncode``, or None when it can't be known. It
        is also known for a child that was started before this process replaced its program. A
        process that has ended already is reported too.
        """

        def ended() -> None:
            # Whatever can be read together with the end is read before: it may be last words of the
            # process, which a supervisor that stood still finds only now.
            self._loop.call_soon(self._report, pid, child, on_exit)

        if self._queue is not None:
            self._queue.add(pid, ended)
        elif sys.platform == "linux":
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._loop.call_soon(ended)
                return
            self._descriptors.add(descriptor)
            self._loop.add_reader(descriptor, self._pidfd_ready, descriptor, ended)

    def close(self) -> None:
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


class ExitQueue(Protocol):
    """As much of a kqueue as the ends of processes need. It knows one process of each pid."""

    def add(self, pid: int) -> None:
        """Report the end of this process once. Raises ``ProcessLookupError`` if it has ended."""

    def take(self) -> list[int]:
        """Return the pids of the processes that have ended. Does not wait."""

    def fileno(self) -> int:
        """Return the descriptor that can be read from when there is something to take."""

    def close(self) -> None:
        """Forget all of them."""


if sys.platform == "darwin":

    class _Kqueue:
        """An :class:`ExitQueue` of macOS."""

        def __init__(self) -> None:
            self._kqueue = select.kqueue()
            self.fileno, self.close = self._kqueue.fileno, self._kqueue.close

        def add(self, pid: int) -> None:
            event = select.kevent(
                pid,
                filter=select.KQ_FILTER_PROC,
                flags=select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
                fflags=select.KQ_NOTE_EXIT,
            )
            self._kqueue.control([event], 0)

        def take(self) -> list[int]:
            return [event.ident for event in self._kqueue.control(None, _MOST_EVENTS, 0)]


class _ProcessQueue:
    """One queue for all processes. The event loop watches the queue itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: ExitQueue) -> None:
        self._loop = loop
        self._queue = queue
        self._watched: dict[int, deque[Callable[[], None]]] = {}
        """What is called at each end, the oldest first. A second process may have the pid of a
        first one whose end was not taken yet."""
        loop.add_reader(queue.fileno(), self._ready)

    def add(self, pid: int, ended: Callable[[], None]) -> None:
        if pid in self._watched:
            self._watched[pid].append(ended)
            return
        self._watched[pid] = deque([ended])
        try:
            self._register(pid)
        except OSError:
            del self._watched[pid]  # The caller tries again.
            raise

    def close(self) -> None:
        self._loop.remove_reader(self._queue.fileno())
        self._queue.close()

    def _register(self, pid: int) -> None:
        try:
            self._queue.add(pid)
        except ProcessLookupError:
            self._loop.call_soon(self._ended, pid)

    def _ready(self) -> None:
        for pid in self._queue.take():
            self._ended(pid)

    def _ended(self, pid: int) -> None:
        watched = self._watched[pid]
        watched.popleft()()
        if watched:
            # The queue has reported the first process. Whether the next one lives is asked again.
            self._register(pid)
        else:
            del self._watched[pid]
