"""A worker's life as one pure function: ``step(worker, event, now) -> (worker, effects)``.

There is no clock, socket or process here. ``now_s`` is an argument (monotonic seconds), and effects
are values that the caller carries out. The table at the end is complete: a pair of state and event
that is not in it raises :class:`LifecycleError` with the worker's history. See LIFECYCLE.md.
"""

import dataclasses
import math
import signal
from collections.abc import Callable
from typing import Any, Final

from lmx.protocol.errors import ErrorCode
from lmx.protocol.host.stacks import STACKS, WRITTEN_S
from lmx.protocol.messages import control
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import ExitCause, LoadPhase, WorkerState
from lmx.supervisor.decisions.exit_cause import exit_cause
from lmx.supervisor.decisions.worker import (
    STUCK_KILLS,
    BecameReady,
    DrainRequested,
    Effect,
    Ended,
    KillRequested,
    Limits,
    ProcessExited,
    SendDrain,
    SendSignal,
    SendWelcome,
    StopRequested,
    Stuck,
    Tick,
    Worker,
)

_HISTORY_LENGTH: Final = 20
_PATIENT: Final = (None, ExitCause.EVICTED, ExitCause.EXPIRED)
"""The causes of a drain that may take as long as its streams: no stream is cut off to make room.
None stands for a worker that was draining when this supervisor took over, so that the cause is
unknown."""

_KILL_AGAIN_S: Final = 1.0

_LATE_SHARE: Final = 0.25


class LifecycleError(RuntimeError):
    """An event that can't happen in this state. It is a bug, and the message has the worker's
    history."""


_Result = tuple[Worker, tuple[Effect, ...]]
_S: Final = WorkerState
_LOADS: Final = (_S.STARTING, _S.LOADING)


def spawned(instance: str, model_id: str, pid: int, limits: Limits, now_s: float) -> Worker:
    """Return a worker that was just started. Its bytes are reserved already."""
    return Worker(
        instance, model_id, pid, limits, _S.STARTING, now_s + limits.start_s, now_s,
        phase=LoadPhase.START, history=("spawned",),
    )  # fmt: skip


def adopted(instance: str, model_id: str, pid: int, limits: Limits, now_s: float) -> Worker:
    """Return a worker that an earlier supervisor started. Its hello will say its state."""
    worker = spawned(instance, model_id, pid, limits, now_s)
    return _with(worker, adopted=True, history=("adopted",))


def step(worker: Worker, event: Any, now_s: float) -> _Result:
    """Return the worker after ``event``, and what must be done about it.

    Raises :class:`LifecycleError` for a pair of state and event that the table lacks.
    """
    handler = _TABLE.get((worker.state, type(event)))
    if handler is None:
        raise LifecycleError(
            f"worker {worker.instance} ({worker.model_id}) got {type(event).__name__} while "
            f"{worker.state}; before that: {', '.join(worker.history)}"
        )
    after, effects = handler(worker, event, now_s)
    if after.state is not worker.state:
        entry = f"{type(event).__name__}->{after.state}"
        after = _with(after, history=(*after.history, entry)[-_HISTORY_LENGTH:])
    return after, effects


def is_late(worker: Worker, now_s: float) -> bool:
    """Return whether a quarter of a time limit is over, by which a hang is recognized. From then on
    it counts for how long the worker waits for a processor (:class:`Tick`)."""
    limits = worker.limits
    match worker.state:
        case WorkerState.STARTING:
            limit_s = limits.start_s
        case WorkerState.LOADING:
            limit_s = limits.load_stall_s
        case WorkerState.READY | WorkerState.DRAINING:
            limit_s = math.inf
        case _:
            return False
    return (
        now_s - worker.beat_at_s > _LATE_SHARE * limits.beat_s
        or worker.stalled_s > _LATE_SHARE * limits.stall_s
        or (worker.deadline_s or math.inf) - now_s < (1 - _LATE_SHARE) * limit_s < math.inf
    )


def quiet_until_s(worker: Worker, now_s: float) -> float | None:
    """Return until when time alone changes nothing about a worker: until its silence counts as
    late, if it is idle. Returns None if that may be at any moment."""
    idle = worker.state is _S.READY and not worker.busy and worker.deadline_s is None
    if not idle or is_late(worker, now_s):
        return None
    return worker.beat_at_s + _LATE_SHARE * worker.limits.beat_s


