"""The power of a Mac's chip, as the program macmon prints it: a line of JSON each second."""

import contextlib
import json
import os
import subprocess
from datetime import datetime
from typing import Any, Final

import structlog

log = structlog.get_logger()

_LINGER_S: Final = 60.0
"""It runs for this long after it was wanted last: an agent takes its time between two requests."""

_AGAIN_S: Final = 60.0
"""One that could not be started, has ended by itself or has hung is started again after this
time."""

_SILENT_S: Final = 15.0
"""One that prints nothing for this long hangs."""

_END_S: Final = 0.2
"""How long its end is waited for. One that takes longer is reaped with the next program."""

_LONGEST_S: Final = 5.0
"""Lines that are farther apart than this say nothing about the time between them."""

_LINE_BYTES: Final = 64 * 1024
_INTERVAL_MS: Final = 1000
_POWERS: Final = ("cpu_power", "gpu_power", "ane_power", "ram_power")
"""In watts. `sys_power` would be all of the Mac, its display included, where the Mac says it."""


class Macmon:
    """Runs macmon while it is wanted, and adds up what it prints. Nothing here waits for it."""

    name = "macmon"

    def __init__(self, program: str) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted_at_s: float | None = None
        self._not_before_s = 0.0
        self._heard_at_s = 0.0
        self._rest = b""
        self._printed_at_s: float | None = None
        self._counted_s = self._joules = 0.0

    def read(self, now_s: float, *, wanted: bool) -> tuple[float, float] | None:
        """See :class:`lmx.supervisor.energy.source.Source`."""
        if wanted:
            self._wanted_at_s = now_s
        if self._wanted_at_s is None or now_s - self._wanted_at_s >= _LINGER_S:
            self.close()
        elif self._process is None:
            if now_s >= self._not_before_s:
                self._start(now_s)
        else:
            self._take(self._process, now_s)
        return (
            None
            if self._process is None or not self._counted_s
            else (self._counted_s, self._joules)
        )

    def close(self) -> None:
        """See :class:`lmx.supervisor.energy.source.Source`."""
        if self._process is None:
            return
        # It has nothing to save, and one that hangs would not obey another signal.
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def _start(self, now_s: float) -> None:
        self._rest, self._printed_at_s, self._heard_at_s = b"", None, now_s
        # Without the supervisor's variables: keys are among them.
        environment = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        try:
            self._process = subprocess.Popen(
                [self._program, "pipe", "--interval", str(_INTERVAL_MS)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=environment,
            )  # fmt: skip
        except OSError as error:
            self._give_up(now_s, str(error))
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def _take(self, process: subprocess.Popen[bytes], now_s: float) -> None:
        assert process.stdout is not None
        try:
            text = os.read(process.stdout.fileno(), _LINE_BYTES)
        except BlockingIOError:
            if now_s - self._heard_at_s >= _SILENT_S:
                self._give_up(now_s, f"it has printed nothing for {_SILENT_S:g} s")
            return
        if not text:
            self._give_up(now_s, "it has ended")
            return
        self._heard_at_s = now_s
        *lines, self._rest = (self._rest + text).split(b"\n")
        for line in lines:
            self._add(line)
        if len(self._rest) > _LINE_BYTES:
            self._give_up(now_s, "it prints lines without an end")

    def _add(self, line: bytes) -> None:
        """Add the joules since the line before. A line is about the time until it was printed."""
        try:
            said: Any = json.loads(line)
            at_s = datetime.fromisoformat(said["timestamp"]).timestamp()
            # Older versions do not measure all of them.
            watts = sum(float(said.get(name) or 0.0) for name in _POWERS)
        except (ValueError, TypeError, KeyError, AttributeError):
            self._printed_at_s = None
            return
        before_s, self._printed_at_s = self._printed_at_s, at_s
        passed_s = _INTERVAL_MS / 1000 if before_s is None else at_s - before_s
        if 0.0 < passed_s <= _LONGEST_S and 0.0 <= watts < float("inf"):
            self._counted_s += passed_s
            self._joules += watts * passed_s

    def _give_up(self, now_s: float, why: str) -> None:
        log.warning("energy.macmon_failed", reason=why, again_in_s=_AGAIN_S)
        self.close()
        self._not_before_s = now_s + _AGAIN_S
