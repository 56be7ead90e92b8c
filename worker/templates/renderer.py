"""The worker's end of its renderer: a process of its own, so that a bad chat template can't end the
worker.

A process that renders for too long or takes too much memory is killed, and only the request that it
rendered for fails. The next request gets a new process, which is ready in about a tenth of a
second.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import psutil
import structlog

from lmx.protocol.host.memory import mac_footprint
from lmx.worker.templates.render_wire import REPLY_HEAD, REQUEST_HEAD, Outcome, RenderRequest

log = structlog.get_logger()

MOST_BYTES: Final = 1 << 30
"""The most memory that rendering may take. The largest body that a router accepts, with its copies
in Python and its text, is a quarter of it."""

_FIRST_LOOK_S: Final = 0.05
"""Renderings that take no longer are never checked: only broken ones take longer."""

_LOOK_INTERVAL_S: Final = 0.02
_KILL_WAIT_S: Final = 5.0
_ALARM_GRACE_S: Final = 2.0


class TemplateRefusedError(Exception):
    """The template raised an error; its words are the message."""


class TextTooLongError(Exception):
    """The template made more text than is wanted."""

    def __init__(self, text_bytes: int) -> None:
        super().__init__(f"{text_bytes} bytes")
        self.text_bytes = text_bytes


class RenderingEndedError(Exception):
    """The template took more time or memory than it may, and its process was ended. The message
    continues a sentence that begins with "The template"."""


class Renderer:
    """Renders one template at a time, for one thread. It has at most one process, which ends with
    this process."""

    def __init__(self, timeout_s: float, most_memory_bytes: int = MOST_BYTES) -> None:
        self._timeout_s = timeout_s
        self._most_memory_bytes = most_memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process that renders; None while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process, unless it runs. Doesn't wait for it. Raises ``OSError``."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "lmx.worker.templates.render_main"),
                        str(self._most_memory_bytes),
                    ],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                )
            except BaseException:
                ours.close()
                raise
        self._socket = ours

    def render(self, source: str, variables: Mapping[str, Any], most_bytes: int) -> str:
        """Return the text that a template makes, at most ``most_bytes`` of UTF-8.

        ``variables`` are values of Python's own types. Blocks, but no longer than the time-out.
        Raises :class:`TemplateRefusedError`, also for variables that are nested too deeply,
        :class:`TextTooLongError`, :class:`RenderingEndedError`, and ``OSError`` if no process can
        be started.
        """
        request = RenderRequest(
            source, dict(variables), most_bytes, self._timeout_s + _ALARM_GRACE_S
        )
        try:
            payload = request.encode()
        except RecursionError as error:
            raise TemplateRefusedError("its values are nested too deeply") from error
        except ValueError as error:
            raise TemplateRefusedError("one of its numbers has too many digits") from error
        self.start()
        try:
            outcome, data = self._exchange(payload, time.monotonic() + self._timeout_s)
        except RenderingEndedError as error:
            log.warning("template.ended", reason=f"it {error}")
            self.close()
            raise
        except BaseException:
            # Otherwise a reply that was not read would answer the next request.
            self.close()
            raise
        match outcome:
            case Outcome.TEXT:
                return data.decode()
            case Outcome.REFUSED:
                raise TemplateRefusedError(data.decode())
            case Outcome.TOO_LONG:
                raise TextTooLongError(int(data))
            case Outcome.OUT_OF_MEMORY:
                # Its memory may be fragmented by now.
                self.close()
                log.warning("template.ended", reason="it took too much memory")
                raise self._too_large()

    def kill(self) -> None:
        """End the process, from any thread. A rendering that is under way fails."""
        process = self._process
        if process is not None:
            process.kill()

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
                log.warning("renderer.stuck", pid=process.pid)

    def _exchange(self, payload: bytes, deadline_s: float) -> tuple[Outcome, bytes]:
        assert self._socket is not None
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(REQUEST_HEAD.pack(len(payload)))
            self._socket.sendall(payload)
            self._socket.settimeout(_FIRST_LOOK_S)
            head = self._read(REPLY_HEAD.size, deadline_s)
            outcome, length = REPLY_HEAD.unpack(head)
            return Outcome(outcome), bytes(self._read(length, deadline_s))
        except TimeoutError as error:
            raise self._too_slow() from error
        except (OSError, ValueError) as error:
            raise RenderingEndedError("broke the process that renders it") from error

    def _read(self, length: int, deadline_s: float) -> bytearray:
        assert self._socket is not None
        data = bytearray(length)
        rest = memoryview(data)
        while rest.nbytes:
            try:
                count = self._socket.recv_into(rest)
            except TimeoutError:
                if time.monotonic() >= deadline_s:
                    raise
                if self._memory_bytes() > self._most_memory_bytes:
                    raise self._too_large() from None
                self._socket.settimeout(_LOOK_INTERVAL_S)
                continue
            if not count:
                raise RenderingEndedError("broke the process that renders it")
            rest = rest[count:]
        return data

    def _memory_bytes(self) -> int:
        assert self._process is not None
        if sys.platform == "darwin" and (found := mac_footprint(self._process.pid)) is not None:
            return found[0]
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0  # It has ended; the socket says so.

    def _too_slow(self) -> RenderingEndedError:
        return RenderingEndedError(
            f"had not come to an end after {self._timeout_s:g} s and was stopped"
        )

    def _too_large(self) -> RenderingEndedError:
        return RenderingEndedError(
            f"took more than {self._most_memory_bytes >> 20} MiB of memory and was stopped"
        )