def _with(worker: Worker, **changes: Any) -> Worker:
    return dataclasses.replace(worker, **changes)


def _stay(worker: Worker, _event: Any, _now_s: float) -> _Result:
    return worker, ()


def _hello(worker: Worker, event: control.WorkerHello, now_s: float) -> _Result:
    after = _with(worker, beat_at_s=now_s, kind=event.kind)
    match event.state:
        case WorkerState.STARTING:
            return _loading(after, now_s), (SendWelcome(),)
        case WorkerState.LOADING:
            return _loading(after, now_s), ()
        case WorkerState.READY:
            return _ready(after, event, now_s)
        case WorkerState.DRAINING:
            deadline_s = now_s + worker.limits.drain_s
            return _with(after, state=_S.DRAINING, deadline_s=deadline_s), ()
        case _:
            return after, ()


def _loading(worker: Worker, now_s: float) -> Worker:
    return _with(worker, state=_S.LOADING, deadline_s=now_s + worker.limits.load_stall_s)


def _ready(worker: Worker, event: control.Loaded | control.WorkerHello, now_s: float) -> _Result:
    figures = dataclasses.replace(worker.figures, memory_bytes=event.memory_bytes)
    after = _with(
        worker, state=_S.READY, deadline_s=None, phase=None, fraction=None,
        ready_memory_bytes=event.memory_bytes, figures=_with_peak(figures, worker),
        context_length=event.context_length, capabilities=event.capabilities,
        refused_adapters=event.refused_adapters, media=event.media, template=event.template,
        remarks=event.remarks,
        idle_since_s=None if worker.busy else now_s,
    )  # fmt: skip
    return after, (BecameReady(event.memory_bytes),)


def _hello_again(worker: Worker, event: control.WorkerHello, now_s: float) -> _Result:
    """Take a repeated hello: the worker did not get the Welcome, or is connected only now and has
    got no request to drain. The state never goes back."""
    effects: tuple[Effect, ...] = ()
    if worker.state is _S.DRAINING and event.state in _LOADS:
        return _drained(worker, event, now_s)
    if event.state is WorkerState.STARTING:
        effects = (SendWelcome(),)
    elif worker.state is _S.DRAINING and event.state is WorkerState.READY:
        effects = (SendDrain(worker.polite),)
    return _with(worker, beat_at_s=now_s), effects


def _load_advanced(worker: Worker, event: control.LoadAdvanced, now_s: float) -> _Result:
    return _with(_loading(worker, now_s), phase=event.phase, fraction=event.fraction), ()


def _loaded(worker: Worker, event: control.Loaded, now_s: float) -> _Result:
    return _ready(_with(worker, beat_at_s=now_s), event, now_s)


def _load_failed(worker: Worker, event: control.LoadFailed, now_s: float) -> _Result:
    full = event.code is ErrorCode.INSUFFICIENT_DISK
    return _stopping(
        _with(worker, permanent=event.permanent), signal.SIGTERM, worker.limits.term_grace_s,
        now_s, ExitCause.HOST if full else ExitCause.LOAD_FAILED, event.message,
    )  # fmt: skip


def _beat(worker: Worker, event: control.WorkerBeat, now_s: float) -> _Result:
    after = _with(
        worker, beat_at_s=now_s, rows=event.rows, queued=event.queued,
        stalled_s=event.stalled_for_s, figures=_with_peak(event.figures, worker),
        keep_alive_s=event.keep_alive_s, reported_state=event.state,
        idle_since_s=None if event.rows + event.queued else now_s - event.idle_for_s,
    )  # fmt: skip
    return after, ()


def _with_peak(figures: WorkerFigures, worker: Worker) -> WorkerFigures:
    """Return a worker's new figures with a peak that never goes down."""
    peaks = (worker.figures.peak_memory_bytes, figures.peak_memory_bytes, figures.memory_bytes)
    return dataclasses.replace(figures, peak_memory_bytes=max(peaks))


