"""What routers and the CLI may ask of the supervisor about models, question by question."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages import control
from lmx.supervisor.control.deferred_replies import LaterAnswers
from lmx.supervisor.control.loading import Loading
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Asker
from lmx.supervisor.core.unavailable import denied
from lmx.supervisor.core.view import public_state

log = structlog.get_logger()


def answer_or_deny(
    reply: Callable[[Asker, Any], None], asker: Asker, answer: Callable[[], Any]
) -> None:
    """Reply with what ``answer`` returns, nothing where that is None: its answer comes later.
    What it raises of :class:`LmxError` becomes Denied."""
    try:
        found = answer()
    except LmxError as error:
        found = denied(error)
    if found is not None:
        reply(asker, found)


class Commands:
    """Answers questions with the core. Those about lmx as a whole belong to
    :mod:`lmx.supervisor.control.service`. A load is answered ``later``: its files are read."""

    def __init__(
        self,
        core: Core,
        loading: Loading,
        reply: Callable[[Asker, Any], None],
        later: LaterAnswers,
    ) -> None:
        self._core = core
        self._loading = loading
        self._reply = reply
        self._later = later

    def answer(self, asker: Asker, question: Any, now_s: float) -> None:
        """Answer one question; what it raises of :class:`LmxError` becomes Denied."""
        answer_or_deny(self._reply, asker, lambda: self._answer(asker, question, now_s))

    def _answer(self, asker: Asker, question: Any, now_s: float) -> Any:
        match question:
            case control.GetSnapshot():
                return self._core.snapshot(now_s)
            case control.Acquire():
                return self._acquire(asker, question, now_s)
            case control.LoadModel(model_id, context_length):
                self._later.answer(asker, self._loading.load(model_id, context_length))
            case control.UnloadModel(model_id):
                return self._unload(model_id, now_s)
            case control.KillModel(model_id):
                return self._kill(model_id, now_s)
            case control.RestartModel(model_id):
                return self._restart(asker, model_id, now_s)
            case control.DrainModel(model_id):
                return self._hold(model_id, now_s)
            case control.ResetModel(model_id):
                slot = self._core.slot(model_id)
                self._core.operator.reset(slot, now_s)
                return control.Done(f"{slot.model.id} is reset: it is {public_state(slot)}")
            case control.PinModel(model_id, pinned):
                return self._pin(model_id, pinned, now_s)
            case _:
                kind = type(question).__name__
                raise LmxError(ErrorCode.PROTOCOL_ERROR, f"{kind} is not a question")
        return None

    def _acquire(self, asker: Asker, question: control.Acquire, now_s: float) -> Any:
        slot = self._core.slot(question.model_id)
        worker = slot.ready_worker
        if worker is not None:
            return control.Acquired(slot.model.id, worker.instance)
        wait_s, waited_s = (
            value if math.isfinite(value) else 0.0 for value in (question.wait_s, question.waited_s)
        )
        self._core.acquire(slot, asker, wait_s, waited_s, now_s)
        return None

    def _unload(self, model_id: str, now_s: float) -> control.Done:
        slot = self._core.slot(model_id)
        pid = slot.worker.pid if slot.worker else None
        self._core.operator.unload(slot, now_s)
        verb = "unloading" if pid else "unloaded"
        return control.Done(f"{verb} {slot.model.id}", pid)

    def _kill(self, model_id: str, now_s: float) -> control.Done:
        slot = self._core.slot(model_id)
        worker = self._core.operator.kill(slot, now_s)
        log.warning("operator.kill", model=slot.model.id, worker_pid=worker.pid)
        back = "is being started again" if slot.wanted else "stays down"
        return control.Done(f"killed {worker.model_id} (pid {worker.pid}); it {back}", worker.pid)

    def _restart(self, asker: Asker, model_id: str, now_s: float) -> control.Done | None:
        slot = self._core.slot(model_id)
        if slot.worker is None:
            self._later.answer(asker, self._loading.load(model_id, None))
            return None
        pid = slot.worker.pid
        self._core.operator.restart(slot, now_s)
        return control.Done(f"restarting {slot.model.id}", pid)

    def _pin(self, model_id: str, pinned: bool, now_s: float) -> control.Done:
        slot = self._core.slot(model_id)
        not_written = self._core.operator.pin(slot, pinned, now_s)
        done = f"{slot.model.id} is {'pinned' if pinned else 'unpinned'}"
        if not_written is None:
            return control.Done(done)
        what = "the pin is gone" if pinned else "it may be pinned again"
        return control.Done(
            f"{done}, but it could not be written to {not_written}: {what} after a restart of "
            "the supervisor"
        )

    def _hold(self, model_id: str, now_s: float) -> control.Done:
        slot = self._core.slot(model_id)
        pid = slot.worker.pid if slot.worker else None
        self._core.operator.hold(slot, now_s)
        verb = "draining" if pid else "holding"
        return control.Done(
            f"{verb} {slot.model.id}; it stays down until `lmx-supervisor load {slot.model.id}`",
            pid,
        )
