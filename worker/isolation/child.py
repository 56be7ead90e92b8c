"""A worker's end of a process that does dangerous work for it: one request, one reply, over a
socket.

A process that takes too long, or too much memory, is killed, and only the request that it worked on
fails. The next request gets a new process. A process that something else has killed is replaced at
once, and asked again: the request has no part in that.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, TypeVar

import psutil
import structlog

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.host.memory import mac_footprint
from lmx.protocol.host.processor_wait import LOOK_EVERY_S, ProcessorWait

log = structlog.get_logger()

_T = TypeVar("_T")

_FIRST_CHECK_S: Final = 0.05
"""Requests that take no longer are never checked: only broken ones take longer."""

_CHECK_INTERVAL_S: Final = 0.02
_KILL_WAIT_S: Final = 5.0

MAX_SLOWDOWN: Final = 2.0
"""On a busy machine an exchange may take this many times its time-out."""

_KILLED_FROM_OUTSIDE: Final = frozenset({-signal.SIGKILL, -signal.SIGTERM})
"""Signals that come from outside: from somebody, or from a system that is out of memory."""

_OWN_LIMITS: Final = frozenset({-signal.SIGALRM, -signal.SIGXCPU})
_EXIT_WAIT_S: Final = 5.0
"""How long a process whose socket is closed may take to be gone. It is a moment, but on a machine
that is busy or out of memory it may stand still in its end. Whether it was killed decides whether
the request is tried once more."""

_SOCKET_BYTES: Final = 1 << 20
"""How much of a reply the system holds at a time. By default macOS holds 8 KiB, which would make
thousands of small reads of a large reply."""


class ChildEndedError(Exception):
    """The process ended, or was ended, before it had replied."""

    status: int | None = None
    """How it ended by itself: its exit status, or a signal's number below 0. None: it did not."""

    @property
    def died(self) -> bool:
        """Whether a signal ended it that is not one of its own limits."""
        return self.status is not None and self.status < 0 and self.status not in _OWN_LIMITS


class ChildTimeoutError(ChildEndedError):
    """The process took too long and was ended."""


class ChildMemoryError(ChildEndedError):
    """The process took too much memory and was ended."""


class ChildProcess:
    """At most one process at a time, which runs a module of lmx and ends with this process. It is
    for one thread; only :meth:`kill` is for all."""

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...],
        max_memory_bytes: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """The module is started with ``arguments``, with a socket as its stdin and with the
        ``environment``; None: that of this process."""
        self._command = (sys.executable, "-P", "-m", module, *arguments)
        self._max_memory_bytes = max_memory_bytes
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_over = False

    @property
    def pid(self) -> int | None:
        """The process; None if it is not running."""
        return self._process.pid if self._process is not None else None

    @property
    def memory_bytes(self) -> int:
        """What the process takes now; 0 if it is not running. From any thread."""
        pid = self.pid
        return 0 if pid is None else _memory_bytes(pid)

    def start(self) -> None:
        """Start the process, unless it runs. Doesn't wait for it. Raises ``OSError``."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                for end in (ours, theirs):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=self._environment,
                )
            except BaseException:
                ours.close()
                raise
        self._socket = ours

    def ask(self, timeout_s: float, talk: Callable[[Exchange], _T]) -> _T:
        """Return what ``talk`` returns, which sends one request and reads its reply, and has
        ``timeout_s`` for that.

        If a signal ends the process that is not one of its own limits, ``talk`` is called once more
        with a new one, and has the rest of the time. Raises :class:`ChildEndedError`, ``OSError``
        if no process can be started, and INSUFFICIENT_MEMORY if the second one was killed from
        outside.
        """
        exchange = Exchange(timeout_s, self._max_memory_bytes)
        try:
            with self._connected(exchange):
                return talk(exchange)
        except ChildEndedError as error:
            if not error.died or self._is_over:
                raise
            log.warning("child.crashed", program=self._command[3], status=error.status)
        try:
            with self._connected(exchange):
                return talk(exchange)
        except ChildEndedError as error:
            if error.status not in _KILLED_FROM_OUTSIDE or self._is_over:
                raise
            log.error("child.killed", program=self._command[3], status=error.status)
            raise UnavailableError(
                ErrorCode.INSUFFICIENT_MEMORY,
                "A process that works on requests for the model was killed twice, most likely "
                "because the machine's memory ran out: try again later.",
                retry_after_s=2.0,
            ) from error

    @contextlib.contextmanager
    def _connected(self, exchange: Exchange) -> Generator[None]:
        """The process is started unless it runs, and ended if the body raises anything: otherwise a
        reply that was not read would answer the next request."""
        if self._is_over:
            raise ChildEndedError
        self.start()
        assert self._socket is not None and self._process is not None
        try:
            exchange.connect(self._socket, self._process.pid)
            yield
        except ChildEndedError as error:
            if not isinstance(error, ChildTimeoutError | ChildMemoryError):
                error.status = self._exit_status()
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """End the process for good, from any thread. A request that is under way fails."""
        self._is_over = True
        process = self._process
        if process is not None:
            process.kill()

    def _exit_status(self) -> int | None:
        """Return how the process ended; None if it has not. Its socket may be closed a moment
        before it has ended."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_EXIT_WAIT_S)
        return None

    def close(self) -> None:
        """End the process, whatever it does, and wait for its end."""
        process, self._process = self._process, None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if process is not None:
            process.kill()
            try:
                process.wait(_KILL_WAIT_S)
            except subprocess.TimeoutExpired:
                log.warning("child.stuck", pid=process.pid)


