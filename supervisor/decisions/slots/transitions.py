"""What the handlers of the slot's table have in common: how a slot changes, and what the requests
that wait for its model get. This module is pure."""

import dataclasses
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.states import SlotState
from lmx.supervisor.decisions import restart
from lmx.supervisor.decisions.lifecycle import LifecycleError
from lmx.supervisor.decisions.slots.demand import Demand
from lmx.supervisor.decisions.slots.effects import (
    Answer,
    Deny,
    Note,
    NotifyLate,
    ReadFiles,
    SlotEffect,
    StopFetch,
)
from lmx.supervisor.decisions.slots.life import Intent, Rules, SlotLife
from lmx.supervisor.decisions.worker import Worker

_BY_OPERATOR_S: Final = 300.0
"""When to ask again for a model that only an operator brings back. It is longer than client
libraries wait by themselves."""

Effects = tuple[SlotEffect, ...]
Result = tuple[SlotLife, Effects]


def enter(life: SlotLife, state: SlotState, **changes: Any) -> SlotLife:
    """Return the slot in a state, without anything that belongs to the state before."""
    fresh: dict[str, Any] = {
        "worker": None,
        "fetch_phase": None,
        "fetch_fraction": None,
        "need_bytes": None,
        "queue_reported": False,
        "retry_at_s": None,
        "spawned_at_s": None,
        "ready_at_s": None,
        "evicted_for": None,
    }
    return changed(life, state=state, **{**fresh, **changes})


def changed(life: SlotLife, **changes: Any) -> SlotLife:
    """Return the slot with other values."""
    return dataclasses.replace(life, **changes)


def intended(life: SlotLife, intent: Intent) -> Intent:
    """Return the intent after a wish of a request or of the machine's memory, which may not
    override operators."""
    return life.intent if life.intent in (Intent.HELD, Intent.REMOVED) else intent


def operator_intended(life: SlotLife, intent: Intent) -> Intent:
    """Return the intent after an operator's wish. It overrides everything, if the model is
    configured."""
    return life.intent if life.intent is Intent.REMOVED else intent


def never(life: SlotLife, event: Any, _rules: Rules, _now_s: float) -> Result:
    """The event can't happen in this state. That is a bug, and is raised with the slot's
    history."""
    raise LifecycleError(
        f"the slot of {life.model_id} got {type(event).__name__} while {life.state}; before that: "
        f"{', '.join(life.history)}"
    )


def late(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """The event comes too late to matter."""
    return life, ()


def deny_waiters(life: SlotLife, error: LmxError) -> Result:
    """Deny all requests that wait."""
    waiters = life.demand.waiters
    effects: Effects = (Deny(waiters, error),) if waiters else ()
    return changed(life, demand=dataclasses.replace(life.demand, waiters=())), effects


def deny_all(life: SlotLife, error: LmxError) -> Result:
    """Deny all requests that wait, and forget that operators do."""
    after, effects = deny_waiters(life, error)
    return changed(after, demand=Demand()), effects


def answer_all(life: SlotLife, worker: Worker) -> Result:
    """Answer all requests that wait. The effect is returned even if none waits, so that routers
    learn of the worker at once."""
    answer = Answer(life.demand.waiters, worker.instance)
    return changed(life, demand=Demand()), (answer,)


def lapse(life: SlotLife, now_s: float) -> Result:
    """Answer the requests whose time to wait is over with where the model is."""
    demand, overdue = life.demand.lapse(now_s)
    effects: Effects = (NotifyLate(overdue),) if overdue else ()
    return changed(life, demand=demand), effects


def drained_error(model_id: str) -> UnavailableError:
    """Return the error for a request to a model that an operator holds down."""
    return UnavailableError(
        ErrorCode.MODEL_DRAINED,
        f"{model_id} was drained by an operator and takes no request until "
        f"`lmx undrain {model_id}` or `load {model_id}`",
        retry_after_s=_BY_OPERATOR_S,
    )


def quarantined_error(model_id: str, problem: str) -> UnavailableError:
    """Return the error for a request to a quarantined model."""
    return UnavailableError(
        ErrorCode.MODEL_QUARANTINED,
        f"{model_id} is quarantined: {problem}",
        retry_after_s=_BY_OPERATOR_S,
    )


def unloaded_error(detail: str) -> UnavailableError:
    """Return the error for a request whose model will not be loaded for it."""
    return UnavailableError(ErrorCode.MODEL_UNLOADED, detail)


STUCK: Final = "not even SIGKILL ends it: its memory stays taken until it does"
"""Why nobody waits for a worker, for people."""


def stuck_error(model_id: str) -> UnavailableError:
    """Return the error for a request to a model whose worker is stuck, so that no other one can be
    started."""
    return failed_error(f"the worker of {model_id} is stuck: {STUCK}")


def files_leaving_error(model_id: str) -> UnavailableError:
    """Return the error for a request whose model is being deleted."""
    return UnavailableError(ErrorCode.MODEL_UNLOADED, f"the files of {model_id} are being deleted")


def failed_error(detail: str) -> UnavailableError:
    """Return why a model is down as an error."""
    return UnavailableError(ErrorCode.MODEL_LOAD_FAILED, detail)


def begin(life: SlotLife, rules: Rules) -> Result:
    """Begin to start a cold model. Its files are read again at each start, because the folder may
    hold another model by now, and new measurements may have changed the plan."""
    if rules.stopping:
        return life, ()
    if life.files_leaving:
        error = files_leaving_error(life.model_id)
        return deny_all(changed(life, intent=intended(life, Intent.DOWN), problem=error), error)
    if life.failures.loses_memory:
        return quarantine_for_memory(life)
    return enter(life, SlotState.QUEUED, problem=None), (ReadFiles(),)


def park(life: SlotLife, state: SlotState, **changes: Any) -> Result:
    """Leave a slot that has no worker in a state in which nothing happens."""
    return enter(life, state, problem=None, **changes), stop_fetch(life)


def stop_fetch(life: SlotLife) -> Effects:
    """Return the effect that ends the model's fetch, if one runs."""
    return (StopFetch(),) if life.state is SlotState.FETCHING else ()


def quarantine(
    life: SlotLife, decision: restart.Quarantine, detail: str, rules: Rules, *,
    permanent: bool = False,
) -> Result:  # fmt: skip
    """Put the model into quarantine, so that only an operator starts it again. ``permanent`` means
    that already its first failure led here."""
    how = (
        "can't be loaded as it is"
        if permanent
        else f"failed {decision.failures} times within {rules.restart.window_s:g} s, last"
    )
    problem = f"{how}: {detail.rstrip('.')}. Fix it, then run `lmx restart {life.model_id}`"
    return _quarantined(life, problem, failures=decision.failures)


def quarantine_for_memory(life: SlotLife) -> Result:
    """Put a model whose workers leave memory behind into quarantine."""
    losses = life.failures.losses
    problem = (
        f"the memory of its last {losses} workers did not come back, and another one would lose "
        f"more. Restart the machine; `lmx restart {life.model_id}` tries it all the same"
    )
    return _quarantined(life, problem, losses=losses)


def _quarantined(life: SlotLife, problem: str, **figures: int) -> Result:
    after = enter(
        life,
        SlotState.QUARANTINED,
        intent=intended(life, Intent.DOWN),
        problem=failed_error(problem),
    )
    after, denied = deny_all(after, quarantined_error(life.model_id, problem))
    return after, (Note("model.quarantined", problem, figures), *denied)
