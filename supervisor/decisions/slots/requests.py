"""Handles what requests, operators and the configuration want from a model's slot. This module is
pure."""

from dataclasses import replace
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.states import ExitCause, SlotState
from lmx.supervisor.decisions.restart import FailureRecord
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.decisions.slots import transitions as to
from lmx.supervisor.decisions.slots.demand import MAX_WAITERS
from lmx.supervisor.decisions.slots.effects import Answer, Deny, Gone, Note
from lmx.supervisor.decisions.slots.life import Intent, Rules, SlotLife
from lmx.supervisor.decisions.slots.occupied import drain, step_worker
from lmx.supervisor.decisions.slots.transitions import Result
from lmx.supervisor.decisions.worker import KillRequested, StopRequested

# Requests.


def ask(life: SlotLife, event: events.Requested, rules: Rules, now_s: float) -> Result:
    """The request waits, if one more may wait."""
    error = _refusal(life, rules)
    if error is not None:
        return life, (Deny((event.waiter,), error),)
    demand = life.demand
    if demand.requested_at_s(now_s) is None:
        demand = replace(demand, joined=life.wanted and life.state is not SlotState.COLD)
    demand = demand.with_waiter(event.waiter)
    return to.changed(life, demand=demand, intent=to.intended(life, Intent.UP)), ()


def ask_cold(life: SlotLife, event: events.Requested, rules: Rules, now_s: float) -> Result:
    """The request makes the model start."""
    after, effects = ask(life, event, rules, now_s)
    return (after, effects) if effects else to.begin(after, rules)


def ask_occupied(life: SlotLife, event: events.Requested, rules: Rules, now_s: float) -> Result:
    """The request waits for the worker, or for the next one if this one is about to end."""
    worker = life.ready_worker
    if worker is not None:
        return life, (Answer((event.waiter,), worker.instance),)
    if life.held:
        return ask_held(life, event, rules, now_s)
    if life.removed:
        error = to.unloaded_error(f"{life.model_id} is no longer configured")
        return life, (Deny((event.waiter,), error),)
    if life.worker is not None and life.worker.stuck:
        return life, (Deny((event.waiter,), to.stuck_error(life.model_id)),)
    return ask(life, event, rules, now_s)


def ask_held(life: SlotLife, event: events.Requested, _rules: Rules, _now_s: float) -> Result:
    """A model that an operator drained takes no request."""
    return life, (Deny((event.waiter,), to.drained_error(life.model_id)),)


def ask_quarantined(
    life: SlotLife, event: events.Requested, _rules: Rules, _now_s: float
) -> Result:
    """A request does not start a model in quarantine."""
    problem = life.problem.message if life.problem else ""
    return life, (Deny((event.waiter,), to.quarantined_error(life.model_id, problem)),)


def _refusal(life: SlotLife, rules: Rules) -> LmxError | None:
    if rules.stopping:
        return UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")
    if life.files_leaving:
        return to.files_leaving_error(life.model_id)
    if life.demand.is_full:
        return UnavailableError(
            ErrorCode.QUEUE_FULL,
            f"{MAX_WAITERS} requests wait for {life.model_id} already",
            retry_after_s=10.0,
        )
    return None


def files_leaving(
    life: SlotLife, event: events.FilesLeaving, _rules: Rules, _now_s: float
) -> Result:
    """Nothing is begun with files that are being deleted. Whoever deletes them has seen to it that
    nothing uses them now."""
    problem = life.problem
    if problem is not None and problem.message == to.files_leaving_error(life.model_id).message:
        problem = None
    return to.changed(life, files_leaving=event.leaving, problem=problem), ()


def withdraw(life: SlotLife, event: events.Withdrawn, _rules: Rules, _now_s: float) -> Result:
    """What has begun continues, although the requests have left."""
    return to.changed(life, demand=life.demand.without(event.identity)), ()