def _working_beat(worker: Worker, event: control.WorkerBeat, now_s: float) -> _Result:
    after, _ = _beat(worker, event, now_s)
    if event.stalled_for_s < max(worker.stalled_s, _LATE_SHARE * worker.limits.stall_s):
        after = _with(after, stall_waited_s=0.0)
    if event.stalled_for_s - after.stall_waited_s > worker.limits.stall_s:
        return _hung(
            after,
            now_s,
            f"the model made no progress for {event.stalled_for_s:.1f} s with "
            f"{event.rows + event.queued} requests in flight",
        )
    return after, ()


def _ready_beat(worker: Worker, event: control.WorkerBeat, now_s: float) -> _Result:
    """Take a heartbeat of a READY worker. A worker that drains without being asked has received
    nothing from a supervisor for too long, and does not come back from that."""
    after, effects = _working_beat(worker, event, now_s)
    if after.state is _S.READY and event.state is WorkerState.DRAINING:
        after = _with(
            after,
            state=_S.DRAINING,
            deadline_s=None,
            cause=ExitCause.UNLOADED,
            detail="no supervisor answered it for too long: it ends after its requests",
        )
    return after, effects


def _draining_beat(worker: Worker, event: control.WorkerBeat, now_s: float) -> _Result:
    """Take a heartbeat of a DRAINING worker. One that is idle twice has drained: what it said of
    that was lost with the supervisor before this one. One that loads was asked to drain before its
    hello: it has no streams, and may not have got the request."""
    if event.state in _LOADS:
        return _drained(worker, event, now_s)
    was_idle = worker.reported_state is _S.DRAINING and not worker.busy
    after, effects = _working_beat(worker, event, now_s)
    if was_idle and after.reported_state is _S.DRAINING and not (after.busy or effects):
        return _drained(after, event, now_s)
    return after, effects


def _drain(worker: Worker, event: DrainRequested, now_s: float) -> _Result:
    after = _with(
        worker, state=_S.DRAINING, deadline_s=now_s + worker.limits.drain_s,
        cause=event.cause, detail=event.detail, polite=event.if_idle, reported_state=None,
    )  # fmt: skip
    return after, (SendDrain(event.if_idle),)


def _drain_again(worker: Worker, event: DrainRequested, now_s: float) -> _Result:
    """Take a second request to drain. The worker now drains even if it is busy, and keeps the first
    deadline if that one ends it. One that drains by itself has had none."""
    if event.if_idle:
        return worker, ()
    if event.cause in _PATIENT and worker.cause not in _PATIENT:
        return worker, ()
    deadline_s = worker.deadline_s
    if worker.cause in _PATIENT or deadline_s is None:
        deadline_s = now_s + worker.limits.drain_s
    after = _with(
        worker, cause=event.cause, detail=event.detail, deadline_s=deadline_s, polite=False
    )
    return after, (SendDrain(False),)


def _drain_unloaded(worker: Worker, event: DrainRequested, now_s: float) -> _Result:
    """Take a request to drain before READY. There are no streams then, so that draining means
    stopping. But an adopted worker may be READY without having said so yet."""
    if worker.adopted and worker.state is _S.STARTING:
        return _drain(worker, event, now_s)
    grace_s = worker.limits.term_grace_s
    return _stopping(worker, signal.SIGTERM, grace_s, now_s, event.cause, event.detail)


def _drain_refused(worker: Worker, event: control.DrainRefused, _now_s: float) -> _Result:
    if not worker.polite:
        return worker, ()  # It must drain even if busy by now; this answers the question before.
    after = _with(
        worker, state=_S.READY, deadline_s=None, cause=None, detail="", polite=False,
        # It counts as busy until its next heartbeat, so that it is not asked again before.
        rows=max(1, event.rows), idle_since_s=None,
    )  # fmt: skip
    return after, ()


def _drained(worker: Worker, _event: Any, now_s: float) -> _Result:
    cause = worker.cause or ExitCause.UNLOADED
    grace_s = worker.limits.term_grace_s
    return _stopping(worker, signal.SIGTERM, grace_s, now_s, cause, worker.detail)


def _stop(worker: Worker, event: StopRequested, now_s: float) -> _Result:
    grace_s = worker.limits.term_grace_s
    return _stopping(worker, signal.SIGTERM, grace_s, now_s, event.cause, event.detail)


