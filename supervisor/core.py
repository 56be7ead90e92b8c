"""The supervisor's single writer: every fact comes in here, every decision goes out of here.

One thread, no awaits: each method takes one event to its end. What touches the world
(processes, sockets, files) is behind :class:`Actions`, so that the whole of it runs in tests
without any.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import structlog

from lmx.protocol import control
from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.ids import new_instance_id
from lmx.protocol.states import ExitCause, LoadPhase, SlotState
from lmx.supervisor import lifecycle, restart
from lmx.supervisor.budget import Ledger
from lmx.supervisor.config import Config, ModelConfig
from lmx.supervisor.slots import Asker, Slot
from lmx.supervisor.view import known_names, model_view
from lmx.supervisor.worker_state import (
    BecameReady,
    DrainAsked,
    Ended,
    KillAsked,
    Limits,
    ProcessExited,
    SendDrain,
    SendSignal,
    SendWelcome,
    StopAsked,
    Tick,
    Worker,
)

log = structlog.get_logger()


class Actions(Protocol):
    """What the core has done for it. None of these may block or call back into the core."""

    def wall_s(self) -> float:
        """Return the time of day, in seconds since 1970."""

    def local_path(self, model: ModelConfig) -> Path | None:
        """Return the model's folder if it is on this machine as it is, else None."""

    def start_fetch(self, model: ModelConfig) -> None:
        """Begin to make the model available; progress and the end come as events."""

    def stop_fetch(self, model_id: str) -> None:
        """End a fetch, if one runs; no event follows."""

    def estimate_bytes(self, model: ModelConfig, path: Path) -> int:
        """Return what a worker will need. Raises :class:`LmxError`."""

    def spawn(self, model: ModelConfig, instance: str, path: Path, reserved_bytes: int) -> int:
        """Start a worker and return its pid. Raises ``OSError``."""

    def signal(self, worker: Worker, number: int) -> None:
        """Signal the worker's process group; nothing if it is gone."""

    def send(self, worker: Worker, message: Any) -> None:
        """Send a control message to a worker; lost if it does not listen."""

    def forget(self, worker: Worker) -> None:
        """Remove what an exited worker left: its record, its socket file."""

    def reply(self, asker: Asker, message: Any) -> None:
        """Answer a question; lost if the asker has gone."""

    def publish(self, message: Any) -> None:
        """Tell all routers."""


