"""How one model comes up, lives and goes: a slot, its worker, the ledger's bytes for it.

Carries out what ``lifecycle.step`` and ``restart.after_exit`` decide. One thread, no awaits; what
touches the world is behind :class:`Actions`, so that all of it runs in tests without any. Whether
there is room for a model is not decided here: :mod:`lmx.supervisor.decisions.placement`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, assert_never

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.messages import control
from lmx.protocol.states import ExitCause, SlotState, WorkerState
from lmx.protocol.wire.endpoints import new_instance_id
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.inspect_files import question_of, take
from lmx.supervisor.core.slot import LastExit, Slot
from lmx.supervisor.core.slot_failures import SlotFailures
from lmx.supervisor.decisions import lifecycle, restart
from lmx.supervisor.decisions.ledger import Ledger, format_bytes
from lmx.supervisor.decisions.worker import (
    BecameReady,
    Ended,
    Limits,
    SendDrain,
    SendSignal,
    SendWelcome,
    Stuck,
    Worker,
)
from lmx.supervisor.memory.inspection import Inspection
from lmx.supervisor.memory.plan import context_problem

log = structlog.get_logger()

_ASKED_FOR = (
    ExitCause.UNLOADED,
    ExitCause.SHUTDOWN,
    ExitCause.KILLED,
    ExitCause.EVICTED,
    ExitCause.EXPIRED,
)
_NOTED = (WorkerState.READY, WorkerState.EXITED)
_MADE_ROOM = (ExitCause.EVICTED, ExitCause.EXPIRED)


class SlotLife:
    """Starts and ends workers of slots. The slots are their owner's; ``by_instance`` says whose
    worker is whose. ``hindrance``: why the system let no process start, the last time.
    ``became_ready`` is called before requests are told of a new worker."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        actions: Actions,
        epoch: str,
        became_ready: Callable[[float], None],
    ) -> None:
        self.by_instance: dict[str, Slot] = {}
        self.stopping = False
        self.swaps_total = 0
        self.hindrance: str | None = None
        self._settings = settings
        self._ledger = ledger
        self._actions = actions
        self._epoch = epoch
        self._tell_ready = became_ready
        self.failures = SlotFailures(settings, actions)

    def begin(self, slot: Slot, now_s: float) -> None:
        """Bring a cold slot on its way: fetch the model if it is not on this machine, else let
        it wait for memory."""
        if self.stopping:
            return
        slot.problem = slot.given_up = None
        if slot.path is None:
            slot.path = self._actions.local_path(slot.model)
        if slot.path is not None:
            self.enqueue(slot, now_s)
            return
        slot.state = SlotState.FETCHING
        self._actions.note("model.fetching", slot.model.id, slot.model.source)
        self._actions.start_fetch(slot.model)

    def enqueue(self, slot: Slot, now_s: float) -> None:
        """Have a cold slot whose path is known wait for the memory that it needs, once its files
        have been read."""
        assert slot.path is not None
        slot.state, slot.plan, slot.queue_told = SlotState.QUEUED, None, False
        # Read anew at each start: the folder may hold another model by now, and what was
        # measured of it since may have made the plan another one.
        question = question_of(slot.model, str(slot.path))
        found = self._actions.inspect(slot.model.id, question)
        if found is not None:
            self.inspected(slot, found, now_s)

    def inspected(self, slot: Slot, found: Inspection, now_s: float) -> None:
        """Take what a model's files say; one that waited for it waits for memory from here on."""
        if not found.question.same_model(question_of(slot.model)):
            return  # it has another configuration by now, whose files are being read
        take(slot, found, self._actions)
        if slot.state is not SlotState.QUEUED or slot.plan is not None:
            return
        problem = context_problem(slot.model, slot.facts.context_tokens)
        if problem is not None:
            error = UnavailableError(
                ErrorCode.MODEL_SOURCE_INVALID, problem, param="context_length"
            )
            self.failures.give_up(slot, error, now_s)
            return
        try:
            slot.plan = slot.needs = self._actions.plan_memory(slot.model, found)
        except LmxError as error:
            self.failures.give_up(slot, error, now_s)

    def launch(self, slot: Slot, now_s: float) -> None:
        """Reserve the bytes and spawn the worker of a queued slot; there must be room."""
        path, kind, plan = slot.path, slot.kind, slot.plan
        assert path is not None and kind is not None and plan is not None
        instance = new_instance_id()
        try:
            self._ledger.reserve(instance, plan.reserve_bytes, slot.model.id)
        except LmxError as error:
            self.failures.give_up(slot, error, now_s)
            return
        try:
            pid = self._actions.spawn(slot.model, instance, path, kind, plan)
        except (OSError, TypeError, ValueError, OverflowError) as error:
            self._ledger.release(instance)
            if isinstance(error, OSError):
                self.hindrance = f"no worker can be started: {error}"
            message = f"can't start a worker for {slot.model.id}: {error}"
            self.failures.give_up(
                slot, UnavailableError(ErrorCode.MODEL_LOAD_FAILED, message), now_s
            )
            return
        self.hindrance = None
        limits = self.limits(slot.model)
        slot.worker = lifecycle.spawned(instance, slot.model.id, pid, limits, now_s)
        slot.state, slot.spawned_at_s = SlotState.OCCUPIED, now_s
        self.by_instance[instance] = slot
        self._actions.note(
            "worker.spawned", slot.model.id, f"{format_bytes(plan.reserve_bytes)} reserved",
            instance=instance, worker_pid=pid, reserved_bytes=plan.reserve_bytes,
            restarts=slot.restarts,
        )  # fmt: skip

    def park(self, slot: Slot, state: SlotState) -> None:
        """Leave a slot that has no worker in a state in which nothing happens."""
        if slot.state is SlotState.FETCHING:
            self._actions.stop_fetch(slot.model.id)
            slot.fetch_phase = slot.fetch_fraction = None
        slot.state, slot.retry_at_s, slot.problem, slot.plan = state, None, None, None

    def limits(self, model: ModelConfig) -> Limits:
        """Return the deadlines of a worker that starts now; it keeps them as long as it runs."""
        timing = self._settings.current.timing
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
        if after.state is not before.state and after.state not in _NOTED:
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
                case Stuck():
                    detail = "not even SIGKILL ends it: its memory stays taken until it does"
                    slot.problem = detail
                    self._actions.note(
                        "worker.stuck", slot.model.id, detail,
                        instance=after.instance, worker_pid=after.pid,
                        reserved_bytes=self._ledger.reserved_by(after.instance),
                    )  # fmt: skip
                case Ended(cause, detail):
                    self._ended(slot, after, cause, detail, now_s)
                case _:
                    assert_never(effect)
        if slot.worker is not after:
            return
        if isinstance(event, control.WorkerBeat):
            # At peaks too: a cache that has grown is memory that others can't have.
            self._ledger.raise_to(after.instance, after.figures.memory_bytes)
        elif isinstance(event, control.DrainRefused) and after.state is WorkerState.READY:
            # It stays after all; so do those who asked for it while it was to go.
            if before.state is WorkerState.DRAINING:
                waits_on = "" if slot.evicted_for is None else f": {slot.evicted_for} waits on"
                self._actions.note(
                    "model.stays", slot.model.id, f"it was busy{waits_on}",
                    for_model=slot.evicted_for,
                )  # fmt: skip
            slot.wanted, slot.evicted_for = True, None
            self._tell_waiters(slot, after, now_s)

    def _became_ready(self, slot: Slot, worker: Worker, memory_bytes: int, now_s: float) -> None:
        slot.ready_at_s, slot.loaded_at_s = now_s, self._actions.wall_s()
        slot.capabilities = worker.capabilities
        slot.problem = None
        if slot.plan is None or worker.adopted:
            self._ledger.raise_to(worker.instance, memory_bytes)
        else:
            self._ledger.correct(worker.instance, slot.plan.corrected_bytes(memory_bytes))
            self._actions.remember(slot.plan, memory_bytes, 0)
            slot.needs = replace(slot.plan, static_bytes=memory_bytes)
        reserved_bytes = self._ledger.reserved_by(worker.instance)
        self._actions.keep_reservation(worker, reserved_bytes)
        if slot.spawned_at_s is not None:
            took_s = now_s - slot.spawned_at_s
            slot.loads_total += 1
            slot.load_s_total += took_s
            self._actions.note(
                "worker.ready", slot.model.id,
                f"loaded in {took_s:.1f} s, {format_bytes(memory_bytes)}",
                instance=worker.instance, worker_pid=worker.pid, load_s=round(took_s, 3),
                memory_bytes=memory_bytes, reserved_bytes=reserved_bytes,
            )  # fmt: skip
        self._tell_waiters(slot, worker, now_s)

    def _tell_waiters(self, slot: Slot, worker: Worker, now_s: float) -> None:
        # The snapshot goes first: a router must know the worker before it is told to use it.
        self._tell_ready(now_s)
        for waiter in slot.take_waiters():
            acquired = control.Acquired(slot.model.id, worker.instance)
            self._actions.reply(waiter.asker, acquired)

    def _ended(
        self, slot: Slot, worker: Worker, cause: ExitCause, detail: str, now_s: float
    ) -> None:
        ready_for_s = 0.0 if slot.ready_at_s is None else now_s - slot.ready_at_s
        plan, was_ready = slot.plan, slot.ready_at_s is not None
        # What is in memory alone comes first, so that nothing keeps the slot from going on.
        slot.worker = slot.ready_at_s = slot.loaded_at_s = slot.spawned_at_s = slot.plan = None
        slot.state = SlotState.COLD
        del self.by_instance[worker.instance]
        held_bytes = self._ledger.exited(worker.instance)
        self._actions.measure_back(worker, held_bytes)
        # What one took that was out of bounds says nothing of what the next one needs.
        in_bounds = cause is not ExitCause.OUT_OF_MEMORY
        if plan is not None and was_ready and not worker.adopted and in_bounds:
            self._actions.remember(
                plan, worker.ready_memory_bytes, worker.figures.peak_memory_bytes
            )
        self._actions.forget(worker)
        self._actions.publish(control.WorkerExited(worker.instance, worker.model_id, cause, detail))
        slot.exits[cause] += 1
        slot.last_exit = LastExit(
            cause, detail, self._actions.wall_s(), worker.instance, worker.pid
        )
        if cause is ExitCause.EVICTED and slot.evicted_for is not None:
            self.swaps_total += 1
        slot.evicted_for = None
        decision = self.failures.judge(
            slot, cause, wanted=slot.wanted and not self.stopping, was_ready_for_s=ready_for_s,
            permanent=worker.permanent, now_s=now_s,
        )  # fmt: skip
        self._actions.note(
            "worker.exited", worker.model_id, detail, cause=str(cause), worker_pid=worker.pid,
            instance=worker.instance, released_bytes=held_bytes, next=type(decision).__name__,
        )  # fmt: skip
        slot.problem = None if cause in _ASKED_FOR else detail
        if cause is ExitCause.LOAD_FAILED:
            self.failures.deny_waiters(slot, UnavailableError(ErrorCode.MODEL_LOAD_FAILED, detail))
        self._after(slot, decision, cause, detail, now_s, permanent=worker.permanent)

    def _after(
        self,
        slot: Slot,
        decision: restart.Decision,
        cause: ExitCause,
        detail: str,
        now_s: float,
        *,
        permanent: bool,
    ) -> None:
        if slot.held:
            slot.state = SlotState.HELD
            return
        match decision:
            case restart.StartAgain(wait_s):
                slot.restarts += cause not in _MADE_ROOM
                if wait_s > 0:
                    slot.state, slot.retry_at_s = SlotState.BACKOFF, now_s + wait_s
                    self._actions.note(
                        "model.backoff", slot.model.id, f"starts again in {wait_s:.1f} s",
                        wait_s=round(wait_s, 3),
                    )  # fmt: skip
                else:
                    slot.state = SlotState.COLD
                    self.begin(slot, now_s)
            case restart.StayDown():
                slot.state = SlotState.COLD
                self.failures.deny_waiters(slot, UnavailableError(ErrorCode.MODEL_UNLOADED, detail))
            case restart.Quarantine(failures):
                self.failures.quarantine(slot, failures, detail, permanent=permanent)
            case _:
                assert_never(decision)
