"""How one model comes up, lives and goes: a slot, its worker, the ledger's bytes for it.

Carries out what ``lifecycle.step`` and ``restart.after_exit`` decide. One thread, no awaits; what
touches the world is behind :class:`Actions`, so that all of it runs in tests without any.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, assert_never

import structlog

from lmx.protocol import control
from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.ids import new_instance_id
from lmx.protocol.states import ExitCause, ModelKind, SlotState
from lmx.supervisor import lifecycle, restart
from lmx.supervisor.budget import Ledger
from lmx.supervisor.config import Config, ModelConfig
from lmx.supervisor.memory_plan import MemoryPlan
from lmx.supervisor.slots import Asker, Slot
from lmx.supervisor.worker_state import (
    BecameReady,
    Ended,
    Limits,
    SendDrain,
    SendSignal,
    SendWelcome,
    Worker,
)

log = structlog.get_logger()

_ASKED_FOR = (ExitCause.UNLOADED, ExitCause.SHUTDOWN, ExitCause.KILLED)


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

    def model_kind(self, model: ModelConfig, path: Path) -> ModelKind:
        """Return what the model is for: as configured, else as its folder tells."""

    def plan_memory(self, model: ModelConfig, kind: ModelKind, path: Path) -> MemoryPlan:
        """Return what a worker will need. Raises :class:`LmxError`."""

    def spawn(
        self, model: ModelConfig, instance: str, path: Path, kind: ModelKind, plan: MemoryPlan
    ) -> int:
        """Start a worker and return its pid. Raises ``OSError``, or ``TypeError`` and
        ``OverflowError`` for a configuration that can't travel."""

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


