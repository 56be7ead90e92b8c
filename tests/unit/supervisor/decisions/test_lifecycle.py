"""A worker's life: the table, one row at a time, and every pair of state and event."""

import math
import signal
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages import control
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import ExitCause, LoadPhase, WorkerState
from lmx.supervisor.decisions.lifecycle import (
    LifecycleError,
    adopted,
    is_late,
    quiet_until_s,
    spawned,
    step,
)
from lmx.supervisor.decisions.worker import (
    BecameReady,
    DrainRequested,
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

LIMITS = Limits(
    start_s=10, load_stall_s=20, beat_s=5, stall_s=30, drain_s=8, term_grace_s=3, abort_grace_s=2
)
ME = "aaaa0000"


def hello(state: WorkerState = WorkerState.STARTING) -> control.WorkerHello:
    return control.WorkerHello(ME, "m", 42, state, memory_bytes=7, context_length=99)


def beat(stalled_for_s: float = 0.0, rows: int = 0) -> control.WorkerBeat:
    return control.WorkerBeat(
        ME, WorkerState.READY, rows, 0, stalled_for_s, WorkerFigures(memory_bytes=7)
    )


LOADED = control.Loaded(ME, 1234, 8192, 1.5)
DRAIN = DrainRequested(False, ExitCause.UNLOADED, "asked")
STOP = StopRequested(ExitCause.SHUTDOWN, "down")
KILL = KillRequested(ExitCause.KILLED, "kill")
EVENTS: list[Any] = [
    hello(),
    hello(WorkerState.LOADING),
    hello(WorkerState.READY),
    hello(WorkerState.DRAINING),
    control.LoadAdvanced(ME, LoadPhase.WEIGHTS, 0.5),
    LOADED,
    control.LoadFailed(ME, ErrorCode.MODEL_LOAD_FAILED, "no weights"),
    beat(),
    beat(stalled_for_s=31, rows=1),
    control.DrainRefused(ME, 2),
    control.Drained(ME),
    DRAIN,
    replace(DRAIN, if_idle=True),
    STOP,
    KILL,
    Tick(),
    Tick(paused_s=100.0),
    ProcessExited(0),
    ProcessExited(-9),
    ProcessExited(None),
]


def new() -> Worker:
    return spawned(ME, "m", 42, LIMITS, 0.0)


def ready() -> Worker:
    worker, _ = step(new(), hello(), 1.0)
    worker, effects = step(worker, LOADED, 2.0)
    assert effects == (BecameReady(1234),)
    return worker


def test_the_common_life() -> None:
    worker, effects = step(new(), hello(), 1.0)
    assert (worker.state, effects) == (WorkerState.LOADING, (SendWelcome(),))
    worker, _ = step(worker, control.LoadAdvanced(ME, LoadPhase.WEIGHTS, 0.5), 2.0)
    assert (worker.phase, worker.fraction) == (LoadPhase.WEIGHTS, 0.5)
    worker, effects = step(worker, LOADED, 3.0)
    assert worker.state is WorkerState.READY
    assert (worker.ready_memory_bytes, worker.context_length) == (1234, 8192)
    worker, effects = step(worker, DRAIN, 4.0)
    assert (worker.state, effects) == (WorkerState.DRAINING, (SendDrain(False),))
    worker, effects = step(worker, control.Drained(ME), 5.0)
    assert (worker.state, effects) == (WorkerState.STOPPING, (SendSignal(signal.SIGTERM),))
    worker, effects = step(worker, ProcessExited(0), 6.0)
    assert worker.state is WorkerState.EXITED
    assert effects == (Ended(ExitCause.UNLOADED, "asked"),)
    _, (ended,) = step(ready(), ProcessExited(-9), 9.0)
    assert isinstance(ended, Ended) and ended.cause is ExitCause.SIGNAL, "nobody asked for it"


def test_a_load_is_judged_by_stall_not_by_total_time() -> None:
    worker, _ = step(new(), hello(), 0.0)
    now_s = 0.0
    for _ in range(50):
        now_s += 4.0
        worker, _ = step(worker, beat(), now_s)
        if int(now_s) % 16 == 0:
            worker, _ = step(worker, control.LoadAdvanced(ME, LoadPhase.WEIGHTS, None), now_s)
        worker, effects = step(worker, Tick(), now_s)
        assert worker.state is WorkerState.LOADING
        assert effects == ()
    for _ in range(10):
        now_s += 4.0
        worker, _ = step(worker, beat(), now_s)
        worker, effects = step(worker, Tick(), now_s)
    assert worker.cause is ExitCause.HANG
    assert "load made no progress" in worker.detail


def test_a_stalled_engine_writes_its_stacks_is_asked_to_end_then_killed() -> None:
    worker, effects = step(ready(), beat(stalled_for_s=30.5, rows=3), 10.0)
    assert effects == (SendSignal(signal.SIGQUIT),)
    assert worker.cause is ExitCause.HANG
    assert "3 requests" in worker.detail
    worker, effects = step(worker, Tick(), 10.4)
    assert effects == ()
    worker, effects = step(worker, Tick(), 10.5)
    assert effects == (SendSignal(signal.SIGTERM),)
    paused, _ = step(worker, Tick(paused_s=60.0), 70.0)
    assert (paused.state, paused.deadline_s) == (WorkerState.STOPPING, 72.0)
    worker, effects = step(worker, Tick(), 11.9)
    assert effects == ()
    worker, effects = step(worker, Tick(), 12.0)
    assert effects == (SendSignal(signal.SIGKILL),)
    _, effects = step(worker, ProcessExited(-9), 12.1)
    assert isinstance(effects[0], Ended)
    assert effects[0].cause is ExitCause.HANG


def test_one_that_may_end_before_it_is_killed_has_its_grace() -> None:
    asked = KillRequested(ExitCause.OUT_OF_MEMORY, "it grew", may_end=True)
    worker, effects = step(ready(), asked, 10.0)
    assert effects == (SendSignal(signal.SIGTERM),)
    again, effects = step(worker, asked, 11.0)
    assert (again.deadline_s, effects) == (13.0, ())
    _, effects = step(again, Tick(), 13.0)
    assert effects == (SendSignal(signal.SIGKILL),)


def test_a_worker_is_stuck_after_seconds_however_often_its_kill_is_asked_for() -> None:
    worker, _ = step(new(), STOP, 0.0)
    for count in range(11):
        worker, effects = step(worker, KILL, 1.0 + count / 1000)
        assert effects == (SendSignal(signal.SIGKILL),)
    assert not worker.stuck
    stuck_at_s = []
    for tenth in range(10, 200):
        worker, effects = step(worker, Tick(), tenth / 10)
        if Stuck() in effects:
            stuck_at_s.append(tenth / 10)
    assert stuck_at_s == [pytest.approx(11.0, abs=1.0)]
    assert worker.stuck


def test_long_work_with_progress_is_left_alone() -> None:
    worker = ready()
    for second in range(3, 3000, 3):
        worker, effects = step(worker, beat(stalled_for_s=29.0, rows=8), float(second))
        assert effects == ()
        worker, effects = step(worker, Tick(), float(second))
        assert effects == ()


def test_a_silent_worker_is_hung_and_a_paused_supervisor_forgives() -> None:
    worker, _ = step(ready(), beat(), 10.0)
    after, effects = step(worker, Tick(), 15.5)
    assert effects == (SendSignal(signal.SIGQUIT),)
    assert "no heartbeat" in after.detail
    after, effects = step(worker, Tick(paused_s=5.0), 15.5)
    assert (after.state, effects) == (WorkerState.READY, ())


def loading() -> Worker:
    return step(new(), hello(), 0.0)[0]


@pytest.mark.parametrize(
    ("worker", "beats", "waits", "hangs_at_s"),
    [
        (new(), False, 0.0, 10),
        (new(), False, 1.0, None),
        (loading(), True, 0.0, 20),
        # A quarter of the limit goes by, and then what is left takes ten times as long.
        (loading(), True, 0.9, 156),
        (loading(), True, 1.0, None),
        (ready(), False, 0.0, 6),
        (ready(), False, 0.9, 41),
        (ready(), False, 1.0, None),
    ],
)
def test_one_that_waits_for_a_processor_does_not_hang(
    worker: Worker, beats: bool, waits: float, hangs_at_s: int | None
) -> None:
    worker = replace(worker, beat_at_s=0.0)
    hung_at_s = None
    for now_s in range(200):
        if beats:
            worker, _ = step(worker, beat(), float(now_s))
        waited_s = waits if is_late(worker, float(now_s)) else 0.0
        worker, _ = step(worker, Tick(waited_s=waited_s), float(now_s))
        if worker.state is WorkerState.STOPPING:
            assert worker.cause is ExitCause.HANG
            hung_at_s = now_s
            break
    assert hung_at_s == hangs_at_s


@pytest.mark.parametrize(("waits", "hangs_at_s"), [(0.0, 31), (0.5, 53), (1.0, None)])
def test_requests_that_wait_for_a_processor_are_not_stalled(
    waits: float, hangs_at_s: int | None
) -> None:
    worker = replace(ready(), beat_at_s=0.0)
    hung_at_s = None
    for now_s in range(100):
        worker, _ = step(worker, beat(float(now_s), rows=1), float(now_s))
        if worker.state is WorkerState.STOPPING:
            hung_at_s = now_s
            break
        waited_s = waits if is_late(worker, float(now_s)) else 0.0
        worker, _ = step(worker, Tick(waited_s=waited_s), float(now_s))
    assert hung_at_s == hangs_at_s
    if hung_at_s is None:
        # Its next token ends the stall, and all that was forgiven with it.
        worker, _ = step(worker, beat(1.0, rows=1), 100.0)
        assert worker.stall_waited_s == 0.0


def test_drain_refused_goes_back_to_ready_and_a_drain_has_a_deadline() -> None:
    draining, _ = step(ready(), replace(DRAIN, if_idle=True), 5.0)
    back, _ = step(draining, control.DrainRefused(ME, 1), 5.1)
    assert (back.state, back.cause) == (WorkerState.READY, None)
    draining, _ = step(draining, beat(), 12.0)
    late, effects = step(draining, Tick(), 13.0)
    assert (late.state, effects) == (WorkerState.STOPPING, (SendSignal(signal.SIGTERM),))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (WorkerState.STARTING, WorkerState.LOADING),
        (WorkerState.LOADING, WorkerState.LOADING),
        (WorkerState.READY, WorkerState.READY),
        (WorkerState.DRAINING, WorkerState.DRAINING),
    ],
)
def test_an_adopted_worker_is_where_it_says(state: WorkerState, expected: WorkerState) -> None:
    worker, _ = step(adopted(ME, "m", 42, LIMITS, 0.0), hello(state), 1.0)
    assert worker.state is expected


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0, 40)), max_size=30))
def test_any_sequence_keeps_the_rules(steps: list[tuple[Any, float]]) -> None:
    """Whatever happens: nothing follows an exit, a deadline exists wherever one must, and a
    worker that is being ended never becomes ready again."""
    worker, now_s = new(), 0.0
    for event, wait_s in steps:
        now_s += wait_s
        before = worker
        try:
            worker, effects = step(worker, event, now_s)
        except LifecycleError as error:
            assert "before that: spawned" in str(error)
            continue
        assert before.state is not WorkerState.EXITED
        if before.state is WorkerState.STOPPING:
            assert worker.state in (WorkerState.STOPPING, WorkerState.EXITED)
        if worker.state not in (WorkerState.READY, WorkerState.EXITED):
            assert worker.deadline_s is not None
        assert (worker.state is WorkerState.EXITED) == any(isinstance(e, Ended) for e in effects)


