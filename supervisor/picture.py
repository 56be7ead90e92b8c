"""The picture of all slots that placement decides on. Pure; and where in the queue each is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lmx.protocol.states import MemoryPressure, SlotState, WorkerState
from lmx.supervisor.budget import Ledger
from lmx.supervisor.config import MemoryConfig
from lmx.supervisor.groups import Groups
from lmx.supervisor.placement import queue_order
from lmx.supervisor.scene import Resident, Scene, Stage, Waiting
from lmx.supervisor.slots import Slot
from lmx.supervisor.worker_state import Worker

_HANDOVER_S: Final = 2.0
"""For so long after a load the requests that waited for it are on their way to the worker, and
no beat tells of them yet: an idle model that goes at once would be loaded for nothing, again and
again."""

_STAGES: Final = {
    WorkerState.STARTING: Stage.LOADING,
    WorkerState.LOADING: Stage.LOADING,
    WorkerState.READY: Stage.SERVING,
    WorkerState.DRAINING: Stage.LEAVING,
    WorkerState.STOPPING: Stage.LEAVING,
}


def scene_of(
    slots: Iterable[Slot],
    ledger: Ledger,
    memory: MemoryConfig,
    groups: Groups,
    pressure: MemoryPressure,
    now_s: float,
) -> Scene:
    """Return what placement sees of the slots."""
    slots = list(slots)
    return Scene(
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
        groups=groups,
        min_residency_s=memory.min_residency_s,
        fair_wait_s=memory.fair_wait_s,
    )


def positions(slots: Iterable[Slot], now_s: float) -> dict[str, int]:
    """Return the place of each waiting model in the queue, from 1."""
    waiting = queue_order(_queued(slots, now_s))
    return {one.model_id: place for place, one in enumerate(waiting, 1)}


def expires_at_s(slot: Slot, memory: MemoryConfig) -> float | None:
    """Return when an idle model's time is over; None: never, or it is not idle.

    What its last request asked for goes before the model's own setting, that before all models'.
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
    return max(worker.idle_since_s + keep_alive_s, _settled_at_s(slot, worker))


def _queued(slots: Iterable[Slot], now_s: float) -> list[Waiting]:
    """Without a plan a model's files are still being read: it waits for no memory yet."""
    return [
        Waiting(slot.model.id, slot.plan.reserve_bytes, slot.asked_at_s(now_s), slot.pinned)
        for slot in slots
        if slot.state is SlotState.QUEUED and slot.plan is not None
    ]


def _resident(slot: Slot, worker: Worker, ledger: Ledger, memory: MemoryConfig) -> Resident:
    return Resident(
        slot.model.id,
        ledger.reserved_by(worker.instance),
        Stage.STUCK if worker.stuck else _STAGES[worker.state],
        pinned=slot.pinned,
        since_s=slot.ready_at_s or 0.0,
        settled_at_s=_settled_at_s(slot, worker),
        idle_since_s=worker.idle_since_s if worker.state is WorkerState.READY else None,
        expires_at_s=expires_at_s(slot, memory),
    )


def _settled_at_s(slot: Slot, worker: Worker) -> float:
    if slot.ready_at_s is None or worker.adopted or worker.requests_total > 0:
        return 0.0
    return slot.ready_at_s + _HANDOVER_S
