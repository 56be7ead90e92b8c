"""A slot with a worker: what the worker reports, how it is asked to end, and what follows its end.
This module is pure. The worker's own states are in :mod:`lmx.supervisor.decisions.lifecycle`."""

from typing import Any, Final, assert_never

from lmx.protocol.messages import control
from lmx.protocol.states import ExitCause, SlotState, WorkerState
from lmx.supervisor.decisions import lifecycle, restart
from lmx.supervisor.decisions.lifecycle import LifecycleError
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.decisions.slots import transitions as to
from lmx.supervisor.decisions.slots.effects import (
    Gone,
    Note,
    WorkerGone,
    WorkerMeasured,
    WorkerReady,
    WorkerStuck,
)
from lmx.supervisor.decisions.slots.life import Intent, Rules, SlotLife
from lmx.supervisor.decisions.slots.transitions import Effects, Result
from lmx.supervisor.decisions.worker import (
    BecameReady,
    DrainRequested,
    Ended,
    ProcessExited,
    SendDrain,
    SendSignal,
    SendWelcome,
    Stuck,
    Tick,
    Worker,
)

_ASKED_FOR: Final = (
    ExitCause.UNLOADED,
    ExitCause.SHUTDOWN,
    ExitCause.KILLED,
    ExitCause.EVICTED,
    ExitCause.EXPIRED,
)
_MADE_ROOM: Final = (ExitCause.EVICTED, ExitCause.EXPIRED)


def adopt(life: SlotLife, event: events.Adopted, _rules: Rules, now_s: float) -> Result:
    """The worker of an earlier supervisor is taken over. A model that is held has none."""
    effects = to.stop_fetch(life)
    after = to.enter(
        life, SlotState.OCCUPIED, worker=event.worker, intent=to.intended(life, Intent.UP)
    )
    if life.intent is not Intent.HELD:
        return after, effects
    detail = "an operator drained the model, before this supervisor took over"
    after, drained = drain(after, ExitCause.UNLOADED, detail, now_s)
    return after, (*effects, *drained)


def evict(life: SlotLife, event: events.Evicted, rules: Rules, now_s: float) -> Result:
    """The worker must give its memory back, and nobody wants the model until somebody asks again.
    Only a worker that takes requests is evicted."""
    if life.ready_worker is None:
        return to.never(life, event, rules, now_s)
    after = to.changed(life, intent=to.intended(life, Intent.DOWN), evicted_for=event.for_model)
    return drain(after, event.cause, event.detail, now_s, if_idle=event.if_idle)


def drain(
    life: SlotLife, cause: ExitCause, detail: str, now_s: float, *, if_idle: bool = False
) -> Result:
    """The worker must end after its streams."""
    return step_worker(life, DrainRequested(if_idle, cause, detail), now_s)


def worker_reported(life: SlotLife, event: Any, _rules: Rules, now_s: float) -> Result:
    """The worker sent a message, or must be killed."""
    return step_worker(life, event, now_s)


def tick_occupied(life: SlotLife, event: Tick, _rules: Rules, now_s: float) -> Result:
    """Check the deadlines of the worker and of the requests that wait."""
    after, effects = step_worker(life, event, now_s)
    after, late = to.lapse(after, now_s)
    return after, (*effects, *late)


def _occupant(life: SlotLife) -> Worker:
    if life.worker is None:
        raise LifecycleError(f"the slot of {life.model_id} is {life.state} without a worker")
    return life.worker


def step_worker(life: SlotLife, event: Any, now_s: float) -> Result:
    """Take any event of the slot's worker except its end."""
    before = _occupant(life)
    worker, effects = lifecycle.step(before, event, now_s)
    life = to.changed(life, worker=worker)
    out: Effects = ()
    for effect in effects:
        match effect:
            case SendWelcome() | SendDrain() | SendSignal():
                out = (*out, effect)
            case BecameReady(memory_bytes):
                life, more = _became_ready(life, worker, memory_bytes, now_s)
                out = (*out, *more)
            case Stuck():
                life, denied = to.deny_waiters(life, to.stuck_error(life.model_id))
                life = to.changed(life, problem=to.failed_error(to.STUCK))
                out = (*out, WorkerStuck(worker, to.STUCK), *denied)
            case Ended():
                raise LifecycleError(f"the worker of {life.model_id} ended without its exit")
            case _:
                assert_never(effect)
    if isinstance(event, control.WorkerBeat):
        return life, (*out, WorkerMeasured(worker))
    if isinstance(event, control.DrainRefused) and worker.state is WorkerState.READY:
        life, more = _stays(life, before, worker)
        return life, (*out, *more)
    return life, out