EVENT_TYPES = sorted({type(event) for event in EVENTS}, key=lambda kind: kind.__name__)
LATE = {
    control.WorkerHello,
    control.LoadAdvanced,
    control.Loaded,
    control.LoadFailed,
    control.WorkerBeat,
    control.DrainRefused,
    control.Drained,
}
NEVER: dict[WorkerState, set[type]] = {
    WorkerState.STARTING: set(),
    WorkerState.LOADING: {control.DrainRefused},
    WorkerState.READY: {control.LoadAdvanced, control.Loaded, control.LoadFailed},
    WorkerState.DRAINING: set(),
    WorkerState.STOPPING: set(),
    WorkerState.EXITED: set(EVENT_TYPES),
}
"""What can't happen in a state. Everything else is in the table; nothing is left out."""


def in_state(state: WorkerState) -> Worker:
    loading, _ = step(new(), hello(), 1.0)
    stopping, _ = step(ready(), STOP, 3.0)
    return {
        WorkerState.STARTING: new(),
        WorkerState.LOADING: loading,
        WorkerState.READY: ready(),
        WorkerState.DRAINING: step(ready(), DRAIN, 3.0)[0],
        WorkerState.STOPPING: stopping,
        WorkerState.EXITED: step(stopping, ProcessExited(0), 4.0)[0],
    }[state]


