"""``lmx-supervisor up``: the service in this process, narrated on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import signal
import sys
import threading
import time
from logging.handlers import RotatingFileHandler
from typing import Final

from lmx.protocol.limits import raise_file_limit
from lmx.protocol.logs import LogFile, configure_logs
from lmx.supervisor.advice import advice
from lmx.supervisor.config import LogConfig
from lmx.supervisor.console import LoadProgress, make_console, print_welcome
from lmx.supervisor.handover import Handover
from lmx.supervisor.home import Home
from lmx.supervisor.invocation import Invocation
from lmx.supervisor.service import Service

_POLL_S: Final = 0.1
_ROTATE_S: Final = 10.0
_SEEN_S: Final = 0.01
"""For the event loop to hear of a signal that came just before."""

_SETTLED: Final = frozenset({"ready", "cold", "quarantined", "backoff", "queued", "held"})


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_foreground(invocation: Invocation, home: Home, version: str) -> None:
    """Run until SIGINT or SIGTERM. Raises :class:`OperationError` when it can't start, or when
    the configuration is not valid."""
    config = invocation.read_config()
    home.prepare()
    faulthandler.enable()
    raise_file_limit()
    logs = _Logs(home, config.logs, detached=invocation.detached)
    service = Service(config, home, version, invocation, lambda new: logs.follow(new.logs))
    handover = asyncio.run(_serve(service, logs.file if invocation.detached else None))
    if handover is not None:
        invocation.replace_program(handover)


class _Logs:
    """The supervisor's own log: alone in its file (detached), or on the terminal with a copy."""

    def __init__(self, home: Home, config: LogConfig, *, detached: bool) -> None:
        self.file = LogFile(home.supervisor_log, int(config.max_bytes), config.keep)
        self._copy: RotatingFileHandler | None = None
        if detached:
            self.file.attach()
        else:
            self._copy = RotatingFileHandler(home.supervisor_log)
        self.follow(config)

    def follow(self, config: LogConfig) -> None:
        """Keep to a configuration from here on."""
        self.file.limit(int(config.max_bytes), config.keep)
        if self._copy is not None:
            self._copy.maxBytes, self._copy.backupCount = int(config.max_bytes), config.keep
        configure_logs("supervisor", config.level, copy_to=self._copy, changeable=True)


async def _serve(service: Service, log_file: LogFile | None) -> Handover | None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, service, number, log_file is None)
    if sys.stdin is not None and sys.stdin.isatty():
        # The terminal was closed. Nothing may be left running behind it.
        loop.add_signal_handler(signal.SIGHUP, _stop, service, signal.SIGHUP, True)
    else:
        loop.add_signal_handler(signal.SIGHUP, service.reload, "SIGHUP")
    # The program that was here before may have left them blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    side = loop.create_task(_narrate(service) if log_file is None else _rotate(log_file))
    try:
        handover = await service.run()
    finally:
        side.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await side
    if handover is not None:
        await _keep_signals(service)
    return handover


async def _keep_signals(service: Service) -> None:
    """Have signals wait for the next program: without a handler they would end this process.
    One that came too late for this program is sent to the next one."""
    # Blocked in this thread alone: another one would take them.
    await asyncio.get_running_loop().shutdown_default_executor()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    await asyncio.sleep(_SEEN_S)
    if service.stop_asked:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _stop(service: Service, number: signal.Signals, say: bool) -> None:
    service.stop(number.name)
    if say:
        make_console().print(f"\nstopping ({number.name}); again to stop at once")


async def _narrate(service: Service) -> None:
    """Show the loads until every model has settled, then how to talk to lmx."""
    console = make_console()
    with LoadProgress(console) as progress:
        while True:
            await asyncio.sleep(_POLL_S)
            if not service.serving:
                continue
            status = service.status(time.monotonic())
            for worker in status["workers"]:
                progress.show(worker)
            if all(worker["state"] in _SETTLED for worker in status["workers"]):
                break
    print_welcome(console, status)
    tip = await asyncio.to_thread(advice)
    if tip is not None:
        console.print(tip, markup=False)


async def _rotate(log_file: LogFile) -> None:
    while True:
        await asyncio.sleep(_ROTATE_S)
        log_file.rotate_if_large()