class SlotLife:
    """Starts and ends workers of slots. The slots are their owner's; ``by_instance`` says whose
    worker is whose. ``became_ready`` is called before requests are told of a new worker."""

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        actions: Actions,
        epoch: str,
        became_ready: Callable[[float], None],
    ) -> None:
        self.by_instance: dict[str, Slot] = {}
        self.stopping = False
        self._config = config
        self._ledger = ledger
        self._actions = actions
        self._epoch = epoch
        self._tell_ready = became_ready
        self._policy = restart.RestartPolicy(
            config.restart.backoff_base_s,
            config.restart.backoff_max_s,
            config.restart.stable_after_s,
            config.restart.max_failures,
            config.restart.window_s,
        )

    def begin(self, slot: Slot, now_s: float) -> None:
        """Start a cold slot's model: fetch it first if it is not on this machine."""
        if self.stopping:
            return
        slot.problem = None
        if slot.path is None:
            slot.path = self._actions.local_path(slot.model)
        if slot.path is not None:
            self.launch(slot, now_s)
            return
        slot.state = SlotState.FETCHING
        log.info("model.fetching", model=slot.model.id, source=slot.model.source)
        self._actions.start_fetch(slot.model)

    def launch(self, slot: Slot, now_s: float) -> None:
        """Reserve the bytes and spawn the worker of a cold slot whose path is known."""
        if self.stopping:
            return
        path = slot.path
        assert path is not None
        instance = new_instance_id()
        # Read anew at each start: the folder may hold another model by now.
        slot.kind = kind = self._actions.model_kind(slot.model, path)
        try:
            plan = self._actions.plan_memory(slot.model, kind, path)
            need_bytes = plan.reserve_bytes
            self._ledger.reserve(instance, need_bytes, slot.model.id)
        except LmxError as error:
            self.give_up(slot, error, now_s)
            return
        try:
            pid = self._actions.spawn(slot.model, instance, path, kind, plan)
        except (OSError, TypeError, OverflowError) as error:
            self._ledger.release(instance)
            message = f"can't start a worker for {slot.model.id}: {error}"
            self.give_up(slot, UnavailableError(ErrorCode.MODEL_LOAD_FAILED, message), now_s)
            return
        limits = self.limits(slot.model)
        slot.worker = lifecycle.spawned(instance, slot.model.id, pid, limits, now_s)
        slot.state = SlotState.OCCUPIED
        self.by_instance[instance] = slot
        log.info(
            "worker.spawned", model=slot.model.id, instance=instance, worker_pid=pid,
            reserved_bytes=need_bytes, restarts=slot.restarts,
        )  # fmt: skip

    def give_up(self, slot: Slot, error: LmxError, now_s: float) -> None:
        """Leave the slot cold, with its problem told to whoever waits.

        A source that keeps failing is quarantined like a worker that does, or each request
        would fetch it anew. Missing memory is no fault of the model's.
        """
        slot.state, slot.wanted, slot.problem = SlotState.COLD, False, error.message
        log.error("model.not_started", model=slot.model.id, code=error.code, error=error.message)
        self.deny_waiters(slot, error)
        if error.code is ErrorCode.INSUFFICIENT_MEMORY:
            return
        slot.failures, decision = restart.after_exit(
            slot.failures, ExitCause.LOAD_FAILED, wanted=False, was_ready_for_s=0.0,
            now_s=now_s, jitter=0.0, policy=self._policy,
        )  # fmt: skip
        if isinstance(decision, restart.Quarantine):
            self._quarantine(slot, decision.failures, error.message)

    def limits(self, model: ModelConfig) -> Limits:
        """Return the deadlines of a model's worker."""
        timing = self._config.timing
        return Limits(
            start_s=timing.start_timeout_s,
            load_stall_s=model.load_stall_timeout_s or timing.load_stall_timeout_s,
            beat_s=timing.beat_timeout_s,
            stall_s=model.stall_timeout_s or timing.stall_timeout_s,
            drain_s=timing.drain_timeout_s,
            term_grace_s=timing.term_grace_s,
            abort_grace_s=timing.abort_grace_s,
        )

    def step(self, slot: Slot, event: Any, now_s: float) -> None:
        """Take an event of the slot's worker, and carry out what follows."""
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
                    self._actions.send(after, control.Welcome(self._epoch))
                case SendDrain(if_idle):
                    self._actions.send(after, control.Drain(if_idle))
                case SendSignal(number):
                    self._actions.signal(after, number)
                case BecameReady(memory_bytes):
                    self._became_ready(slot, after, memory_bytes, now_s)
                case Ended(cause, detail):
                    self._ended(slot, after, cause, detail, now_s)
                case _:
                    assert_never(effect)
        if isinstance(event, control.WorkerBeat) and slot.worker is after:
            # At peaks too: a cache that has grown is memory that others can't have.
            self._ledger.raise_to(after.instance, after.memory_bytes)

    def _became_ready(self, slot: Slot, worker: Worker, memory_bytes: int, now_s: float) -> None:
        self._ledger.raise_to(worker.instance, memory_bytes)
        slot.ready_at_s, slot.loaded_at_s = now_s, self._actions.wall_s()
        slot.problem = None
        acquired = control.Acquired(slot.model.id, worker.instance)
        # The snapshot goes first: a router must know the worker before it is told to use it.
        self._tell_ready(now_s)
        for waiter in slot.waiters:
            self._actions.reply(waiter.asker, acquired)
        slot.waiters.clear()

    def _ended(
        self, slot: Slot, worker: Worker, cause: ExitCause, detail: str, now_s: float
    ) -> None:
        ready_for_s = 0.0 if slot.ready_at_s is None else now_s - slot.ready_at_s
        slot.worker = slot.ready_at_s = slot.loaded_at_s = None
        del self.by_instance[worker.instance]
        released_bytes = self._ledger.release(worker.instance)
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
            self.deny_waiters(slot, UnavailableError(ErrorCode.MODEL_LOAD_FAILED, detail))
        match decision:
            case restart.StartAgain(wait_s) if wait_s > 0:
                slot.restarts += 1
                slot.state, slot.retry_at_s = SlotState.BACKOFF, now_s + wait_s
            case restart.StartAgain():
                slot.restarts += 1
                slot.state = SlotState.COLD
                self.begin(slot, now_s)
            case restart.StayDown():
                slot.state = SlotState.COLD
                self.deny_waiters(slot, UnavailableError(ErrorCode.MODEL_UNLOADED, detail))
            case restart.Quarantine(failures):
                self._quarantine(slot, failures, detail)

    def _quarantine(self, slot: Slot, failures: int, detail: str) -> None:
        slot.state, slot.wanted = SlotState.QUARANTINED, False
        slot.problem = (
            f"failed {failures} times within {self._policy.window_s:g} s, last: "
            f"{detail.rstrip('.')}. Mend it, then run `lmx-supervisor restart {slot.model.id}`"
        )
        self.deny_waiters(slot, quarantined(slot))

    def deny_waiters(self, slot: Slot, error: LmxError) -> None:
        """Tell every request that waits for the model that it waits in vain."""
        for waiter in slot.waiters:
            self._actions.reply(waiter.asker, denied(error))
        slot.waiters.clear()


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