@pytest.mark.parametrize("state", list(WorkerState))
@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_every_pair_of_state_and_event_is_in_the_table_or_an_error(
    state: WorkerState, kind: type
) -> None:
    worker = in_state(state)
    assert worker.state is state
    for event in [event for event in EVENTS if type(event) is kind]:
        if kind in NEVER[state]:
            with pytest.raises(LifecycleError, match="before that: spawned"):
                step(worker, event, 5.0)
            continue
        after, effects = step(worker, event, 5.0)
        assert isinstance(after, Worker)
        assert (after.state is WorkerState.EXITED) == (kind is ProcessExited)
        if state is WorkerState.STOPPING and kind in LATE:
            assert (after, effects) == (worker, ())


def test_each_message_of_a_worker_is_among_the_events() -> None:
    """A new one must be thought of in every state."""
    reported = {
        message for message in vars(control).values()
        if isinstance(message, type) and "instance" in getattr(message, "__annotations__", {})
        and message not in (control.Acquired, ModelView, control.WorkerExited)
    }  # fmt: skip
    assert reported == LATE


@pytest.mark.parametrize("cause", [ExitCause.EVICTED, ExitCause.EXPIRED])
@pytest.mark.parametrize("polite", [True, False])
def test_no_stream_is_cut_to_make_room(cause: ExitCause, polite: bool) -> None:
    worker, effects = step(ready(), DrainRequested(polite, cause, "room"), 3.0)
    assert effects == (SendDrain(polite),)
    for second in range(4, 400):
        draining = replace(beat(rows=2), state=WorkerState.DRAINING)
        worker, _ = step(worker, draining, float(second))
        worker, effects = step(worker, Tick(), float(second))
        assert (worker.state, effects) == (WorkerState.DRAINING, ())
    worker, effects = step(worker, replace(draining, stalled_for_s=31), 400.0)
    assert (worker.state, worker.cause) == (WorkerState.STOPPING, ExitCause.HANG)