def _became_ready(life: SlotLife, worker: Worker, memory_bytes: int, now_s: float) -> Result:
    load_s = None if life.spawned_at_s is None else now_s - life.spawned_at_s
    after, answer = to.answer_all(to.changed(life, ready_at_s=now_s, problem=None), worker)
    return after, (WorkerReady(worker, memory_bytes, load_s), *answer)


def _stays(life: SlotLife, before: Worker, worker: Worker) -> Result:
    """The worker stays after all, and the requests that came meanwhile get it."""
    effects: Effects = ()
    if before.state is WorkerState.DRAINING:
        waits_on = "" if life.evicted_for is None else f": {life.evicted_for} waits on"
        data = {"for_model": life.evicted_for}
        effects = (Note("model.stays", f"it was busy{waits_on}", data),)
    after = to.changed(life, intent=to.intended(life, Intent.UP), evicted_for=None)
    after, answer = to.answer_all(after, worker)
    return after, (*effects, *answer)


def exited(life: SlotLife, event: events.Exited, rules: Rules, now_s: float) -> Result:
    """The worker is gone. What follows depends on the cause and on the intent."""
    end = ProcessExited(event.status, event.out_of_memory)
    worker, (ended, *_) = lifecycle.step(_occupant(life), end, now_s)
    assert isinstance(ended, Ended)
    cause, detail = ended.cause, ended.detail
    failures, decision = restart.after_exit(
        life.failures, cause, wanted=life.wanted and not rules.stopping,
        was_ready_for_s=0.0 if life.ready_at_s is None else now_s - life.ready_at_s, now_s=now_s,
        jitter=event.jitter, policy=rules.restart, permanent=worker.permanent,
    )  # fmt: skip
    again = isinstance(decision, restart.StartAgain) and life.intent is not Intent.HELD
    gone = WorkerGone(
        worker,
        cause,
        detail,
        was_ready=life.ready_at_s is not None,
        swapped=cause is ExitCause.EVICTED and life.evicted_for is not None,
        restarts=again and cause not in _MADE_ROOM,
        decision=type(decision).__name__,
    )
    problem = None if cause in _ASKED_FOR else to.failed_error(detail)
    after = to.enter(life, SlotState.COLD, failures=failures, problem=problem)
    denied: Effects = ()
    if cause in (ExitCause.LOAD_FAILED, ExitCause.HOST):
        after, denied = to.deny_all(after, to.failed_error(detail))
    after, effects = _after_exit(after, decision, worker, rules, now_s)
    if life.intent is Intent.REMOVED:
        effects = (*effects, Gone())
    return after, (gone, *denied, *effects)


def _after_exit(
    life: SlotLife, decision: restart.Decision, worker: Worker, rules: Rules, now_s: float
) -> Result:
    if life.intent is Intent.HELD:
        return to.enter(life, SlotState.HELD), ()
    match decision:
        case restart.StartAgain(wait_s):
            if wait_s <= 0:
                return to.begin(life, rules)
            note = Note(
                "model.backoff", f"starts again in {wait_s:.1f} s", {"wait_s": round(wait_s, 3)}
            )
            return to.enter(life, SlotState.BACKOFF, retry_at_s=now_s + wait_s), (note,)
        case restart.StayDown():
            return to.deny_all(life, to.unloaded_error(worker.detail))
        case restart.Quarantine():
            return to.quarantine(life, decision, worker.detail, rules, permanent=worker.permanent)
        case _:
            assert_never(decision)