class Exchange:
    """One request and its reply, with the process that it is connected to. The methods block until
    the time is over at most, and raise :class:`ChildEndedError`.

    The time in which the process waits for a processor does not count, up to ``MAX_SLOWDOWN`` the
    time-out in all: on a busy machine the request is not to blame for it.
    """

    def __init__(self, timeout_s: float, max_memory_bytes: int) -> None:
        self._timeout_s = timeout_s
        self._max_memory_bytes = max_memory_bytes
        self._began_s = time.monotonic()
        self._waited_s = 0.0

    def connect(self, stream: socket.socket, pid: int) -> None:
        """Take a process, in place of one that has ended."""
        self._socket = stream
        self._pid = pid
        self._wait_s = _FIRST_CHECK_S
        self._checked_s = time.monotonic()
        self._next_check_s = self._checked_s + _FIRST_CHECK_S
        self._processor_wait: ProcessorWait | None = None

    @property
    def spent_s(self) -> float:
        """How much of the time is over, with all processes that it was connected to."""
        return time.monotonic() - self._began_s - self._waited_s

    def send(self, data: Any) -> None:
        """Send the bytes of an object that has a buffer."""
        rest = memoryview(data).cast("B")
        while rest.nbytes:
            self._check_if_due()
            self._socket.settimeout(self._wait_s)
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                continue
            except OSError as error:
                raise ChildEndedError from error

    def read(self, length: int) -> bytearray:
        """Return the next ``length`` bytes of the reply."""
        data = bytearray(length)
        self.read_into(memoryview(data))
        return data

    def read_into(self, rest: memoryview) -> None:
        """Fill a buffer of single bytes with the next bytes of the reply."""
        while rest.nbytes:
            self._check_if_due()
            self._socket.settimeout(self._wait_s)
            try:
                count = self._socket.recv_into(rest)
            except TimeoutError:
                continue
            except OSError as error:
                raise ChildEndedError from error
            if not count:
                raise ChildEndedError
            rest = rest[count:]

    def _check_if_due(self) -> None:
        """Check the process, which takes long, whether it is silent or sends byte after byte."""
        now = time.monotonic()
        if now < self._next_check_s:
            return
        self._wait_s = _CHECK_INTERVAL_S
        self._next_check_s = now + _CHECK_INTERVAL_S
        if self._processor_wait is None:
            self._processor_wait = ProcessorWait(self._pid)
            return
        if now - self._checked_s >= LOOK_EVERY_S or self.spent_s >= self._timeout_s:
            self._checked_s = now
            self._waited_s += self._processor_wait.more_s()
            _resume_stopped(self._pid)
        if max(self.spent_s, (now - self._began_s) / MAX_SLOWDOWN) >= self._timeout_s:
            raise ChildTimeoutError
        if _memory_bytes(self._pid) > self._max_memory_bytes:
            raise ChildMemoryError


def _resume_stopped(pid: int) -> None:
    """Resume a process that something else has stopped (SIGSTOP)."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_STOPPED:
            log.warning("child.resumed", pid=pid)
            process.resume()


def _memory_bytes(pid: int) -> int:
    found = mac_footprint(pid) if sys.platform == "darwin" else None
    if found is not None:
        return found[0]
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0  # It has ended, which its socket shows.