def test_one_that_never_got_the_order_to_drain_is_asked_again() -> None:
    worker, _ = step(ready(), DrainRequested(True, ExitCause.EVICTED, "room"), 3.0)
    worker, _ = step(worker, beat(), 10.0)
    worker, effects = step(worker, Tick(), 11.0)
    assert (worker.state, effects) == (WorkerState.DRAINING, (SendDrain(True),))
    worker, _ = step(worker, replace(beat(), state=WorkerState.DRAINING), 15.0)
    worker, effects = step(worker, Tick(), 19.0)
    assert effects == (SendSignal(signal.SIGTERM),), "it has nothing left, and its word is lost"
    assert worker.cause is ExitCause.EVICTED


def test_a_drain_is_whole_though_its_messages_were_lost_with_a_supervisor() -> None:
    worker, _ = step(ready(), DRAIN, 3.0)
    worker, effects = step(worker, hello(WorkerState.READY), 3.1)
    assert effects == (SendDrain(False),), "it was not connected before"
    draining = replace(beat(rows=1), state=WorkerState.DRAINING)
    for second in (4.0, 5.0):
        worker, effects = step(worker, draining, second)
        assert effects == ()
    worker, effects = step(worker, hello(WorkerState.DRAINING), 5.5)
    assert effects == ()
    # Its last request may have ended this moment, and its message be under way.
    worker, effects = step(worker, replace(draining, rows=0), 6.0)
    assert (worker.state, effects) == (WorkerState.DRAINING, ())
    worker, effects = step(worker, replace(draining, rows=0), 7.0)
    assert (worker.state, effects) == (WorkerState.STOPPING, (SendSignal(signal.SIGTERM),))


