"""Keeps a spare worker while it is of use."""

import contextlib
import os
from dataclasses import dataclass, field

from lmx.protocol.states import SlotState, WorkerState
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.spare import SpareView, begins_spare, keeps_spare
from lmx.supervisor.memory.system import read_footprint
from lmx.supervisor.memory.watch import MemoryWatch
from lmx.supervisor.processes.spare import SpareWorker, takes_spare

_LOADS = (WorkerState.STARTING, WorkerState.LOADING)
_MAY_LOAD = (SlotState.COLD, SlotState.QUEUED, SlotState.BACKOFF)
_MEASURED_EVERY_S = 5.0
_FEW_PROCESSORS = 3
"""With so many or fewer the imports wait until nothing is computed."""


@dataclass(eq=False, repr=False)
class SpareKeeper:
    """Begins and ends the spare worker by what is decided. ``serving``: only while lmx serves."""

    _spare: SpareWorker
    _core: Core
    _memory: MemoryWatch
    _settings: Settings
    serving: bool = field(default=False, init=False)
    _held_bytes: int = field(default=0, init=False)
    _measured_at_s: float = field(default=0.0, init=False)

    def tick(self, now_s: float) -> None:
        """Do what is decided now."""
        exists = self._spare.pid is not None
        if not (exists or self.serving):
            return
        self._measure(now_s)
        view = self._view(now_s)
        if not exists and begins_spare(view):
            self._spare.begin(now_s)
        elif exists and not keeps_spare(view):
            self._spare.end("it is not needed, or memory is")
        elif exists and self._spare.is_outdated():
            self._spare.end("what is installed or configured has changed")

    def _measure(self, now_s: float) -> None:
        pid = self._spare.pid
        if pid is not None and now_s - self._measured_at_s >= _MEASURED_EVERY_S:
            self._measured_at_s = now_s
            footprint = None
            with contextlib.suppress(OSError):  # Out of descriptors: what was last measured counts.
                footprint = read_footprint(pid)
            if footprint is not None:
                self._held_bytes = footprint.held_bytes

    def _view(self, now_s: float) -> SpareView:
        return SpareView(
            allowed=self.serving
            and not self._core.stopping
            and self._settings.current.memory.spare_worker,
            needed=any(map(_may_take, self._core.slots.values())),
            pressure=self._memory.pressure,
            free_bytes=self._core.ledger.free_bytes,
            held_bytes=self._held_bytes,
            settled=not (self._is_loading() or self._computes()),
            ended=self._spare.ended,
            since_end_s=now_s - self._spare.ended_at_s,
        )

    def _is_loading(self) -> bool:
        return any(
            slot.state is SlotState.FETCHING
            or (slot.state is SlotState.QUEUED and slot.plan is None)
            or (slot.worker is not None and slot.worker.state in _LOADS)
            for slot in self._core.slots.values()
        )

    def _computes(self) -> bool:
        few = (os.cpu_count() or 1) <= _FEW_PROCESSORS
        return few and any(worker.busy for worker in self._core.workers)


def _may_take(slot: Slot) -> bool:
    return (
        slot.state in _MAY_LOAD
        and takes_spare(slot.model)
        and not (slot.failed or slot.life.removed)
    )
