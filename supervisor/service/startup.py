"""How a supervisor starts: it takes over the processes that still run, and then starts the router
and the models."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from typing import Final

from lmx.supervisor.config.schema import ServerConfig
from lmx.supervisor.core.core import Core
from lmx.supervisor.processes.handover import Handover, resume
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.service.adoption import Adoption
from lmx.supervisor.sockets import listening

_POLL_S: Final = 0.1
_INTRODUCTION_S: Final = 3.0
"""How long workers without a record have to send their hello. By default heartbeats and reconnects
take at most half of this."""

_ATTEMPTS: Final = int(_INTRODUCTION_S / _POLL_S)


async def come_up(
    core: Core,
    guard: RouterGuard,
    adoption: Adoption,
    server: ServerConfig,
    handover: Handover | None,
) -> None:
    """Start everything, while messages are handled and ticks go on.

    Raises :class:`lmx.protocol.errors.OperationError` when the port is taken.
    """
    adoption.take_over(server.host, server.port, time.monotonic())
    if adoption.unknown_instances():
        # These are workers whose record was never written. Their next heartbeat makes them known.
        await _within(_INTRODUCTION_S, lambda: not adoption.unknown_instances())
    await _start_router(guard, server)
    now_s = time.monotonic()
    if handover is None:
        core.preload(now_s)
    else:
        resume(handover, core, now_s)
    core.flush(now_s)


async def _start_router(guard: RouterGuard, server: ServerConfig) -> None:
    """Start the router. If the port is taken, this tries again for a moment: a router whose record
    was never written may hold it and will send its hello, or a router that was just ended is not
    quite gone."""
    for attempt in range(_ATTEMPTS, 0, -1):
        if guard.process is not None:
            return
        try:
            guard.start(time.monotonic())
        except OSError as error:
            if attempt == 1 or error.errno != errno.EADDRINUSE:
                raise listening.cannot_listen(server, error) from error
            await asyncio.sleep(_POLL_S)


async def _within(limit_s: float, condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds, and return whether it did in time."""
    for _ in range(int(limit_s / _POLL_S)):
        if condition():
            return True
        await asyncio.sleep(_POLL_S)
    return condition()
