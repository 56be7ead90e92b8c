"""A model's way to its worker: its files, its fetch, its place in the queue, and what keeps it
down. This module is pure."""

from typing import Any

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.states import ExitCause, SlotState
from lmx.supervisor.decisions import restart
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.decisions.slots import transitions as to
from lmx.supervisor.decisions.slots.effects import LogNoCapacity, Note, ReadFiles, StartFetch
from lmx.supervisor.decisions.slots.life import Intent, Rules, SlotLife
from lmx.supervisor.decisions.slots.transitions import Effects, Result
from lmx.supervisor.decisions.worker import Tick


def files_missing(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """The model is not on this machine in a form that can be loaded."""
    return to.enter(life, SlotState.FETCHING), (StartFetch(),)


def fetch_advanced(
    life: SlotLife, event: events.FetchAdvanced, _rules: Rules, _now_s: float
) -> Result:
    """The fetch has made progress."""
    return to.changed(life, fetch_phase=event.phase, fetch_fraction=event.fraction), ()


def fetched(life: SlotLife, _event: Any, rules: Rules, _now_s: float) -> Result:
    """The model is on this machine, and its files are read."""
    return to.begin(to.enter(life, SlotState.COLD), rules)


def fetch_failed(life: SlotLife, event: events.FetchFailed, rules: Rules, now_s: float) -> Result:
    """The model could not be fetched."""
    if event.by_host:
        return _try_later(life, event, rules, now_s)
    return _give_up(life, event.error, rules, now_s)


def planned(life: SlotLife, event: events.Planned, _rules: Rules, _now_s: float) -> Result:
    """The model waits for so much memory from here on."""
    return to.changed(life, need_bytes=event.need_bytes), ()


def not_started(life: SlotLife, event: events.NotStarted, rules: Rules, now_s: float) -> Result:
    """The model can't be started as things stand."""
    if event.by_host:
        return _try_later(life, event, rules, now_s)
    return _give_up(life, event.error, rules, now_s)


def _try_later(
    life: SlotLife, event: events.NotStarted | events.FetchFailed, rules: Rules, now_s: float
) -> Result:
    """The machine did not let the model start, which is no fault of the model's: whoever waits gets
    the reason, and it is tried again for as long as it is wanted."""
    failures, decision = restart.after_exit(
        life.failures, ExitCause.HOST, wanted=life.wanted and not rules.stopping,
        was_ready_for_s=0.0, now_s=now_s, jitter=event.jitter, policy=rules.restart,
    )  # fmt: skip
    note = Note("model.not_started", event.error.message, {"code": str(event.error.code)})
    after, effects = to.deny_all(
        to.enter(life, SlotState.COLD, failures=failures, problem=event.error), event.error
    )
    if isinstance(decision, restart.StartAgain):
        retry_at_s = now_s + decision.wait_s
        after = to.enter(after, SlotState.BACKOFF, retry_at_s=retry_at_s)
    return after, (*effects, note)


def _give_up(life: SlotLife, error: LmxError, rules: Rules, now_s: float) -> Result:
    """Nothing was started: whoever waits gets the reason.

    A source that keeps failing is quarantined like a worker that does, or each request would
    fetch it again. Missing memory, or a full disk, is no fault of the model's.
    """
    after = to.enter(life, SlotState.COLD, intent=to.intended(life, Intent.DOWN), problem=error)
    after, effects = to.deny_all(after, error)
    if error.code is ErrorCode.INSUFFICIENT_MEMORY:
        return after, (*effects, LogNoCapacity(error.message))
    effects = (*effects, Note("model.not_started", error.message, {"code": str(error.code)}))
    if error.code is ErrorCode.INSUFFICIENT_DISK:
        return after, effects
    failures, decision = restart.after_exit(
        life.failures, ExitCause.LOAD_FAILED, wanted=False, was_ready_for_s=0.0, now_s=now_s,
        jitter=0.0, policy=rules.restart,
    )  # fmt: skip
    after = to.changed(after, failures=failures)
    if not isinstance(decision, restart.Quarantine):
        return after, effects
    after, quarantined = to.quarantine(after, decision, error.message, rules)
    return after, (*effects, *quarantined)


def queue_reported(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """People know that the model waits."""
    return to.changed(life, queue_reported=True), ()


def reread(life: SlotLife, _event: Any, _rules: Rules, _now_s: float) -> Result:
    """The model waits for no memory until its files were read again."""
    return to.enter(life, SlotState.QUEUED), (ReadFiles(),)


def launched(life: SlotLife, event: events.Launched, _rules: Rules, now_s: float) -> Result:
    """The model has a worker."""
    return to.enter(life, SlotState.OCCUPIED, worker=event.worker, spawned_at_s=now_s), ()


def dropped(life: SlotLife, event: events.Dropped, rules: Rules, now_s: float) -> Result:
    """The model stays down until somebody asks. Whoever waits is never dropped."""
    if life.demand.requested_at_s(now_s) is not None:
        return to.never(life, event, rules, now_s)
    detail = "there is no room for it, and nobody waits for it: its first request loads it"
    after = to.enter(life, SlotState.COLD, intent=to.intended(life, Intent.DOWN))
    return after, (Note("model.stays_cold", detail),)


def memory_settled(
    life: SlotLife, event: events.MemorySettled, rules: Rules, now_s: float
) -> Result:
    """A model whose workers leave memory behind gets no further one."""
    after, _ = count_loss(life, event, rules, now_s)
    if rules.stopping or not after.failures.loses_memory:
        return after, ()
    return to.quarantine_for_memory(after)


def count_loss(life: SlotLife, event: events.MemorySettled, _rules: Rules, _now_s: float) -> Result:
    """What has begun continues. The next start is judged by it."""
    return to.changed(life, failures=life.failures.settled(event.missing_bytes)), ()


def tick(life: SlotLife, _event: Tick, _rules: Rules, now_s: float) -> Result:
    """Nobody waits for longer than they said."""
    return to.lapse(life, now_s)


def tick_backoff(life: SlotLife, event: Tick, rules: Rules, now_s: float) -> Result:
    """A model whose backoff is over begins, if it is wanted still."""
    effects: Effects = ()
    if life.retry_at_s is not None and now_s >= life.retry_at_s:
        life = to.enter(life, SlotState.COLD)
        if life.wanted:
            life, effects = to.begin(life, rules)
    after, late = to.lapse(life, now_s)
    return after, (*effects, *late)
