"""Watches the supervisor. If it is silent for long, the watch starts a program that rescues it."""

import asyncio
import contextlib
import os
from typing import Final, Protocol

import psutil
import structlog

from lmx.protocol.messages.specs import RescueSpec

_PAUSE_S: Final = 5.0
_MOST_PAUSE_S: Final = 60.0
_RESCUE_S: Final = 240.0
"""The time limit for that program. The deadlines of all its steps together are shorter."""

_LOOK_S: Final = 5.0

_log = structlog.get_logger()


class Beats(Protocol):
    """What is known of the supervisor."""

    @property
    def answers_total(self) -> int:
        """How many of the router's beats it has answered."""


class SupervisorWatch:
    """Counts beats without an answer, and not time: a router that was not running itself has missed
    none. A supervisor to which it could not even connect answers none either."""

    def __init__(self, beats: Beats, rescue: RescueSpec | None, beat_interval_s: float) -> None:
        self._beats = beats
        self._rescue = rescue
        self._beat_interval_s = beat_interval_s

    async def run(self) -> None:
        """Watch until cancelled. A program that the watch has started ends with it."""
        if self._rescue is None:
            return
        pause_s, resting_s = _PAUSE_S, 0.0
        answers, missed = 0, 0
        while True:
            await asyncio.sleep(self._beat_interval_s)
            resting_s -= self._beat_interval_s
            missed = missed + 1 if self._beats.answers_total == answers else 0
            answers = self._beats.answers_total
            silent_s = missed * self._beat_interval_s
            if silent_s < self._rescue.silence_s:
                pause_s, resting_s = _PAUSE_S, 0.0
            elif resting_s <= 0.0:
                _log.warning("supervisor.silent", silent_s=round(silent_s, 1))
                await self._run_rescue(self._rescue)
                resting_s, pause_s = pause_s, min(2 * pause_s, _MOST_PAUSE_S)

    async def _run_rescue(self, rescue: RescueSpec) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *rescue.command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **rescue.environment},
            )
        except OSError as error:
            _log.error("rescue.start_failed", error=str(error))
            return
        ended = asyncio.ensure_future(process.wait())
        try:
            async with asyncio.timeout(_RESCUE_S):
                while not ended.done():
                    if _is_stopped(process.pid):
                        # It would keep the lock, so that no other one could act.
                        _log.error("rescue.stopped", rescue_pid=process.pid)
                        return
                    await asyncio.wait({ended}, timeout=_LOOK_S)
        except TimeoutError:
            _log.error("rescue.timed_out", rescue_pid=process.pid)
        finally:
            ended.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
