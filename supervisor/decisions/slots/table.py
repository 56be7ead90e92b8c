"""A model's slot as one pure function: ``step(life, event, rules, now_s) -> (life, effects)``.

No clock, no socket, no file: ``now_s`` is an argument (monotonic seconds), effects are values that
the caller carries out, in their order. The table has a row for each event and in it a column for
each state: nothing is left out. What can't happen is ``never``: it raises
:class:`lmx.supervisor.decisions.lifecycle.LifecycleError` with the slot's history. What comes too
late to matter is ``late``. A worker's own life is :mod:`lmx.supervisor.decisions.lifecycle`, which
an OCCUPIED slot steps. LIFECYCLE.md has the picture.
"""

from collections.abc import Callable
from typing import Any, Final

from lmx.protocol.messages import control
from lmx.protocol.states import SlotState
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.decisions.slots.life import Rules, SlotLife
from lmx.supervisor.decisions.slots.occupied import (
    adopt,
    evict,
    exited,
    tick_occupied,
    worker_reported,
)
from lmx.supervisor.decisions.slots.requests import (
    ask,
    ask_cold,
    ask_held,
    ask_occupied,
    ask_quarantined,
    files_leaving,
    hold,
    hold_occupied,
    order,
    order_another,
    order_coming,
    preload,
    reconfigure,
    reconfigure_held,
    reconfigure_occupied,
    remove,
    remove_occupied,
    reset,
    reset_coming,
    restore,
    shut_down,
    shut_down_coming,
    shut_down_occupied,
    unload,
    unload_occupied,
    want,
    withdraw,
    withdraw_queued,
)
from lmx.supervisor.decisions.slots.starting import (
    count_loss,
    dropped,
    fetch_advanced,
    fetch_failed,
    fetched,
    files_missing,
    launched,
    memory_settled,
    not_started,
    planned,
    queue_reported,
    reread,
    tick,
    tick_backoff,
)
from lmx.supervisor.decisions.slots.transitions import Result, changed, late, never
from lmx.supervisor.decisions.worker import KillRequested, Tick

_HISTORY_LENGTH: Final = 20


def step(life: SlotLife, event: Any, rules: Rules, now_s: float) -> Result:
    """Return the slot after ``event``, and what must be done about it.

    Raises :class:`LifecycleError` for what can't happen in its state, or in its worker's.
    """
    row = TABLE.get(type(event))
    handler = never if row is None else row[COLUMNS.index(life.state)]
    after, effects = handler(life, event, rules, now_s)
    if after.state is not life.state:
        entry = f"{type(event).__name__}->{after.state}"
        after = changed(after, history=(*after.history, entry)[-_HISTORY_LENGTH:])
    return after, effects


Handler = Callable[[SlotLife, Any, Rules, float], Result]
Row = tuple[Handler, Handler, Handler, Handler, Handler, Handler, Handler]


def _queued(handler: Handler) -> Row:
    return (never, never, handler, never, never, never, never)


def _fetching(handler: Handler) -> Row:
    """The word of a fetch that was given up may still be on its way."""
    return (late, handler, late, late, late, late, late)


def _occupied(handler: Handler) -> Row:
    return (never, never, never, handler, never, never, never)


# fmt: off
COLUMNS: Final = (
    SlotState.COLD, SlotState.FETCHING, SlotState.QUEUED, SlotState.OCCUPIED, SlotState.BACKOFF,
    SlotState.QUARANTINED, SlotState.HELD,
)

TABLE: Final[dict[type, Row]] = {
    # Those who want the model.
    events.Requested: (ask_cold, ask, ask, ask_occupied, ask, ask_quarantined, ask_held),
    events.Preloaded: (preload, want, want, want, want, late, late),
    events.Ordered: (order, order_coming, order_coming, order_coming, order, order, order),
    # A queued model waits from here on for what it needs with its other settings.
    events.ReloadOrdered: (order, order_coming, order, order_another, order, order, order),
    # Those who do not, or not any more.
    events.FilesLeaving: (
        files_leaving, files_leaving, files_leaving, files_leaving, files_leaving, files_leaving,
        files_leaving,
    ),
    events.Withdrawn: (
        withdraw, withdraw, withdraw_queued, withdraw, withdraw, withdraw, withdraw,
    ),
    # In quarantine and in hold it is down already, nobody waits for it, and only load, restart and
    # reset forget its failures.
    events.Unloaded: (unload, unload, unload, unload_occupied, unload, late, late),
    events.Held: (hold, hold, hold, hold_occupied, hold, hold, hold),
    events.Reset: (reset, reset_coming, reset_coming, reset_coming, reset, reset, reset),
    events.ShutDown: (
        shut_down, shut_down_coming, shut_down_coming, shut_down_occupied, shut_down, shut_down,
        shut_down,
    ),
    # The configuration.
    events.Reconfigured: (
        reconfigure, reconfigure, reconfigure, reconfigure_occupied, reconfigure, reconfigure,
        reconfigure_held,
    ),
    events.Reread: _queued(reread),
    events.Removed: (remove, remove, remove, remove_occupied, remove, remove, remove),
    events.Restored: _occupied(restore),
    # Its files and its place.
    events.FilesMissing: _queued(files_missing),
    events.FetchAdvanced: _fetching(fetch_advanced),
    events.Fetched: _fetching(fetched),
    events.FetchFailed: _fetching(fetch_failed),
    events.Planned: _queued(planned),
    events.NotStarted: _queued(not_started),
    events.QueueReported: _queued(queue_reported),
    events.Dropped: _queued(dropped),
    events.Launched: _queued(launched),
    events.Adopted: (adopt, adopt, adopt, never, adopt, adopt, adopt),
    events.Evicted: _occupied(evict),
    events.MemorySettled: (
        memory_settled, count_loss, memory_settled, count_loss, memory_settled, count_loss,
        count_loss,
    ),
    # Time.
    Tick: (tick, tick, tick, tick_occupied, tick_backoff, tick, tick),
    # Its worker.
    control.WorkerHello: _occupied(worker_reported),
    control.LoadAdvanced: _occupied(worker_reported),
    control.Loaded: _occupied(worker_reported),
    control.LoadFailed: _occupied(worker_reported),
    control.WorkerBeat: _occupied(worker_reported),
    control.DrainRefused: _occupied(worker_reported),
    control.Drained: _occupied(worker_reported),
    KillRequested: _occupied(worker_reported),
    events.Exited: _occupied(exited),
}
# fmt: on
