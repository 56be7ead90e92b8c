"""The supervisor's single writer: every fact comes in here, every decision goes out of here.

One thread, no awaits: each method takes one event to its end. What touches the world
(processes, sockets, files) is behind :class:`Actions`, so that the whole of it runs in tests
without any.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from lmx.protocol import control
from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.states import ExitCause, LoadPhase, SlotState
from lmx.supervisor import lifecycle, restart
from lmx.supervisor.budget import Ledger
from lmx.supervisor.config import Config
from lmx.supervisor.slot_life import Actions, SlotLife
from lmx.supervisor.slots import Slot
from lmx.supervisor.view import known_names, model_view
from lmx.supervisor.worker_state import (
    DrainAsked,
    KillAsked,
    ProcessExited,
    StopAsked,
    Tick,
    Worker,
)

log = structlog.get_logger()


class Core:
    """All slots, the ledger, and the rules between them."""

    def __init__(self, config: Config, ledger: Ledger, actions: Actions, epoch: str) -> None:
        self.config = config
        self.ledger = ledger
        self.epoch = epoch
        self.revision = 0
        self.slots: dict[str, Slot] = {model.id: Slot(model) for model in config.models}
        self._names = {
            name: model.id for model in config.models for name in (model.id, *model.aliases)
        }
        self._actions = actions
        self._life = SlotLife(config, ledger, actions, epoch, self.flush)
        self._created_s = int(actions.wall_s())
        self._published: tuple[Any, ...] | None = None
        for slot in self.slots.values():
            folder = actions.local_path(slot.model)
            slot.kind = (
                slot.model.kind if folder is None else actions.model_kind(slot.model, folder)
            )

    def slot(self, name: str) -> Slot:
        """Return the slot of a model id or alias. Raises :class:`LmxError` (model_not_found)."""
        model_id = self._names.get(name)
        if model_id is None:
            raise LmxError(
                ErrorCode.MODEL_NOT_FOUND,
                f"no model is named {name!r}; known: {known_names(self.slots.values())}",
                param="model",
            )
        return self.slots[model_id]

    @property
    def stopping(self) -> bool:
        """Whether lmx is going down: nothing is started any more."""
        return self._life.stopping

    def begin_stopping(self) -> None:
        """Start nothing from here on; what runs goes on until :meth:`stop_workers`."""
        self._life.stopping = True

    @property
    def workers(self) -> list[Worker]:
        """Every worker whose exit was not observed yet."""
        return [slot.worker for slot in self.slots.values() if slot.worker is not None]

    # Wishes.

    def want(self, slot: Slot, now_s: float) -> None:
        """Have the model running: start it if it is cold, else let it go on."""
        if self.stopping:
            raise UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")
        slot.wanted = True
        if slot.state is SlotState.COLD:
            self._life.begin(slot, now_s)

    def revive(self, slot: Slot, now_s: float) -> None:
        """As :meth:`want`, and at once also out of backoff and quarantine, its past forgiven."""
        if slot.state in (SlotState.BACKOFF, SlotState.QUARANTINED):
            slot.state = SlotState.COLD
        slot.failures = restart.FailureRecord()
        slot.retry_at_s = None
        self.want(slot, now_s)

    def drain(self, slot: Slot, *, wanted: bool, detail: str, now_s: float) -> None:
        """End the model's worker after its streams; ``wanted`` says whether it comes back."""
        slot.wanted = wanted
        if not wanted:
            self._life.deny_waiters(slot, UnavailableError(ErrorCode.MODEL_UNLOADED, detail))
        if slot.worker is not None:
            self._life.step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
            return
        if slot.state is SlotState.QUARANTINED:
            return  # It is down already, and only `restart` or `load` forgives it.
        if slot.state is SlotState.FETCHING:
            self._actions.stop_fetch(slot.model.id)
        slot.state, slot.retry_at_s, slot.problem = SlotState.COLD, None, None

    def kill(self, slot: Slot, detail: str, now_s: float) -> Worker:
        """SIGKILL the model's worker. Raises :class:`LmxError` (model_not_loaded)."""
        if slot.worker is None:
            raise LmxError(
                ErrorCode.MODEL_NOT_LOADED,
                f"{slot.model.id} has no worker process: it is {slot.state}",
                param="model",
            )
        worker = slot.worker
        self._life.step(slot, KillAsked(ExitCause.KILLED, detail), now_s)
        return worker

    def stop_workers(self, now_s: float, *, at_once: bool) -> None:
        """End every worker and fetch; nothing starts from here on."""
        self.begin_stopping()
        detail = "lmx is shutting down"
        for slot in self.slots.values():
            slot.wanted = False
            if slot.state is SlotState.FETCHING:
                self._actions.stop_fetch(slot.model.id)
                slot.state = SlotState.COLD
            self._life.deny_waiters(slot, UnavailableError(ErrorCode.SHUTTING_DOWN, detail))
            if slot.worker is not None:
                ask = KillAsked if at_once else StopAsked
                self._life.step(slot, ask(ExitCause.SHUTDOWN, detail), now_s)

    # Facts.

    def adopt(self, instance: str, model_id: str, pid: int, held_bytes: int, now_s: float) -> bool:
        """Take over a worker that an earlier supervisor started; False if it has no place."""
        slot = self.slots.get(model_id)
        if slot is None or slot.worker is not None:
            return False
        slot.worker = lifecycle.adopted(
            instance, model_id, pid, self._life.limits(slot.model), now_s
        )
        slot.state, slot.wanted = SlotState.OCCUPIED, True
        slot.path = self._actions.local_path(slot.model)
        self._life.by_instance[instance] = slot
        self.ledger.adopt(instance, held_bytes)
        log.info("worker.adopted", model=model_id, instance=instance, worker_pid=pid)
        return True

    def knows(self, instance: str) -> bool:
        """Whether this instance is a worker of ours."""
        return instance in self._life.by_instance

    def worker(self, instance: str) -> Worker:
        """Return a worker of ours. Raises ``KeyError`` for another."""
        worker = self._life.by_instance[instance].worker
        assert worker is not None
        return worker

    def worker_said(self, instance: str, message: Any, now_s: float) -> None:
        """Take a worker's message; one of an unknown instance is dropped by the caller."""
        slot = self._life.by_instance[instance]
        self._life.step(slot, message, now_s)

    def worker_exited(self, instance: str, status: int | None, now_s: float) -> None:
        """Take the observed end of a worker process."""
        slot = self._life.by_instance.get(instance)
        if slot is not None:
            self._life.step(slot, ProcessExited(status), now_s)

    def fetch_advanced(self, model_id: str, phase: LoadPhase, fraction: float | None) -> None:
        """Take a fetch's progress."""
        slot = self.slots[model_id]
        if slot.state is SlotState.FETCHING:
            slot.fetch_phase, slot.fetch_fraction = phase, fraction

    def fetch_ended(self, model_id: str, outcome: Path | LmxError, now_s: float) -> None:
        """Take a fetch's end: the model's folder, or why there is none."""
        slot = self.slots[model_id]
        if slot.state is not SlotState.FETCHING:
            return
        slot.fetch_phase = slot.fetch_fraction = None
        slot.state = SlotState.COLD
        if isinstance(outcome, Path):
            slot.path = outcome
            self._life.launch(slot, now_s)
        else:
            self._life.give_up(slot, outcome, now_s)

    def tick(self, now_s: float, paused_s: float) -> None:
        """Let time pass: deadlines of workers, backoffs and waiting requests."""
        for slot in self.slots.values():
            try:
                self._tick_slot(slot, now_s, paused_s)
            except Exception:
                # A bug in one model's affairs must not stop the clock of the others.
                log.exception("tick.failed", model=slot.model.id)

    def _tick_slot(self, slot: Slot, now_s: float, paused_s: float) -> None:
        if slot.worker is not None:
            self._life.step(slot, Tick(paused_s), now_s)
        elif slot.retry_at_s is not None and now_s >= slot.retry_at_s:
            slot.retry_at_s = None
            slot.state = SlotState.COLD
            if slot.wanted:
                self._life.begin(slot, now_s)
        overdue = [waiter for waiter in slot.waiters if now_s >= waiter.deadline_s]
        for waiter in overdue:
            slot.waiters.remove(waiter)
            late = control.Denied(
                ErrorCode.MODEL_LOADING,
                f"{slot.model.id} is not ready yet: it is "
                f"{slot.worker.state if slot.worker else slot.state}",
                retry_after_s=5.0,
            )
            self._actions.reply(waiter.asker, late)

    def flush(self, now_s: float) -> None:
        """Publish a snapshot if what it says has changed. Called after each event."""
        snapshot = self.snapshot(now_s)
        facts = (
            snapshot.stopping,
            *(replace(view, retry_after_s=None) for view in snapshot.models),
        )
        if facts != self._published:
            self._published = facts
            self.revision += 1
            self._actions.publish(replace(snapshot, revision=self.revision))

    def snapshot(self, now_s: float) -> control.Snapshot:
        """Return the public state as of the last :meth:`flush`'s revision."""
        views = tuple(model_view(slot, self._created_s, now_s) for slot in self.slots.values())
        return control.Snapshot(
            self.epoch, self.revision, self.config.default_model_id, views, self.stopping
        )
