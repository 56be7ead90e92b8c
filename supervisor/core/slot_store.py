"""The only owner of all slots. It takes events, replaces values, and carries out what follows.

:mod:`lmx.supervisor.decisions.slots.table` says what follows from an event. This module has one
thread and no awaits. What touches the world is behind
:class:`lmx.supervisor.core.actions.Actions`, so that all of it runs in tests without any. It does
not decide whether there is room for a model: :mod:`lmx.supervisor.decisions.placement` does.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, UnavailableError
from lmx.protocol.messages import control
from lmx.protocol.messages.status import LastExit
from lmx.protocol.states import ExitCause, SlotState, WorkerState
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.config.shutdown_timeout import term_grace_s
from lmx.supervisor.core.actions import Actions, WorkerStart
from lmx.supervisor.core.inspect_files import question_of, take
from lmx.supervisor.core.placement_input import positions
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.core.unavailable import denied, not_ready
from lmx.supervisor.decisions import lifecycle
from lmx.supervisor.decisions.ledger import Ledger, format_bytes
from lmx.supervisor.decisions.restart import RestartPolicy
from lmx.supervisor.decisions.slots import effects as effects_of
from lmx.supervisor.decisions.slots import events, table
from lmx.supervisor.decisions.slots.life import Rules
from lmx.supervisor.decisions.worker import Limits, SendDrain, SendSignal, SendWelcome, Worker
from lmx.supervisor.memory.inspection import Inspection
from lmx.supervisor.memory.plan import context_problem

log = structlog.get_logger()


@dataclass(eq=False, repr=False)
class SlotStore:
    """All slots by model id, and the model of each worker. ``notify_routers`` is called before
    requests get a worker, because a router must know a worker before it is to use it."""

    _settings: Settings
    _ledger: Ledger
    _actions: Actions
    _epoch: str
    _notify_routers: Callable[[float], None]
    slots: dict[str, Slot] = field(default_factory=dict, init=False)
    by_instance: dict[str, str] = field(default_factory=dict, init=False)
    """The model of each worker."""
    stopping: bool = field(default=False, init=False)
    """Whether lmx is being stopped, so that nothing is started any more."""
    swaps_total: int = field(default=0, init=False)
    """How many workers were evicted for another model."""
    _start_failure: str | None = field(default=None, init=False)
    """Why the system could not start a process the last time, None if it could."""

    def refuse_while_stopping(self) -> None:
        """Raise :class:`LmxError` (shutting_down) if lmx is being stopped."""
        if self.stopping:
            raise UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")

    @property
    def no_starts(self) -> str | None:
        """Why the system starts no process now; None if it can, or if no start is to follow that
        would show whether it can again."""
        retried = (SlotState.QUEUED, SlotState.BACKOFF)
        waits = any(slot.state in retried for slot in self.slots.values())
        return self._start_failure if waits else None

    def put(self, slot: Slot) -> None:
        """Replace the slot of a model by this value."""
        self.slots[slot.model.id] = slot

    def step(self, model_id: str, event: Any, now_s: float) -> None:
        """Take an event of a model, and carry out what follows."""
        before = self.slots[model_id]
        try:
            life, effects = table.step(before.life, event, self._rules, now_s)
        except lifecycle.LifecycleError as error:
            # An event that can't happen in this state is a bug to be seen, not a reason to crash.
            log.error("slot.unexpected_event", error=str(error))
            return
        self.put(before.with_life(life))
        _log_state(before.worker, life.worker)
        for effect in effects:
            self._carry_out(effect, before, life.worker, now_s)

    @property
    def _rules(self) -> Rules:
        config = self._settings.current.restart
        policy = RestartPolicy(
            config.backoff_base_s,
            config.backoff_max_s,
            config.stable_after_s,
            config.max_failures,
            config.window_s,
        )
        return Rules(policy, self.stopping)

    def limits(self, model: ModelConfig) -> Limits:
        """Return the deadlines of a worker that starts now. It keeps them as long as it runs."""
        timing = self._settings.current.timing
        return Limits(
            start_s=timing.start_timeout_s,
            load_stall_s=model.load_stall_timeout_s or timing.load_stall_timeout_s,
            beat_s=timing.beat_timeout_s,
            stall_s=model.stall_timeout_s or timing.stall_timeout_s,
            drain_s=timing.drain_timeout_s,
            term_grace_s=term_grace_s(timing),
            abort_grace_s=timing.abort_grace_s,
        )

    # Its files.

    def inspected(self, model_id: str, found: Inspection, now_s: float) -> None:
        """Take what a model's files say. A model that waited for that now waits for memory."""
        slot = self.slots[model_id]
        if not found.question.same_model(question_of(slot.model)):
            return  # it has another configuration by now, whose files are being read
        slot = take(slot, found, self._actions)
        self.put(slot)
        if slot.state is not SlotState.QUEUED or slot.plan is not None:
            return
        if found.problem is None and not found.whole:
            # Its folder was deleted, or its source was changed, after it was fetched.
            self._drop_path(slot)
            self.step(model_id, events.FilesMissing(), now_s)
            return
        problem = context_problem(slot.model, slot.files.facts.context_tokens)
        try:
            if problem is not None:
                raise UnavailableError(
                    ErrorCode.MODEL_SOURCE_INVALID, problem, param="context_length"
                )
            plan = self._actions.plan_memory(slot.model, found)
        except LmxError as error:
            if found.problem is not None and not found.by_host:
                self._drop_path(slot)
            event = events.NotStarted(error, by_host=found.by_host, jitter=random.random())
            self.step(model_id, event, now_s)
            return
        self.put(replace(slot, plan=plan, files=replace(slot.files, needs=plan)))
        self.step(model_id, events.Planned(plan.reserve_bytes), now_s)

    def _drop_path(self, slot: Slot) -> None:
        """Let the model's next start fetch it again, if it is not used where it is."""
        self.put(slot.with_files(replace(slot.files, path=None)))

    def _read_files(self, model_id: str, now_s: float) -> None:
        slot = self.slots[model_id]
        path = slot.files.path or self._actions.local_path(slot.model)
        if path is None:
            self.step(model_id, events.FilesMissing(), now_s)
            return
        self.put(slot.with_files(replace(slot.files, path=path)))
        found = self._actions.inspect(model_id, question_of(slot.model, str(path)))
        if found is not None:
            self.inspected(model_id, found, now_s)

    def _start_fetch(self, model: ModelConfig) -> None:
        sources = ", ".join((model.source, *model.hub_adapters))
        self._actions.note("model.fetching", model.id, sources)
        self._actions.start_fetch(model)

    # Its worker.

    def launch(self, model_id: str, now_s: float) -> None:
        """Reserve the bytes of a queued model and start its worker. There must be room."""
        slot = self.slots[model_id]
        path, kind, plan = slot.files.path, slot.files.kind, slot.plan
        assert path is not None and plan is not None
        if kind is None:
            # Its files have changed while it waited for memory.
            reason = f"the files of {model_id} are not those of a model any more"
            error = OperationError(ErrorCode.MODEL_SOURCE_INVALID, reason)
            self._drop_path(slot)
            self.step(model_id, events.NotStarted(error), now_s)
            return
        instance = self._actions.instance_for(slot.model)
        start = WorkerStart(instance, slot.model, path, kind, plan, slot.adapter_specs)
        try:
            self._ledger.reserve(instance, plan.reserve_bytes, model_id)
        except LmxError as error:
            self.step(model_id, events.NotStarted(error), now_s)
            return
        try:
            pid = self._actions.spawn(start)
        except (OSError, TypeError, ValueError, OverflowError) as error:
            self._ledger.release(instance)
            if isinstance(error, OSError):
                self._start_failure = f"no worker can be started: {error}"
            message = f"can't start a worker for {model_id}: {error}"
            problem = UnavailableError(ErrorCode.MODEL_LOAD_FAILED, message)
            by_host = isinstance(error, OSError)
            event = events.NotStarted(problem, by_host=by_host, jitter=random.random())
            self.step(model_id, event, now_s)
            return
        self._start_failure = None
        self.by_instance[instance] = model_id
        limits = self.limits(slot.model)
        worker = lifecycle.spawned(instance, model_id, pid, limits, now_s)
        self.step(model_id, events.Launched(worker), now_s)
        if slot.files.unfetched:
            self._drop_path(self.slots[model_id])
        self._actions.note(
            "worker.spawned", model_id, f"{format_bytes(plan.reserve_bytes)} reserved",
            instance=instance, worker_pid=pid, reserved_bytes=plan.reserve_bytes,
            restarts=slot.past.restarts,
        )  # fmt: skip

    def _worker_ready(self, effect: effects_of.WorkerReady) -> None:
        worker, memory_bytes = effect.worker, effect.memory_bytes
        slot = self.slots[worker.model_id]
        files, past = slot.files, slot.past
        if slot.plan is None:
            self._ledger.raise_to(worker.instance, memory_bytes)
        else:
            self._ledger.correct(worker.instance, slot.plan.corrected_bytes(memory_bytes))
            self._actions.remember(slot.plan, memory_bytes, 0)
            files = replace(files, needs=replace(slot.plan, static_bytes=memory_bytes))
        past = replace(
            past,
            loaded_at_s=self._actions.wall_s(),
            capabilities=worker.capabilities,
            template=worker.template,
            media=worker.media,
        )
        reserved_bytes = self._ledger.reserved_by(worker.instance)
        self._actions.keep_reservation(worker, reserved_bytes)
        if effect.load_s is not None:
            past = replace(
                past,
                loads_total=past.loads_total + 1,
                load_s_total=past.load_s_total + effect.load_s,
            )
            self._actions.note(
                "worker.ready", worker.model_id,
                f"loaded in {effect.load_s:.1f} s, {format_bytes(memory_bytes)}",
                instance=worker.instance, worker_pid=worker.pid, load_s=round(effect.load_s, 3),
                memory_bytes=memory_bytes, reserved_bytes=reserved_bytes,
            )  # fmt: skip
        self.put(replace(slot, files=files, past=past))

    def _worker_stuck(self, effect: effects_of.WorkerStuck) -> None:
        worker = effect.worker
        self._actions.note(
            "worker.stuck",
            worker.model_id,
            effect.detail,
            instance=worker.instance,
            worker_pid=worker.pid,
            reserved_bytes=self._ledger.reserved_by(worker.instance),
        )

    def _worker_gone(self, effect: effects_of.WorkerGone, before: Slot) -> None:
        worker, cause, detail = effect.worker, effect.cause, effect.detail
        del self.by_instance[worker.instance]
        held_bytes = self._ledger.exited(worker.instance)
        self._actions.measure_back(worker, held_bytes)
        # What a worker took that was out of bounds says nothing about what the next one needs.
        in_bounds = cause is not ExitCause.OUT_OF_MEMORY
        if before.plan is not None and effect.was_ready and in_bounds:
            self._actions.remember(
                before.plan, worker.ready_memory_bytes, worker.figures.peak_memory_bytes
            )
        self._actions.forget(worker)
        self._actions.publish(control.WorkerExited(worker.instance, worker.model_id, cause, detail))
        slot = self.slots[worker.model_id]
        past = replace(
            slot.past,
            exits=Counter(slot.past.exits) + Counter([cause]),
            loaded_at_s=None,
            last_exit=LastExit(
                cause=cause, detail=detail, at_s=self._actions.wall_s(), pid=worker.pid
            ),
            last_instance=worker.instance,
            restarts=slot.past.restarts + effect.restarts,
        )
        self.put(replace(slot, past=past))
        self.swaps_total += effect.swapped
        self._actions.note(
            "worker.exited", worker.model_id, detail, cause=str(cause), worker_pid=worker.pid,
            instance=worker.instance, released_bytes=held_bytes, next=effect.decision,
        )  # fmt: skip

    # All that may follow.

    def _carry_out(
        self, effect: effects_of.SlotEffect, before: Slot, worker: Worker | None, now_s: float
    ) -> None:
        model_id = before.model.id
        match effect:
            case effects_of.ReadFiles():
                self._read_files(model_id, now_s)
            case effects_of.StartFetch():
                self._start_fetch(before.model)
            case effects_of.StopFetch():
                self._actions.stop_fetch(model_id)
            case SendWelcome() | SendDrain() | SendSignal():
                assert worker is not None
                self._send_to_worker(effect, worker)
            case effects_of.Answer(waiters, instance):
                self._notify_routers(now_s)
                for waiter in waiters:
                    self._actions.reply(waiter.requester, control.Acquired(model_id, instance))
            case effects_of.Deny(waiters, error):
                for waiter in waiters:
                    self._actions.reply(waiter.requester, denied(error))
            case effects_of.NotifyLate(waiters):
                place = positions(self.slots.values(), now_s).get(model_id)
                late = not_ready(self.slots[model_id], place, now_s)
                for waiter in waiters:
                    self._actions.reply(waiter.requester, late)
            case effects_of.WorkerReady():
                self._worker_ready(effect)
            case effects_of.WorkerMeasured(measured):
                # Peaks count too: a cache that has grown is memory that no other model can have.
                self._ledger.raise_to(measured.instance, measured.figures.held_bytes)
            case effects_of.WorkerStuck():
                self._worker_stuck(effect)
            case effects_of.WorkerGone():
                self._worker_gone(effect, before)
            case effects_of.Note(name, detail, data):
                self._actions.note(name, model_id, detail, **data)
            case effects_of.LogNoCapacity(detail):
                log.error("model.no_capacity", model=model_id, error=detail)
            case effects_of.Gone():
                del self.slots[model_id]
            case _:
                assert_never(effect)

    def _send_to_worker(self, effect: SendWelcome | SendDrain | SendSignal, worker: Worker) -> None:
        match effect:
            case SendWelcome():
                self._actions.send(worker, control.Welcome(self._epoch))
            case SendDrain(if_idle):
                self._actions.send(worker, control.Drain(if_idle))
            case SendSignal(number):
                self._actions.signal(worker, number)


def _log_state(before: Worker | None, after: Worker | None) -> None:
    """Log a worker's change of state. That it is ready, or has gone, is an event already, and is
    not logged here."""
    if before is None or after is None or before.state is after.state:
        return
    if after.state is not WorkerState.READY:
        log.info(
            "worker.state", model=after.model_id, instance=after.instance, worker_pid=after.pid,
            state=after.state, was=before.state, cause=after.cause, detail=after.detail or None,
        )  # fmt: skip