def withdraw_queued(life: SlotLife, event: events.Withdrawn, _rules: Rules, now_s: float) -> Result:
    """No model is evicted for a model that nobody waits for any more. One that was on its way
    before they came, as a preload is, waits as it did then."""
    demand = life.demand.without(event.identity)
    after = to.changed(life, demand=demand)
    if demand == life.demand or demand.joined or demand.requested_at_s(now_s) is not None:
        return after, ()
    detail = "the requests that waited for it have left: its next one loads it"
    cold = to.enter(after, SlotState.COLD, intent=to.intended(life, Intent.DOWN), problem=None)
    return cold, (Note("model.stays_cold", detail),)


def _park(life: SlotLife, error: LmxError, state: SlotState, intent: Intent) -> Result:
    after, denied = to.deny_all(life, error)
    after, effects = to.park(after, state, intent=intent)
    return after, (*denied, *effects)


def _end(life: SlotLife, error: LmxError, intent: Intent, detail: str, now_s: float) -> Result:
    after, denied = to.deny_all(life, error)
    after, effects = drain(to.changed(after, intent=intent), ExitCause.UNLOADED, detail, now_s)
    return after, (*denied, *effects)


# Operators.


def order(life: SlotLife, _event: Any, rules: Rules, now_s: float) -> Result:
    """The model starts now, whatever kept it down."""
    demand = replace(life.demand, ordered_at_s=now_s)
    intent = to.operator_intended(life, Intent.UP)
    after = to.enter(life, SlotState.COLD, intent=intent, demand=demand, failures=FailureRecord())
    return to.begin(after, rules)


def order_coming(life: SlotLife, _event: Any, _rules: Rules, now_s: float) -> Result:
    """The model continues, and its failures are forgotten."""
    demand = replace(life.demand, ordered_at_s=now_s)
    intent = to.operator_intended(life, Intent.UP)
    return to.changed(life, intent=intent, demand=demand, failures=FailureRecord()), ()


def order_another(
    life: SlotLife, event: events.ReloadOrdered, _rules: Rules, now_s: float
) -> Result:
    """The worker ends after its streams, and the next one begins."""
    demand = replace(life.demand, ordered_at_s=now_s)
    # Lost memory does not keep an operator's worker from starting.
    failures = replace(life.failures, losses=0)
    intent = to.operator_intended(life, Intent.UP)
    after = to.changed(life, intent=intent, demand=demand, failures=failures)
    return drain(after, ExitCause.UNLOADED, event.detail, now_s)


_UNLOADED: Final = "an operator unloaded the model"