def _kill(worker: Worker, event: KillRequested, now_s: float) -> _Result:
    if event.may_end:
        grace_s = worker.limits.term_grace_s
        return _stopping(worker, signal.SIGTERM, grace_s, now_s, event.cause, event.detail)
    return _stopping(worker, signal.SIGKILL, _KILL_AGAIN_S, now_s, event.cause, event.detail)


def _kill_stopping(worker: Worker, event: KillRequested | Tick, now_s: float) -> _Result:
    effects: tuple[Effect, ...] = (SendSignal(signal.SIGKILL),)
    again_at_s = now_s + _KILL_AGAIN_S
    if isinstance(event, KillRequested):
        if event.may_end:
            return worker, ()
        # This may come many times in a second, and says nothing about whether the worker is stuck.
        deadline_s = min(worker.deadline_s or again_at_s, again_at_s)
        return _with(worker, deadline_s=deadline_s, kill_at_s=None), effects
    after = _with(worker, deadline_s=again_at_s, kills=worker.kills + 1, kill_at_s=None)
    return after, (*effects, Stuck()) if after.kills == STUCK_KILLS else effects


def _hung(worker: Worker, now_s: float, detail: str) -> _Result:
    """Let a hung worker write its stacks. Then it gets SIGTERM, by which one whose event loop lives
    notifies its clients, and SIGKILL when the grace is over."""
    worker = _with(worker, kill_at_s=now_s + worker.limits.abort_grace_s)
    return _stopping(worker, STACKS, WRITTEN_S, now_s, ExitCause.HANG, detail)


def _stopping(
    worker: Worker,
    number: signal.Signals,
    grace_s: float,
    now_s: float,
    cause: ExitCause,
    detail: str,
) -> _Result:
    after = _with(
        worker, state=_S.STOPPING, deadline_s=now_s + grace_s, cause=cause, detail=detail,
        stopping_at_s=now_s,
    )  # fmt: skip
    return after, (SendSignal(number),)


def _over(worker: Worker, now_s: float) -> bool:
    return worker.deadline_s is not None and now_s >= worker.deadline_s


def _tick_starting(worker: Worker, event: Tick, now_s: float) -> _Result:
    worker = _forgive(worker, event)
    if _over(worker, now_s):
        return _hung(worker, now_s, f"the worker said nothing for {worker.limits.start_s:g} s")
    return worker, ()


def _tick_loading(worker: Worker, event: Tick, now_s: float) -> _Result:
    worker = _forgive(worker, event)
    if _over(worker, now_s):
        limit_s = worker.limits.load_stall_s
        return _hung(worker, now_s, f"the load made no progress for {limit_s:g} s")
    return _check_beat(worker, now_s)


def _tick_ready(worker: Worker, event: Tick, now_s: float) -> _Result:
    return _check_beat(_forgive(worker, event), now_s)


def _tick_draining(worker: Worker, event: Tick, now_s: float) -> _Result:
    worker = _forgive(worker, event)
    if not _over(worker, now_s):
        return _check_beat(worker, now_s)
    if worker.cause not in _PATIENT or (worker.reported_state is _S.DRAINING and not worker.busy):
        return _drained(worker, event, now_s)
    after, effects = _check_beat(worker, now_s)
    if effects:
        return after, effects
    # Its streams have no deadline. But the message may have been lost, and a worker that was never
    # asked would drain for ever.
    after = _with(worker, deadline_s=now_s + worker.limits.drain_s)
    return after, () if worker.reported_state is _S.DRAINING else (SendDrain(worker.polite),)


def _tick_stopping(worker: Worker, event: Tick, now_s: float) -> _Result:
    worker = _forgive(worker, event)
    if not _over(worker, now_s):
        return worker, ()
    if worker.kill_at_s is None:
        return _kill_stopping(worker, event, now_s)
    after = _with(worker, deadline_s=worker.kill_at_s, kill_at_s=None)
    return after, (SendSignal(signal.SIGTERM),)


def _check_beat(worker: Worker, now_s: float) -> _Result:
    silent_s = now_s - worker.beat_at_s
    if silent_s > worker.limits.beat_s:
        return _hung(worker, now_s, f"no heartbeat for {silent_s:.1f} s")
    return worker, ()


