"""The status of the supervisor itself and of its router, as `lmx status` shows them.
This module is pure. The status of the models is made by the core
(:mod:`lmx.supervisor.core.view`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lmx.protocol.messages.status import LentRank, ModelStatus, RouterStatus, SupervisorStatus
from lmx.protocol.states import MemoryPressure, SupervisorState
from lmx.supervisor.core.core import Core
from lmx.supervisor.decisions.energy import Energy
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.sockets.reachable import api_urls


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """What the supervisor's process knows about itself and the machine's energy. The other fields
    are those of :class:`SupervisorStatus`."""

    pid: int
    version: str
    home: str
    uptime_s: float
    memory_bytes: int
    notices: tuple[str, ...]
    lent: tuple[LentRank, ...]
    energy: Energy | None


def supervisor_status(
    core: Core, own: OwnProcess, soft_line: float, pressure: MemoryPressure, reading: MemoryReading
) -> SupervisorStatus:
    """Return the supervisor's status, from what the core knows and the machine's memory as it was
    read last. ``soft_line`` is that of the configuration."""
    ledger, energy = core.ledger, own.energy
    watts = None if energy is None else energy.watts
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
        lent=own.lent,
        drained=core.drained,
        machine_watts=None if watts is None else round(watts, 1),
        machine_energy_joules=None if energy is None else round(energy.joules, 1),
    )


def with_energy(models: Sequence[ModelStatus], energy: Energy | None) -> tuple[ModelStatus, ...]:
    """Return the models' status with what each has taken, where anything was measured."""
    if energy is None:
        return tuple(models)
    return tuple(
        replace(model, energy_joules=round(energy.by_model.get(model.model, 0.0), 1))
        for model in models
    )


def with_urls(
    router: RouterStatus, addresses: Callable[[], tuple[str, ...]], label: str | None
) -> RouterStatus:
    """Return a router's status with the URLs of its API. ``addresses`` returns the machine's own
    addresses. ``label`` is the name under which it is announced."""
    if not router.port:
        return router
    urls = api_urls(router.host, router.port, addresses)
    announced = None if label is None else f"http://{label}.local:{router.port}/v1"
    return replace(router, url=urls[0], urls=urls, announced_url=announced)
