"""Makes what placement sees of the slots, and the place of each model in the queue. This module is
pure."""

from collections.abc import Iterable
from typing import Final

from lmx.protocol.states import MemoryPressure, WorkerState
from lmx.supervisor.config.schema import Config, MemoryConfig
from lmx.supervisor.core.keep_alive import expires_at_s, settled_at_s
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.placement import queue_order
from lmx.supervisor.decisions.placement_view import Groups, PlacementView, Resident, Stage, Waiting
from lmx.supervisor.decisions.worker import Worker

_STAGES: Final = {
    WorkerState.STARTING: Stage.LOADING,
    WorkerState.LOADING: Stage.LOADING,
    WorkerState.READY: Stage.SERVING,
    WorkerState.DRAINING: Stage.LEAVING,
    WorkerState.STOPPING: Stage.LEAVING,
}


def scene_of(
    slots: Iterable[Slot], ledger: Ledger, config: Config, pressure: MemoryPressure, now_s: float
) -> PlacementView:
    """Return what placement sees of the slots."""
    slots, memory = list(slots), config.memory
    return PlacementView(
        waiting=tuple(_queued(slots, now_s)),
        residents=tuple(
            _resident(slot, slot.worker, ledger, memory)
            for slot in slots
            if slot.worker is not None
        ),
        budget_bytes=ledger.budget_bytes,
        free_bytes=-ledger.excess_bytes,
        returning_bytes=ledger.returning_bytes,
        missing_bytes=ledger.missing_bytes,
        short_of_memory=pressure is not MemoryPressure.NONE,
        groups=Groups(config.groups),
        min_residency_s=memory.min_residency_s,
        fair_wait_s=memory.fair_wait_s,
    )


def positions(slots: Iterable[Slot], now_s: float) -> dict[str, int]:
    """Return the place of each waiting model in the queue, from 1."""
    waiting = queue_order(_queued(slots, now_s))
    return {one.model_id: place for place, one in enumerate(waiting, 1)}


def _queued(slots: Iterable[Slot], now_s: float) -> list[Waiting]:
    """Return the models that wait for memory. Models whose files are still being read do not wait
    for memory yet."""
    return [
        Waiting(slot.model.id, need_bytes, slot.life.demand.requested_at_s(now_s), slot.pinned)
        for slot in slots
        if (need_bytes := slot.life.need_bytes) is not None
    ]


def _resident(slot: Slot, worker: Worker, ledger: Ledger, memory: MemoryConfig) -> Resident:
    return Resident(
        slot.model.id,
        ledger.reserved_by(worker.instance),
        Stage.STUCK if worker.stuck else _STAGES[worker.state],
        pinned=slot.pinned,
        since_s=slot.life.ready_at_s or 0.0,
        settled_at_s=settled_at_s(slot, worker),
        idle_since_s=worker.idle_since_s if worker.state is WorkerState.READY else None,
        expires_at_s=expires_at_s(slot, memory),
    )
