"""The status of the supervisor itself and of its router, as `lmx status` shows them.
This module is pure. The status of the models is made by the core
(:mod:`lmx.supervisor.core.view`)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lmx.protocol.messages.status import RouterStatus, SupervisorStatus
from lmx.protocol.states import MemoryPressure, SupervisorState
from lmx.supervisor.core.core import Core
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.sockets.reachable import api_urls


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """What the supervisor's process knows about itself. The fields are those of
    :class:`SupervisorStatus`."""

    pid: int
    version: str
    home: str
    uptime_s: float
    memory_bytes: int
    notices: tuple[str, ...]


def supervisor_status(
    core: Core, own: OwnProcess, soft_line: float, pressure: MemoryPressure, reading: MemoryReading
) -> SupervisorStatus:
    """Return the supervisor's status, from what the core knows and the machine's memory as it was
    read last. ``soft_line`` is that of the configuration."""
    ledger = core.ledger
    return SupervisorStatus(
        state=SupervisorState.STOPPING if core.stopping else SupervisorState.RUNNING,
        pid=own.pid,
        version=own.version,
        epoch=core.epoch,
        home=own.home,
        uptime_s=round(own.uptime_s, 3),
        memory_bytes=own.memory_bytes,
        budget_bytes=ledger.budget_bytes,
        reserved_bytes=ledger.reserved_bytes,
        missing_bytes=ledger.missing_bytes,
        memory_pressure=pressure,
        memory_soft_line=soft_line,
        machine_memory_bytes=reading.total_bytes,
        machine_used_bytes=reading.used_bytes,
        machine_available_bytes=reading.available_bytes,
        swaps_total=core.swaps_total,
        notices=own.notices,
    )


def with_urls(router: RouterStatus, addresses: Callable[[], tuple[str, ...]]) -> RouterStatus:
    """Return a router's status with the URLs of its API. ``addresses`` returns the machine's own
    addresses."""
    if not router.port:
        return router
    urls = api_urls(router.host, router.port, addresses)
    return replace(router, url=urls[0], urls=urls)
