"""A slot's life: every pair of state and event, random lives, and the picture in LIFECYCLE.md."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from inspect import isclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmx.supervisor
from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.messages import control
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import ExitCause, LoadPhase, SlotState, WorkerState
from lmx.supervisor.decisions.lifecycle import LifecycleError, adopted, spawned
from lmx.supervisor.decisions.restart import FailureRecord, RestartPolicy
from lmx.supervisor.decisions.slots import effects, events
from lmx.supervisor.decisions.slots.demand import Requester, Waiter
from lmx.supervisor.decisions.slots.life import Intent, Rules, SlotLife, held_life
from lmx.supervisor.decisions.slots.table import COLUMNS, TABLE, step
from lmx.supervisor.decisions.slots.transitions import late, never
from lmx.supervisor.decisions.worker import KillRequested, Limits, Tick
from tests.support.rigs.budgets import examples

LIMITS = Limits(
    start_s=10, load_stall_s=20, beat_s=500, stall_s=500, drain_s=8, term_grace_s=3, abort_grace_s=2
)
RULES = Rules(RestartPolicy(0.5, 30.0, 60.0, max_failures=1, window_s=60.0))
STOPPING = replace(RULES, stopping=True)
ME = "aaaa0000"
S = SlotState

FAILED = UnavailableError(ErrorCode.DOWNLOAD_FAILED, "no network")
NO_ROOM = UnavailableError(ErrorCode.INSUFFICIENT_MEMORY, "no room")
READY = control.WorkerHello(ME, "m", 1, WorkerState.READY, 7, 99)
BEAT = control.WorkerBeat(ME, WorkerState.READY, 0, 0, 0.0, WorkerFigures(memory_bytes=7))


def asked(number: int = 1, at_s: float = 0.0, wait_s: float = 30.0) -> events.Requested:
    return events.Requested(Waiter(Requester(b"router", number), at_s + wait_s, at_s))


def launched() -> events.Launched:
    return events.Launched(spawned(ME, "m", 1, LIMITS, 0.0))


EVENTS: list[Any] = [
    asked(),
    events.Preloaded(),
    events.Ordered(),
    events.ReloadOrdered("anew"),
    events.Withdrawn(b"router"),
    events.Unloaded(),
    events.Held(),
    events.Reset(),
    events.ShutDown(at_once=False),
    events.ShutDown(at_once=True),
    events.Reconfigured(),
    events.Reread(),
    events.Removed("it went"),
    events.Restored(preload=True),
    events.Restored(preload=False),
    events.FilesMissing(),
    events.FetchAdvanced(LoadPhase.DOWNLOAD, 0.5),
    events.Fetched(),
    events.FetchFailed(FAILED),
    events.FetchFailed(FAILED, by_host=True, jitter=0.5),
    events.Planned(100),
    events.NotStarted(FAILED),
    events.NotStarted(NO_ROOM),
    events.NotStarted(FAILED, by_host=True),
    events.FilesLeaving(True),
    events.FilesLeaving(False),
    events.QueueReported(),
    events.Dropped(),
    launched(),
    events.Adopted(adopted(ME, "m", 1, LIMITS, 0.0)),
    events.Evicted(ExitCause.EVICTED, "room", True, "other"),
    events.Evicted(ExitCause.EXPIRED, "idle", True),
    Tick(),
    READY,
    control.WorkerHello(ME, "m", 1, WorkerState.STARTING),
    control.LoadAdvanced(ME, LoadPhase.WEIGHTS, 0.5),
    control.Loaded(ME, 1234, 8192, 1.5),
    control.LoadFailed(ME, ErrorCode.MODEL_LOAD_FAILED, "no weights"),
    control.LoadFailed(ME, ErrorCode.MODEL_LOAD_FAILED, "no weights", True),
    BEAT,
    control.DrainRefused(ME, 2),
    control.Drained(ME),
    KillRequested(ExitCause.KILLED, "kill"),
    KillRequested(ExitCause.OUT_OF_MEMORY, "it grew"),
    events.Exited(0),
    events.Exited(-9, jitter=0.5),
    events.Exited(-9, out_of_memory=True, jitter=0.9),
    events.MemorySettled(0),
    events.MemorySettled(1 << 30),
]
"""At least one of each kind."""


def run(*script: Any, life: SlotLife | None = None, rules: Rules = RULES) -> SlotLife:
    life = life or SlotLife("m")
    for event in script:
        life, _ = step(life, event, rules, 1.0)
    return life


WAITING = (asked(), events.Planned(100))
UP = (*WAITING, launched(), READY)
CRASHED = (*UP, events.Exited(1, jitter=0.5))
FAILED_BEFORE = SlotLife("m", failures=FailureRecord((0.9,), 1))
"""One failure in a minute may be tried again; a second one is not."""
LOST_BEFORE = SlotLife("m", failures=FailureRecord(losses=1))
"""The memory of one worker did not come back. After a second one no other is started."""
LOST_TWICE = SlotLife("m", failures=FailureRecord(losses=2))
LIVES: dict[SlotState, list[SlotLife]] = {
    S.COLD: [SlotLife("m"), run(asked(), events.NotStarted(NO_ROOM)), LOST_BEFORE, LOST_TWICE],
    S.FETCHING: [
        run(asked(), events.FilesMissing()),
        run(asked(), events.FilesMissing(), events.MemorySettled(1), life=LOST_BEFORE),
    ],
    S.QUEUED: [
        run(asked()),
        run(*WAITING),
        run(events.Preloaded(), events.Planned(1)),
        run(*WAITING, life=LOST_BEFORE),
    ],
    S.OCCUPIED: [
        run(*WAITING, launched()),
        run(*UP),
        run(*UP, events.Unloaded()),
        run(*UP, events.Evicted(ExitCause.EVICTED, "room", True, "other")),
        run(*UP, events.Held()),
        run(*UP, events.Removed("it went")),
        run(*WAITING, launched(), control.LoadFailed(ME, ErrorCode.MODEL_LOAD_FAILED, "no", True)),
        run(*UP, life=FAILED_BEFORE),
    ],
    S.BACKOFF: [run(*CRASHED), run(*CRASHED, asked()), run(*CRASHED, life=LOST_BEFORE)],
    S.QUARANTINED: [run(*UP, events.Exited(1), life=FAILED_BEFORE)],
    S.HELD: [held_life("m")],
}
KINDS = sorted(TABLE, key=lambda kind: kind.__name__)


def outcomes(state: SlotState, kind: type) -> Iterator[SlotLife]:
    """What may follow an event of this kind in this state, while lmx is not shutting down."""
    for life in LIVES[state]:
        for event in [event for event in EVENTS if type(event) is kind]:
            for now_s in (1.0, 300.0):
                with contextlib.suppress(LifecycleError):
                    yield step(life, event, RULES, now_s)[0]


def test_the_lives_are_in_the_states_that_they_stand_for() -> None:
    assert set(LIVES) == set(SlotState)
    for state, lives in LIVES.items():
        assert {life.state for life in lives} == {state}


def test_every_event_has_a_row_and_every_row_a_column_for_each_state() -> None:
    reported = {each for each in vars(events).values() if isclass(each)}
    mine = {each for each in reported if each.__module__ == events.__name__}
    workers = {
        control.WorkerHello, control.LoadAdvanced, control.Loaded, control.LoadFailed,
        control.WorkerBeat, control.DrainRefused, control.Drained,
    }  # fmt: skip
    assert set(TABLE) == mine | workers | {Tick, KillRequested}
    assert {type(event) for event in EVENTS} == set(TABLE)
    assert set(COLUMNS) == set(SlotState)
    assert all(len(row) == len(COLUMNS) for row in TABLE.values())


@pytest.mark.parametrize("state", list(SlotState))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_pair_of_state_and_event_is_a_transition_or_late_or_an_error(
    state: SlotState, kind: type
) -> None:
    handler = TABLE[kind][COLUMNS.index(state)]
    for life in LIVES[state]:
        for event in [event for event in EVENTS if type(event) is kind]:
            if handler is never:
                with pytest.raises(LifecycleError, match=f"got {kind.__name__} while {state}"):
                    step(life, event, RULES, 2.0)
            elif handler is late:
                assert step(life, event, RULES, 2.0) == (life, ())
    assert handler is never or list(outcomes(state, kind)), "it can happen"


# Random lives.


def check(life: SlotLife) -> None:
    """What holds of every slot, whatever came before."""
    assert (life.worker is not None) == (life.state is S.OCCUPIED)
    assert life.worker is None or life.worker.state is not WorkerState.EXITED
    assert (life.retry_at_s is not None) == (life.state is S.BACKOFF)
    assert life.need_bytes is None or life.state is S.QUEUED
    assert life.fetch_phase is None or life.state is S.FETCHING
    if life.state is S.HELD:
        assert life.held
    if life.held:
        assert life.state in (S.HELD, S.OCCUPIED)
        assert life.ready_worker is None
    if life.removed:
        assert life.state in (S.COLD, S.QUARANTINED, S.OCCUPIED)
        assert life.ready_worker is None
    if life.state is S.QUARANTINED:
        assert not life.wanted
        assert life.problem is not None
    if life.demand.waiters:
        assert life.state in (S.FETCHING, S.QUEUED, S.OCCUPIED, S.BACKOFF)
        assert life.wanted
        assert life.ready_worker is None


def replied(reported: tuple[Any, ...]) -> list[int]:
    kinds = (effects.Answer, effects.Deny, effects.NotifyLate)
    return [
        waiter.requester.correlation
        for effect in reported
        if isinstance(effect, kinds)
        for waiter in effect.waiters
    ]


@settings(deadline=None, max_examples=examples(300))
@given(
    st.sampled_from([life for lives in LIVES.values() for life in lives]),
    st.lists(st.tuples(st.integers(0, len(EVENTS) - 1), st.floats(0, 20)), max_size=60),
)
def test_any_sequence_keeps_the_rules(life: SlotLife, script: list[tuple[int, float]]) -> None:
    now_s, rules, number = 1.0, RULES, 1
    open_requests = {waiter.requester.correlation for waiter in life.demand.waiters}
    for index, wait_s in script:
        event = EVENTS[index]
        now_s += wait_s
        if isinstance(event, events.Requested):
            number += 1
            event = asked(number, now_s)
            open_requests.add(number)
        elif isinstance(event, events.Launched):
            if life.need_bytes is None:
                continue  # it waits for no memory yet
            event = events.Launched(spawned(ME, "m", 1, LIMITS, now_s))
        elif isinstance(event, events.ShutDown):
            rules = STOPPING
        before = life
        try:
            life, reported = step(life, event, rules, now_s)
        except LifecycleError as error:
            assert "before that: " in str(error)
            continue
        check(life)
        answered = replied(reported)
        assert len(answered) == len(set(answered))
        assert open_requests.issuperset(answered)
        open_requests -= set(answered)
        if isinstance(event, events.Withdrawn):
            open_requests.clear()
        assert open_requests == {waiter.requester.correlation for waiter in life.demand.waiters}
        names = [type(effect) for effect in reported]
        assert (effects.WorkerGone in names) == isinstance(event, events.Exited)
        if effects.ReadFiles in names:
            assert (life.state, life.need_bytes) == (S.QUEUED, None)
            assert life.intent not in (Intent.HELD, Intent.REMOVED)
            assert not rules.stopping or before.state is S.QUEUED, "nothing starts while lmx ends"
        left = before.state is S.FETCHING and life.state is not S.FETCHING
        ended = isinstance(event, events.Fetched | events.FetchFailed)
        assert (effects.StopFetch in names) == (left and not ended)
        assert (effects.StartFetch in names) == (
            life.state is S.FETCHING and before.state is not S.FETCHING
        )
        if before.removed and not isinstance(event, events.Restored):
            assert life.removed
        if effects.Gone in names:
            return


# What the rules say, one at a time.


def test_an_eviction_does_not_bring_back_what_it_made_go() -> None:
    life = run(*UP, events.Evicted(ExitCause.EVICTED, "room", True, "other"))
    life, reported = step(run(control.Drained(ME), life=life), events.Exited(0), RULES, 2.0)
    assert (life.state, life.intent) == (S.COLD, Intent.DOWN)
    assert isinstance(reported[0], effects.WorkerGone)
    assert reported[0].swapped


def test_a_busy_one_that_refuses_is_wanted_again() -> None:
    life = run(*UP, events.Evicted(ExitCause.EVICTED, "room", True, "other"))
    life, reported = step(life, asked(2), RULES, 2.0)
    assert reported == ()
    life, reported = step(life, control.DrainRefused(ME, 1), RULES, 2.0)
    assert (life.wanted, life.evicted_for, replied(reported)) == (True, None, [2])


def test_a_removed_model_goes_with_its_worker_and_comes_back_only_when_configured() -> None:
    life = run(*UP, events.Removed("it went"), events.Ordered(), events.Held(), events.Reset())
    assert life.removed
    _, reported = step(life, events.Exited(0), RULES, 2.0)
    assert reported[-1] == effects.Gone()
    life = run(events.Restored(preload=True), events.Exited(0), life=life)
    assert (life.state, life.intent) == (S.QUEUED, Intent.UP)


def test_a_held_model_is_loaded_for_no_request_and_no_preload() -> None:
    for event in (asked(), events.Preloaded(), events.Unloaded(), Tick(), events.Reconfigured()):
        assert run(event, life=held_life("m")).state is S.HELD
    assert run(events.Adopted(adopted(ME, "m", 1, LIMITS, 0.0)), life=held_life("m")).held
    assert run(events.Ordered(), life=held_life("m")).state is S.QUEUED


def test_nothing_belongs_to_a_state_that_was_left() -> None:
    """A field of one state alone is reset by each step that leaves it."""
    life = run(*UP, events.Evicted(ExitCause.EVICTED, "room", True, "other"), events.Exited(0))
    assert life == replace(SlotLife("m"), history=life.history)
    assert {field.name for field in fields(life)} >= {"spawned_at_s", "ready_at_s", "evicted_for"}


def test_after_the_second_worker_that_leaves_memory_behind_none_is_started() -> None:
    """Wired memory that macOS keeps comes back with a restart of the machine only."""
    lost, back = events.MemorySettled(1 << 30), events.MemorySettled(0)
    life = run(*CRASHED, lost)
    assert life.state is S.BACKOFF, "one loss may be chance"
    assert run(back, lost, life=life).state is S.BACKOFF, "two in a row count"
    for state in (S.COLD, S.QUEUED, S.BACKOFF):
        after, reported = step(
            LIVES[state][-1] if state is not S.COLD else LOST_BEFORE, lost, RULES, 2
        )
        assert after.state is S.QUARANTINED
        assert after.problem is not None
        assert "Restart the machine" in after.problem.message
        assert "`lmx restart m`" in after.problem.message
        assert effects.Note in [type(effect) for effect in reported]
    stopping, _ = step(LOST_BEFORE, lost, STOPPING, 2.0)
    assert stopping.state is S.COLD

    # A worker that has been started meanwhile goes on, and is the last.
    life = run(*UP, lost, life=LOST_BEFORE)
    assert life.ready_worker is not None
    for cause in (events.Exited(1), events.Exited(0)):
        ended = run(cause, Tick(), life=life)
        assert step(ended, Tick(), RULES, 100.0)[0].state is S.QUARANTINED
    denied, reported = step(LOST_TWICE, asked(3), RULES, 2.0)
    assert (denied.state, replied(reported)) == (S.QUARANTINED, [3])

    # Unless an operator wants it.
    for wish in (events.Ordered(), events.ReloadOrdered("anew")):
        again = run(wish, events.Exited(0), life=life)
        assert (again.state, again.failures.losses) == (S.QUEUED, 0)
    assert run(events.Ordered(), life=LOST_TWICE).state is S.QUEUED
    assert run(events.Reset(), asked(4), life=denied).state is S.QUEUED


def test_nothing_begins_with_files_that_are_being_deleted() -> None:
    leaving = run(events.FilesLeaving(True))
    denied, reported = step(leaving, asked(3), RULES, 2.0)
    assert (denied.state, replied(reported)) == (S.COLD, [3])
    for wish in (events.Ordered(), events.ReloadOrdered("anew"), events.Preloaded()):
        kept, _ = step(leaving, wish, RULES, 2.0)
        assert (kept.state, kept.wanted) == (S.COLD, False)
        assert kept.problem is not None
        assert "are being deleted" in kept.problem.message
    assert run(events.FilesLeaving(False), asked(), life=denied).state is S.QUEUED


def test_a_machine_that_starts_no_process_is_asked_again() -> None:
    tried, reported = step(run(*WAITING), events.NotStarted(FAILED, by_host=True), RULES, 2.0)
    assert (tried.state, len(replied(reported))) == (S.BACKOFF, 1)
    assert (tried.problem, tried.failures.failed_at_s) == (FAILED, ())
    assert step(tried, Tick(), RULES, 100.0)[0].state is S.QUEUED


# The picture.


GONE = events.Withdrawn(b"router")


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ((asked(),), S.COLD),
        ((asked(), asked(2)), S.COLD),
        ((events.Preloaded(),), S.QUEUED),
        ((events.Preloaded(), asked(), GONE), S.QUEUED),
        ((*CRASHED, Tick(), Tick()), S.QUEUED),
        # Dropped and asked for again it has nobody else.
        ((events.Preloaded(), asked(), GONE, events.Dropped(), asked()), S.COLD),
    ],
)
def test_who_leaves_takes_only_that_back_for_which_it_came(
    script: tuple[Any, ...], state: SlotState
) -> None:
    life = SlotLife("m")
    for at_s, event in enumerate(script):
        life, _ = step(life, event, RULES, 100.0 * at_s)
    now_s = 100.0 * len(script)
    life, _ = step(life, asked(7, now_s), RULES, now_s)
    life, _ = step(life, GONE, RULES, now_s)
    assert (life.state, life.wanted) == (state, state is S.QUEUED)
    assert life.demand.requested_at_s(now_s) is None


def test_lifecycle_md_has_the_picture_of_the_table() -> None:
    """Every arrow between two states, with its events; those that end where they began are in the
    table alone."""
    found: dict[tuple[str, str], set[str]] = {}
    for kind in TABLE:
        for state in SlotState:
            for after in outcomes(state, kind):
                if after.state is not state:
                    arrow = (state.name, after.state.name)
                    found.setdefault(arrow, set()).add(kind.__name__)
    text = (Path(next(iter(lmx.supervisor.__path__))) / "LIFECYCLE.md").read_text()
    picture = text.split("## A model's slot")[1].split("```")[1]
    drawn = {
        (source, target): set(re.split(r",\s*", names.strip()))
        for source, target, names in re.findall(r"(?m)^ *(\w+) --> (\w+): (.+)$", picture)
    }
    assert drawn == found


def test_the_history_of_a_slot_is_in_the_message_of_a_bug() -> None:
    with pytest.raises(LifecycleError, match="before that: cold, Requested->queued, Launched->oc"):
        step(run(*UP), launched(), RULES, 2.0)