def test_an_operator_gives_an_eviction_a_deadline() -> None:
    worker, _ = step(ready(), DrainRequested(False, ExitCause.EVICTED, "room"), 3.0)
    worker, effects = step(worker, DRAIN, 6.0)
    assert (worker.cause, worker.deadline_s) == (ExitCause.UNLOADED, 14.0)
    assert effects == (SendDrain(False),)
    again, _ = step(worker, DrainRequested(False, ExitCause.EVICTED, "room"), 7.0)
    assert (again.cause, again.deadline_s) == (ExitCause.UNLOADED, 14.0)


def test_an_operator_gives_a_worker_that_drains_by_itself_a_deadline() -> None:
    worker, _ = step(ready(), replace(beat(rows=1), state=WorkerState.DRAINING), 3.0)
    assert (worker.state, worker.deadline_s) == (WorkerState.DRAINING, None)
    worker, effects = step(worker, DRAIN, 6.0)
    assert (worker.deadline_s, effects) == (14.0, (SendDrain(False),))
    again, _ = step(worker, DRAIN, 7.0)
    assert again.deadline_s == 14.0


@pytest.mark.parametrize(
    "event",
    [
        hello(),
        hello(WorkerState.LOADING),
        replace(beat(), state=WorkerState.LOADING),
        control.LoadAdvanced(ME, LoadPhase.WEIGHTS, 0.5),
        control.LoadFailed(ME, ErrorCode.MODEL_LOAD_FAILED, "no weights"),
        LOADED,
    ],
)
def test_an_adopted_worker_that_loads_is_stopped_if_it_was_to_drain(event: Any) -> None:
    worker, effects = step(adopted(ME, "m", 42, LIMITS, 0.0), DRAIN, 1.0)
    assert effects == (SendDrain(False),)
    worker, effects = step(worker, event, 2.0)
    assert (worker.state, worker.cause) == (WorkerState.STOPPING, ExitCause.UNLOADED)
    assert effects == (SendSignal(signal.SIGTERM),)


def test_a_refusal_of_the_question_before_does_not_end_a_drain() -> None:
    worker, _ = step(ready(), DrainRequested(True, ExitCause.EVICTED, "room"), 3.0)
    worker, _ = step(worker, DRAIN, 3.1)
    worker, _ = step(worker, control.DrainRefused(ME, 1), 3.2)
    assert worker.state is WorkerState.DRAINING


def test_a_refusal_counts_as_busy_until_the_next_beat() -> None:
    worker, _ = step(ready(), DrainRequested(True, ExitCause.EVICTED, "room"), 3.0)
    worker, _ = step(worker, control.DrainRefused(ME, 0), 3.1)
    assert worker.busy
    assert worker.idle_since_s is None
    worker, _ = step(worker, replace(beat(), idle_for_s=0.4), 4.0)
    assert not worker.busy
    assert worker.idle_since_s == 3.6


@pytest.mark.parametrize("tenths", [1, 10])
def test_a_silent_worker_is_late_at_the_same_time_when_ticks_rest_while_all_is_quiet(
    tenths: int,
) -> None:
    """A clock that rests for as long as a worker is quiet, at most ``tenths``, against one that
    ticks all the time."""
    worker, _ = step(ready(), beat(), 3.0)
    tick, ticked = 30, 0
    while worker.state is WorkerState.READY:
        now_s = tick / 10
        worker, _ = step(worker, Tick(), now_s)
        quiet_s = quiet_until_s(worker, now_s)
        assert (quiet_s is None) == (worker.state is not WorkerState.READY or now_s > 3.0 + 1.25)
        tick += 1 if quiet_s is None else max(1, min(tenths, math.ceil(10 * quiet_s) - tick))
        ticked += 1
    assert now_s == pytest.approx(8.1)
    assert ticked == (52 if tenths == 1 else 41)


@pytest.mark.parametrize(
    "worker",
    [new(), step(new(), hello(), 1.0)[0], step(ready(), beat(rows=1), 3.0)[0],
     step(ready(), DRAIN, 3.0)[0], step(ready(), KILL, 3.0)[0]],
)  # fmt: skip
def test_a_worker_that_does_something_is_not_quiet(worker: Worker) -> None:
    assert quiet_until_s(worker, 3.0) is None
