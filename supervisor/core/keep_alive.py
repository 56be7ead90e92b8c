"""When an idle model is unloaded. Pure."""

from typing import Final

from lmx.supervisor.config.schema import MemoryConfig
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.worker import Worker

_HANDOVER_S: Final = 2.0
"""For this long after a load, the requests that waited for it are on their way to the worker, and
no heartbeat reports them yet. If an idle model were evicted at once, it would be loaded for
nothing, again and again."""


def expires_at_s(slot: Slot, memory: MemoryConfig) -> float | None:
    """Return when an idle model's time is over. Returns None if it never is, or the model is not
    idle.

    What its last request asked for overrides the model's own setting, and that overrides the
    setting for all models.
    """
    worker = slot.ready_worker
    if worker is None or worker.idle_since_s is None or slot.pinned:
        return None
    keep_alive_s = worker.keep_alive_s
    if keep_alive_s is None:
        keep_alive_s = slot.model.keep_alive
    if keep_alive_s is None:
        keep_alive_s = memory.keep_alive
    if keep_alive_s < 0:
        return None
    return max(worker.idle_since_s + keep_alive_s, settled_at_s(slot, worker))


def settled_at_s(slot: Slot, worker: Worker) -> float:
    """Return from when on a worker that is idle may be evicted."""
    if slot.life.ready_at_s is None or worker.adopted or worker.figures.requests_total > 0:
        return 0.0
    return slot.life.ready_at_s + _HANDOVER_S