class Core:
    """All slots, the ledger, and the rules between them."""

    def __init__(self, config: Config, ledger: Ledger, actions: Actions, epoch: str) -> None:
        self.config = config
        self.ledger = ledger
        self.epoch = epoch
        self.revision = 0
        self.stopping = False
        self.slots: dict[str, Slot] = {model.id: Slot(model) for model in config.models}
        self._names = {
            name: model.id for model in config.models for name in (model.id, *model.aliases)
        }
        self._by_instance: dict[str, Slot] = {}
        self._actions = actions
        self._created_s = int(actions.wall_s())
        self._published: tuple[Any, ...] | None = None
        self._policy = restart.RestartPolicy(
            config.restart.backoff_base_s,
            config.restart.backoff_max_s,
            config.restart.stable_after_s,
            config.restart.max_failures,
            config.restart.window_s,
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
            self._begin(slot, now_s)

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
            self._deny_waiters(slot, UnavailableError(ErrorCode.MODEL_UNLOADED, detail))
        if slot.worker is not None:
            self._step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
            return
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
        self._step(slot, KillAsked(ExitCause.KILLED, detail), now_s)
        return worker

    def stop_workers(self, now_s: float, *, at_once: bool) -> None:
        """End every worker and fetch; nothing starts from here on."""
        self.stopping = True
        detail = "lmx is shutting down"
        for slot in self.slots.values():
            slot.wanted = False
            if slot.state is SlotState.FETCHING:
                self._actions.stop_fetch(slot.model.id)
                slot.state = SlotState.COLD
            self._deny_waiters(slot, UnavailableError(ErrorCode.SHUTTING_DOWN, detail))
            if slot.worker is not None:
                ask = KillAsked if at_once else StopAsked
                self._step(slot, ask(ExitCause.SHUTDOWN, detail), now_s)

    # Facts.

    def adopt(self, instance: str, model_id: str, pid: int, held_bytes: int, now_s: float) -> bool:
        """Take over a worker that an earlier supervisor started; False if it has no place."""
        slot = self.slots.get(model_id)
        if slot is None or slot.worker is not None:
            return False
        slot.worker = lifecycle.adopted(instance, model_id, pid, self._limits(slot.model), now_s)
        slot.state, slot.wanted = SlotState.OCCUPIED, True
        slot.path = self._actions.local_path(slot.model)
        self._by_instance[instance] = slot
        self.ledger.adopt(instance, held_bytes)
        log.info("worker.adopted", model=model_id, instance=instance, worker_pid=pid)
        return True

    def knows(self, instance: str) -> bool:
        """Whether this instance is a worker of ours."""
        return instance in self._by_instance

    def worker(self, instance: str) -> Worker:
        """Return a worker of ours. Raises ``KeyError`` for another."""
        worker = self._by_instance[instance].worker
        assert worker is not None
        return worker

    def worker_said(self, instance: str, message: Any, now_s: float) -> None:
        """Take a worker's message; one of an unknown instance is dropped by the caller."""
        slot = self._by_instance[instance]
        self._step(slot, message, now_s)

    def worker_exited(self, instance: str, status: int | None, now_s: float) -> None:
        """Take the observed end of a worker process."""
        slot = self._by_instance.get(instance)
        if slot is not None:
            self._step(slot, ProcessExited(status), now_s)

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
            self._launch(slot, now_s)
        else:
            self._give_up(slot, outcome)

    def tick(self, now_s: float, paused_s: float) -> None:
        """Let time pass: deadlines of workers, backoffs and waiting requests."""
        for slot in self.slots.values():
            if slot.worker is not None:
                self._step(slot, Tick(paused_s), now_s)
            elif slot.retry_at_s is not None and now_s >= slot.retry_at_s:
                slot.retry_at_s = None
                slot.state = SlotState.COLD
                if slot.wanted:
                    self._begin(slot, now_s)
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

    # How a model comes up.

    def _begin(self, slot: Slot, now_s: float) -> None:
        slot.problem = None
        if slot.path is None:
            slot.path = self._actions.local_path(slot.model)
        if slot.path is not None:
            self._launch(slot, now_s)
            return
        slot.state = SlotState.FETCHING
        log.info("model.fetching", model=slot.model.id, source=slot.model.source)
        self._actions.start_fetch(slot.model)

    def _launch(self, slot: Slot, now_s: float) -> None:
        path = slot.path
        assert path is not None
        instance = new_instance_id()
        try:
            need_bytes = self._actions.estimate_bytes(slot.model, path)
            self.ledger.reserve(instance, need_bytes, slot.model.id)
        except LmxError as error:
            self._give_up(slot, error)
            return
        try:
            pid = self._actions.spawn(slot.model, instance, path, need_bytes)
        except OSError as error:
            self.ledger.release(instance)
            message = f"can't start a worker for {slot.model.id}: {error}"
            self._give_up(slot, UnavailableError(ErrorCode.MODEL_LOAD_FAILED, message))
            return
        limits = self._limits(slot.model)
        slot.worker = lifecycle.spawned(instance, slot.model.id, pid, limits, now_s)
        slot.state = SlotState.OCCUPIED
        self._by_instance[instance] = slot
        log.info(
            "worker.spawned", model=slot.model.id, instance=instance, worker_pid=pid,
            reserved_bytes=need_bytes, restarts=slot.restarts,
        )  # fmt: skip

    def _give_up(self, slot: Slot, error: LmxError) -> None:
        slot.state, slot.wanted, slot.problem = SlotState.COLD, False, error.message
        log.error("model.not_started", model=slot.model.id, code=error.code, error=error.message)
        self._deny_waiters(slot, error)

    def _limits(self, model: ModelConfig) -> Limits:
        timing = self.config.timing
        return Limits(
            start_s=timing.start_timeout_s,
            load_stall_s=timing.load_stall_timeout_s,
            beat_s=timing.beat_timeout_s,
            stall_s=model.stall_timeout_s or timing.stall_timeout_s,
            drain_s=timing.drain_timeout_s,
            term_grace_s=timing.term_grace_s,
            abort_grace_s=timing.abort_grace_s,
        )

    # One step of a worker's life, and its effects.

    def _step(self, slot: Slot, event: Any, now_s: float) -> None:
        before = slot.worker
        assert before is not None
        try:
            after, effects = lifecycle.step(before, event, now_s)
        except lifecycle.LifecycleError as error:
            # A worker that speaks out of turn is a bug to be seen, not a reason to fall.
            log.error("worker.unexpected_event", error=str(error))
            return
        slot.worker = after
        if after.state is not before.state:
            log.info(
                "worker.state", model=after.model_id, instance=after.instance,
                worker_pid=after.pid, state=after.state, was=before.state,
                cause=after.cause, detail=after.detail or None,
            )  # fmt: skip
        for effect in effects:
            match effect:
                case SendWelcome():
                    self._actions.send(after, control.Welcome(self.epoch))
                case SendDrain(if_idle):
                    self._actions.send(after, control.Drain(if_idle))
                case SendSignal(number):
                    self._actions.signal(after, number)
                case BecameReady(memory_bytes):
                    self._became_ready(slot, after, memory_bytes, now_s)
                case Ended(cause, detail):
                    self._ended(slot, after, cause, detail, now_s)

    def _became_ready(self, slot: Slot, worker: Worker, memory_bytes: int, now_s: float) -> None:
        self.ledger.correct(worker.instance, memory_bytes)
        slot.ready_at_s, slot.loaded_at_s = now_s, self._actions.wall_s()
        slot.problem = None
        acquired = control.Acquired(slot.model.id, worker.instance)
        # The snapshot goes first: a router must know the worker before it is told to use it.
        self.flush(now_s)
        for waiter in slot.waiters:
            self._actions.reply(waiter.asker, acquired)
        slot.waiters.clear()

    def _ended(
        self, slot: Slot, worker: Worker, cause: ExitCause, detail: str, now_s: float
    ) -> None:
        ready_for_s = 0.0 if slot.ready_at_s is None else now_s - slot.ready_at_s
        slot.worker = slot.ready_at_s = slot.loaded_at_s = None
        del self._by_instance[worker.instance]
        released_bytes = self.ledger.release(worker.instance)
        self._actions.forget(worker)
        self._actions.publish(control.WorkerExited(worker.instance, worker.model_id, cause, detail))
        slot.failures, decision = restart.after_exit(
            slot.failures, cause, wanted=slot.wanted and not self.stopping,
            was_ready_for_s=ready_for_s, now_s=now_s, jitter=random.random(),
            policy=self._policy,
        )  # fmt: skip
        log.info(
            "worker.exited", model=worker.model_id, instance=worker.instance,
            worker_pid=worker.pid, cause=cause, detail=detail,
            released_bytes=released_bytes, next=type(decision).__name__,
        )  # fmt: skip
        slot.problem = None if cause in _ASKED_FOR else detail
        if cause is ExitCause.LOAD_FAILED:
            self._deny_waiters(slot, UnavailableError(ErrorCode.MODEL_LOAD_FAILED, detail))
        match decision:
            case restart.StartAgain(wait_s) if wait_s > 0:
                slot.restarts += 1
                slot.state, slot.retry_at_s = SlotState.BACKOFF, now_s + wait_s
            case restart.StartAgain():
                slot.restarts += 1
                slot.state = SlotState.COLD
                self._begin(slot, now_s)
            case restart.StayDown():
                slot.state = SlotState.COLD
                self._deny_waiters(slot, UnavailableError(ErrorCode.MODEL_UNLOADED, detail))
            case restart.Quarantine(failures):
                slot.state, slot.wanted = SlotState.QUARANTINED, False
                slot.problem = (
                    f"failed {failures} times within {self._policy.window_s:g} s, last: {detail}. "
                    f"Mend it, then run `lmx-supervisor restart {slot.model.id}`"
                )
                self._deny_waiters(slot, quarantined(slot))

    def _deny_waiters(self, slot: Slot, error: LmxError) -> None:
        for waiter in slot.waiters:
            self._actions.reply(waiter.asker, denied(error))
        slot.waiters.clear()


_ASKED_FOR = (ExitCause.UNLOADED, ExitCause.SHUTDOWN, ExitCause.KILLED)


def quarantined(slot: Slot) -> UnavailableError:
    """Return the error for a request to a quarantined model."""
    return UnavailableError(
        ErrorCode.MODEL_QUARANTINED,
        f"{slot.model.id} is quarantined: {slot.problem}",
        retry_after_s=60.0,
    )


def denied(error: LmxError) -> control.Denied:
    """Return an error as the reply to a question."""
    return control.Denied(error.code, error.message, error.param, error.retry_after_s)
