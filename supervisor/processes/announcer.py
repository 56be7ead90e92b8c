"""Runs the program that announces lmx in the local network while that is configured."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import structlog

from lmx.protocol.free_text import text_of
from lmx.supervisor.config.secret_variables import without_keys
from lmx.supervisor.mdns.announce_main import Announcement

log = structlog.get_logger()

_AGAIN_S: Final = 60.0
"""A program that has ended by itself is started again after this time."""

_GOODBYE_S: Final = 3.0
"""How long it has to withdraw what it announced."""

_LOOK_S: Final = 0.5

_READ_BYTES: Final = 16 * 1024


class Announcer:
    """Follows ``wanted``, which returns what is to be announced now; None: nothing. ``notify``
    takes a problem for people, once. Nothing here waits but :meth:`close`."""

    def __init__(
        self, wanted: Callable[[], Announcement | None], notify: Callable[[str], None]
    ) -> None:
        self._wanted = wanted
        self._notify = notify
        self._process: subprocess.Popen[bytes] | None = None
        self._announcement: Announcement | None = None
        self._leaving: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._not_before_s = self._due_s = 0.0
        self._rest = b""
        self._reported: str | None = None
        self.label: str | None = None
        """Under which name lmx is announced: ``studio`` for ``studio.local``."""

    def tick(self, now_s: float) -> None:
        """Start or end the program, and take what it says."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + _LOOK_S
        wanted = self._wanted()
        if wanted != self._announcement:
            self._leave(now_s)
            self._announcement, self._not_before_s = wanted, 0.0
        self._reap(now_s)
        if self._process is not None:
            self._take(self._process, now_s)
        elif wanted is not None and now_s >= self._not_before_s and not self._leaving:
            # The one before it has withdrawn its name: else somebody would seem to have it.
            self._start(wanted, now_s)

    def close(self) -> None:
        """End the program. It withdraws what it has announced, within a moment."""
        self._leave(0.0)
        for _, process in self._leaving:
            try:
                process.wait(_GOODBYE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._leaving.clear()

    def _start(self, announcement: Announcement, now_s: float) -> None:
        self._rest = b""
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lmx.supervisor.mdns.announce_main"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=without_keys(os.environ),
            )  # fmt: skip
        except OSError as error:
            self._failed(str(error), now_s)
            return
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        with contextlib.suppress(OSError):  # It has ended already, which is seen next.
            process.stdin.write(announcement.line())
            process.stdin.flush()
        self._process = process

    def _take(self, process: subprocess.Popen[bytes], now_s: float) -> None:
        assert process.stdout is not None
        try:
            text = os.read(process.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + text).split(b"\n")
        for line in lines:
            self._say(line)
        if not text or len(self._rest) > _READ_BYTES:
            self._failed("its program has ended", now_s)

    def _say(self, line: bytes) -> None:
        try:
            said: Any = json.loads(line)
        except ValueError:
            return
        if not isinstance(said, dict):
            return
        if (problem := said.get("problem")) is not None:
            self.label = None
            self._report(text_of(str(problem)))
            return
        self.label = said.get("label")
        if self.label is not None:
            self._reported = None
            log.info("mdns.announced", name=f"{self.label}.local")

    def _report(self, problem: str) -> None:
        log.warning("mdns.not_announced", reason=problem)
        if problem != self._reported:
            self._notify(f"lmx is not announced in the network (server.advertise): {problem}")
        self._reported = problem

    def _failed(self, why: str, now_s: float) -> None:
        if self._reported is None:
            self._report(why)
        self._leave(now_s)
        self._not_before_s = now_s + _AGAIN_S

    def _leave(self, now_s: float) -> None:
        process, self._process, self.label = self._process, None, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._leaving.append((now_s + _GOODBYE_S, process))

    def _reap(self, now_s: float) -> None:
        left = [one for one in self._leaving if one[1].poll() is None]
        for until_s, process in left:
            if now_s >= until_s:
                process.kill()
        self._leaving = left