def unload(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """The model is not on its way any more."""
    return _park(life, to.unloaded_error(_UNLOADED), SlotState.COLD, to.intended(life, Intent.DOWN))


def unload_occupied(life: SlotLife, _event: Any, _rules: Rules, now_s: float) -> Result:
    """The worker ends after its streams."""
    error = to.unloaded_error(_UNLOADED)
    return _end(life, error, to.intended(life, Intent.DOWN), _UNLOADED, now_s)


_HELD: Final = Note("model.drained", "by an operator")


def hold(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """The model takes no request from here on."""
    error, intent = to.drained_error(life.model_id), to.operator_intended(life, Intent.HELD)
    after, effects = _park(life, error, SlotState.HELD, intent)
    return after, (_HELD, *effects)


def hold_occupied(life: SlotLife, _event: Any, _rules: Rules, now_s: float) -> Result:
    """The worker ends after its streams, and then the model stays down."""
    error, intent = to.drained_error(life.model_id), to.operator_intended(life, Intent.HELD)
    after, effects = _end(life, error, intent, "an operator drained the model", now_s)
    return after, (_HELD, *effects)


def reset(life: SlotLife, _event: Any, rules: Rules, now_s: float) -> Result:
    """The model becomes cold, and starts if a request waits for it. An operator's load that failed
    is not tried again."""
    note = Note("model.reset", f"it was {life.state}")
    asked = life.demand.requested_at_s(now_s) is not None
    intent = to.operator_intended(life, Intent.UP if asked else Intent.DOWN)
    after = to.enter(life, SlotState.COLD, intent=intent, failures=FailureRecord(), problem=None)
    after, effects = to.begin(after, rules) if after.wanted else (after, ())
    return after, (note, *effects)


def reset_coming(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """The model continues. If it was about to be held after the end of its worker, it is no
    longer."""
    state = life.worker.state if life.worker else life.state
    intent = Intent.DOWN if life.intent is Intent.HELD else life.intent
    after = to.changed(life, intent=intent, failures=FailureRecord())
    return after, (Note("model.reset", f"it was {state}"),)


_SHUTTING_DOWN: Final = "lmx is shutting down"


def shut_down(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """Nobody waits any more."""
    after = to.changed(life, intent=to.intended(life, Intent.DOWN))
    return to.deny_all(after, UnavailableError(ErrorCode.SHUTTING_DOWN, _SHUTTING_DOWN))


def shut_down_coming(life: SlotLife, event: Any, rules: Rules, now_s: float) -> Result:
    """The model is not on its way any more."""
    after, effects = to.park(life, SlotState.COLD)
    after, denied = shut_down(after, event, rules, now_s)
    return after, (*effects, *denied)


def shut_down_occupied(
    life: SlotLife, event: events.ShutDown, rules: Rules, now_s: float
) -> Result:
    """The worker ends: at once, or after it was asked to stop."""
    end = KillRequested if event.at_once else StopRequested
    after, effects = step_worker(life, end(ExitCause.SHUTDOWN, _SHUTTING_DOWN), now_s)
    after, denied = shut_down(after, event, rules, now_s)
    return after, (*effects, *denied)


# The configuration.


def preload(life: SlotLife, event: events.Preloaded, rules: Rules, now_s: float) -> Result:
    """The model starts, although nobody waits for it."""
    after, _ = want(life, event, rules, now_s)
    return to.begin(after, rules)


def want(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """The model continues, or comes back."""
    return to.changed(life, intent=to.intended(life, Intent.UP)), ()


def reconfigure(life: SlotLife, _event: Any, rules: Rules, _now_s: float) -> Result:
    """The failures and the plan belong to the old configuration, and are dropped."""
    after, effects = to.park(life, SlotState.COLD, failures=FailureRecord())
    after, begun = to.begin(after, rules) if after.wanted else (after, ())
    return after, (*effects, *begun)


def reconfigure_occupied(life: SlotLife, _event: Any, _rules: Rules, now_s: float) -> Result:
    """The worker ends after its streams, and the next one has the new configuration."""
    after = to.changed(life, failures=FailureRecord())
    return drain(after, ExitCause.UNLOADED, "its configuration has changed", now_s)


def reconfigure_held(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """The model stays held, because an operator's word overrides the configuration."""
    return to.changed(life, failures=FailureRecord()), ()


def remove(life: SlotLife, event: events.Removed, _rules: Rules, _now_s: float) -> Result:
    """The slot is removed at once."""
    after, effects = _park(life, to.unloaded_error(event.detail), SlotState.COLD, Intent.REMOVED)
    return after, (*effects, Gone())


def remove_occupied(life: SlotLife, event: events.Removed, _rules: Rules, now_s: float) -> Result:
    """The worker ends after its streams, and then the slot is removed."""
    return _end(life, to.unloaded_error(event.detail), Intent.REMOVED, event.detail, now_s)


def restore(life: SlotLife, event: events.Restored, rules: Rules, now_s: float) -> Result:
    """The slot of a removed model stays, although its worker still ends."""
    if life.intent is not Intent.REMOVED:
        return to.never(life, event, rules, now_s)
    failures = FailureRecord() if event.reconfigured else life.failures
    intent = Intent.UP if event.preload else Intent.DOWN
    return to.changed(life, intent=intent, failures=failures), ()
