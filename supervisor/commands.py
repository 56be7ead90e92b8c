"""What routers and the CLI may ask of the supervisor, question by question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from lmx.protocol import control
from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.states import SlotState
from lmx.supervisor.core import Core
from lmx.supervisor.slot_life import denied, quarantined
from lmx.supervisor.slots import MAX_WAITERS, Asker, Waiter

log = structlog.get_logger()


class Commands:
    """Answers questions with the core. ``status`` and ``stop_all`` belong to the service."""

    def __init__(
        self,
        core: Core,
        reply: Callable[[Asker, Any], None],
        status: Callable[[float], dict[str, Any]],
        stop_all: Callable[[str], None],
    ) -> None:
        self._core = core
        self._reply = reply
        self._status = status
        self._stop_all = stop_all

    def answer(self, asker: Asker, question: Any, now_s: float) -> None:
        """Answer one question; what it raises of :class:`LmxError` becomes Denied."""
        try:
            answer = self._answer(asker, question, now_s)
        except LmxError as error:
            answer = denied(error)
        if answer is not None:
            self._reply(asker, answer)

    def _answer(self, asker: Asker, question: Any, now_s: float) -> Any:
        match question:
            case control.GetSnapshot():
                return self._core.snapshot(now_s)
            case control.Acquire():
                return self._acquire(asker, question, now_s)
            case control.GetStatus():
                return control.Status(self._status(now_s))
            case control.LoadModel(model_id):
                return self._load(model_id, now_s)
            case control.UnloadModel(model_id):
                return self._unload(model_id, now_s)
            case control.KillModel(model_id):
                slot = self._core.slot(model_id)
                worker = self._core.kill(slot, "an operator killed the model's worker", now_s)
                log.warning("operator.kill", model=model_id, worker_pid=worker.pid)
                back = "is being started again" if slot.wanted else "stays down"
                return control.Done(
                    f"killed {worker.model_id} (pid {worker.pid}); it {back}", worker.pid
                )
            case control.RestartModel(model_id):
                return self._restart(model_id, now_s)
            case control.StopAll():
                self._stop_all("an operator asked for it")
                return control.Done("stopping")
            case _:
                kind = type(question).__name__
                raise LmxError(ErrorCode.PROTOCOL_ERROR, f"{kind} is not a question")

    def _acquire(self, asker: Asker, question: control.Acquire, now_s: float) -> Any:
        slot = self._core.slot(question.model_id)
        worker = slot.ready_worker
        if worker is not None:
            return control.Acquired(slot.model.id, worker.instance)
        if slot.state is SlotState.QUARANTINED:
            raise quarantined(slot)
        if self._core.stopping:
            raise UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")
        if len(slot.waiters) >= MAX_WAITERS:
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"{MAX_WAITERS} requests wait for {slot.model.id} already",
                retry_after_s=10.0,
            )
        slot.waiters.append(Waiter(asker, now_s + question.wait_s))
        self._core.want(slot, now_s)
        return None

    def _load(self, model_id: str, now_s: float) -> control.Done:
        slot = self._core.slot(model_id)
        if slot.ready_worker is not None:
            return control.Done(f"{slot.model.id} is loaded already", slot.ready_worker.pid)
        self._core.revive(slot, now_s)
        if slot.state is SlotState.COLD:
            raise UnavailableError(
                ErrorCode.MODEL_LOAD_FAILED, slot.problem or f"{slot.model.id} can't be loaded"
            )
        return control.Done(f"loading {slot.model.id}")

    def _unload(self, model_id: str, now_s: float) -> control.Done:
        slot = self._core.slot(model_id)
        pid = slot.worker.pid if slot.worker else None
        self._core.drain(slot, wanted=False, detail="an operator unloaded the model", now_s=now_s)
        verb = "unloading" if pid else "unloaded"
        return control.Done(f"{verb} {slot.model.id}", pid)

    def _restart(self, model_id: str, now_s: float) -> control.Done:
        slot = self._core.slot(model_id)
        if slot.worker is None:
            return self._load(model_id, now_s)
        pid = slot.worker.pid
        detail = "an operator restarted the model"
        self._core.drain(slot, wanted=True, detail=detail, now_s=now_s)
        return control.Done(f"restarting {slot.model.id}", pid)