def _forgive(worker: Worker, event: Tick) -> Worker:
    """Return the worker with its deadlines moved by the time in which the supervisor was not
    running (SIGSTOP, an overloaded machine) and could receive nothing. Those by which a hang is
    recognized also move by the time in which the worker waited for a processor."""
    lost_s = max(event.paused_s, event.waited_s)
    if lost_s == 0.0:
        return worker
    moved_s = lost_s if worker.state in (_S.STARTING, _S.LOADING) else event.paused_s
    return _with(
        worker,
        beat_at_s=worker.beat_at_s + lost_s,
        deadline_s=None if worker.deadline_s is None else worker.deadline_s + moved_s,
        kill_at_s=None if worker.kill_at_s is None else worker.kill_at_s + event.paused_s,
        stall_waited_s=worker.stall_waited_s + event.waited_s,
    )


def _exited(worker: Worker, event: ProcessExited, _now_s: float) -> _Result:
    cause, detail = exit_cause(worker, event.status, event.out_of_memory)
    after = _with(
        worker, state=_S.EXITED, deadline_s=None, cause=cause, detail=detail, rows=0, queued=0
    )
    return after, (Ended(cause, detail),)


_Handler = Callable[[Worker, Any, float], _Result]
_LATE: Final = (
    control.WorkerHello,
    control.LoadAdvanced,
    control.Loaded,
    control.LoadFailed,
    control.WorkerBeat,
    control.DrainRefused,
    control.Drained,
    DrainRequested,
    StopRequested,
)
"""What a worker that is being ended may still send, and what may still be asked of it. It has no
effect."""

_TABLE: Final[dict[tuple[WorkerState, type], _Handler]] = {
    (_S.STARTING, control.WorkerHello): _hello,
    (_S.STARTING, control.WorkerBeat): _beat,
    # Facts that an adopted worker had sent before its hello.
    (_S.STARTING, control.LoadAdvanced): _stay,
    (_S.STARTING, control.Loaded): _loaded,
    (_S.STARTING, control.LoadFailed): _load_failed,
    (_S.STARTING, control.Drained): _drained,
    (_S.STARTING, control.DrainRefused): _stay,
    (_S.STARTING, DrainRequested): _drain_unloaded,
    (_S.STARTING, Tick): _tick_starting,
    (_S.LOADING, control.WorkerHello): _hello_again,
    (_S.LOADING, control.LoadAdvanced): _load_advanced,
    (_S.LOADING, control.Loaded): _loaded,
    (_S.LOADING, control.LoadFailed): _load_failed,
    (_S.LOADING, control.WorkerBeat): _beat,
    # Its Loaded was lost, and then no supervisor answered it for too long.
    (_S.LOADING, control.Drained): _drained,
    (_S.LOADING, DrainRequested): _drain_unloaded,
    (_S.LOADING, Tick): _tick_loading,
    (_S.READY, control.WorkerHello): _hello_again,
    (_S.READY, control.WorkerBeat): _ready_beat,
    # The second answer of a worker that was asked twice to drain.
    (_S.READY, control.DrainRefused): _stay,
    (_S.READY, control.Drained): _drained,
    (_S.READY, DrainRequested): _drain,
    (_S.READY, Tick): _tick_ready,
    (_S.DRAINING, control.WorkerHello): _hello_again,
    # An adopted worker loaded when it was asked to drain before its hello.
    (_S.DRAINING, control.LoadAdvanced): _drained,
    (_S.DRAINING, control.Loaded): _drained,
    (_S.DRAINING, control.LoadFailed): _drained,
    (_S.DRAINING, control.WorkerBeat): _draining_beat,
    (_S.DRAINING, control.DrainRefused): _drain_refused,
    (_S.DRAINING, control.Drained): _drained,
    (_S.DRAINING, DrainRequested): _drain_again,
    (_S.DRAINING, Tick): _tick_draining,
    (_S.STOPPING, Tick): _tick_stopping,
    (_S.STOPPING, KillRequested): _kill_stopping,
    **{(_S.STOPPING, late): _stay for late in _LATE},
    **{(state, StopRequested): _stop for state in (_S.STARTING, _S.LOADING, _S.READY, _S.DRAINING)},
    **{(state, KillRequested): _kill for state in (_S.STARTING, _S.LOADING, _S.READY, _S.DRAINING)},
    **{
        (state, ProcessExited): _exited
        for state in (_S.STARTING, _S.LOADING, _S.READY, _S.DRAINING, _S.STOPPING)
    },
}
