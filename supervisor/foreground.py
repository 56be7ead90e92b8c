"""``lmx-supervisor up``: the service in this process, narrated on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import signal
import time
from logging.handlers import RotatingFileHandler
from typing import Final

from lmx.protocol.limits import raise_file_limit
from lmx.protocol.logs import LogFile, configure_logs
from lmx.supervisor.advice import advice
from lmx.supervisor.config import Config
from lmx.supervisor.console import LoadProgress, make_console, print_welcome
from lmx.supervisor.home import Home
from lmx.supervisor.service import Service

_POLL_S: Final = 0.1
_ROTATE_S: Final = 10.0
_SETTLED: Final = frozenset({"ready", "cold", "quarantined", "backoff"})


def run_foreground(config: Config, home: Home, version: str, *, detached: bool) -> None:
    """Run until SIGINT or SIGTERM. Raises :class:`OperationError` when it can't start."""
    home.prepare()
    faulthandler.enable()
    raise_file_limit()
    log_file = LogFile(home.supervisor_log, int(config.logs.max_bytes), config.logs.keep)
    if detached:
        log_file.attach()
        configure_logs("supervisor", config.logs.level)
    else:
        copy = RotatingFileHandler(
            home.supervisor_log, maxBytes=int(config.logs.max_bytes), backupCount=config.logs.keep
        )
        configure_logs("supervisor", config.logs.level, copy_to=copy)
    service = Service(config, home, version)
    asyncio.run(_serve(service, log_file if detached else None))


async def _serve(service: Service, log_file: LogFile | None) -> None:
    loop = asyncio.get_running_loop()
    # SIGHUP: the terminal was closed. Nothing may be left running behind it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _stop, service, number, log_file is None)
    side = loop.create_task(_narrate(service) if log_file is None else _rotate(log_file))
    try:
        await service.run()
    finally:
        side.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await side


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
