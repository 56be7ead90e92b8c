"""Answers the questions of routers and the CLI about models, one method for each question."""

import math
from collections.abc import Coroutine
from typing import Any

import structlog

from lmx.protocol.messages import control
from lmx.protocol.messages.snapshot import GetSnapshot, Snapshot
from lmx.supervisor.control.handlers import Handler
from lmx.supervisor.control.loading import Loading
from lmx.supervisor.control.planning import Planning
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.view import public_state
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.decisions.slots.demand import Requester

log = structlog.get_logger()


class ModelCommands:
    """Answers questions about models with the help of the core. Questions about lmx as a whole
    belong to :mod:`lmx.supervisor.control.service`."""

    def __init__(self, core: Core, loading: Loading, planning: Planning) -> None:
        self._core = core
        self._loading = loading
        self._planning = planning
        self.handlers: dict[type, Handler] = {
            GetSnapshot: self._snapshot,
            control.LoadModel: self._load,
            control.UnloadModel: self._unload,
            control.KillModel: self._kill,
            control.RestartModel: self._restart,
            control.DrainModel: self._hold,
            control.ResetModel: self._reset,
            control.PinModel: self._pin,
            control.PlanLoad: lambda question, _now_s: self._planning.plan(question),
        }

    def _snapshot(self, _question: GetSnapshot, now_s: float) -> Snapshot:
        return self._core.snapshot(now_s)

    def acquire(self, question: control.Acquire, requester: Requester, now_s: float) -> None:
        """Let a request wait for its model. The core replies."""
        slot = self._core.slot(question.model_id)
        wait_s, waited_s = (
            value if math.isfinite(value) else 0.0 for value in (question.wait_s, question.waited_s)
        )
        self._core.acquire(slot.model.id, requester, wait_s, waited_s, now_s)

    def _load(
        self, question: control.LoadModel, _now_s: float
    ) -> Coroutine[Any, Any, control.Done]:
        return self._loading.load(question.model_id, question.context_length)

    def _unload(self, question: control.UnloadModel, now_s: float) -> control.Done:
        slot = self._core.slot(question.model_id)
        pid = slot.worker.pid if slot.worker else None
        self._core.operator.take(slot.model.id, events.Unloaded(), now_s)
        verb = "unloading" if pid else "unloaded"
        return control.Done(f"{verb} {slot.model.id}", pid)

    def _kill(self, question: control.KillModel, now_s: float) -> control.Done:
        slot = self._core.slot(question.model_id)
        worker = self._core.operator.kill(slot.model.id, now_s)
        log.warning("operator.kill", model=slot.model.id, worker_pid=worker.pid)
        back = "is being started again" if slot.life.wanted else "stays down"
        return control.Done(f"killed {worker.model_id} (pid {worker.pid}); it {back}", worker.pid)

    def _restart(
        self, question: control.RestartModel, now_s: float
    ) -> control.Done | Coroutine[Any, Any, control.Done]:
        slot = self._core.slot(question.model_id)
        if slot.worker is None:
            return self._loading.load(question.model_id, None)
        self._loading.refuse_while_replacing(slot)
        pid = slot.worker.pid
        restart = events.ReloadOrdered("an operator restarted the model")
        self._core.operator.take(slot.model.id, restart, now_s)
        return control.Done(f"restarting {slot.model.id}", pid)

    def _reset(self, question: control.ResetModel, now_s: float) -> control.Done:
        model_id = self._core.slot(question.model_id).model.id
        self._core.operator.take(model_id, events.Reset(), now_s)
        return control.Done(
            f"{model_id} is reset: it is {public_state(self._core.slots[model_id])}"
        )

    def _pin(self, question: control.PinModel, now_s: float) -> control.Done:
        slot, pinned = self._core.slot(question.model_id), question.pinned
        not_written = self._core.operator.pin(slot.model.id, pinned, now_s)
        done = f"{slot.model.id} is {'pinned' if pinned else 'unpinned'}"
        if not_written is None:
            return control.Done(done)
        what = "the pin is gone" if pinned else "it may be pinned again"
        return control.Done(
            f"{done}, but it could not be written to {not_written}: {what} after a restart of "
            "the supervisor"
        )

    def _hold(self, question: control.DrainModel, now_s: float) -> control.Done:
        slot = self._core.slot(question.model_id)
        pid = slot.worker.pid if slot.worker else None
        self._core.operator.take(slot.model.id, events.Held(), now_s)
        verb = "draining" if pid else "holding"
        return control.Done(
            f"{verb} {slot.model.id}; it stays down until `lmx load {slot.model.id}`", pid
        )
