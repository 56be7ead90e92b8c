"""The routers as a table: every pair of state and event, and random lives without a process."""

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.messages.control import RouterBeat
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.decisions.lifecycle import LifecycleError
from lmx.supervisor.decisions.routers import (
    COLUMNS,
    TABLE,
    AddressNeeded,
    Adopted,
    Exited,
    Hello,
    Note,
    Routers,
    Signal,
    Started,
    StartFailed,
    StartRouter,
    State,
    Stopped,
    Tick,
    never,
    quiet_until_s,
    step,
)
from lmx.supervisor.state.process_records import RouterRecord

TIMING = TimingConfig()


def record(pid: int, *, retiring: bool = False) -> RouterRecord:
    return RouterRecord(pid, f"r{pid}", "127.0.0.1", 8000, retiring)


def run(*events: Any) -> Routers:
    routers = Routers()
    for at_s, event in enumerate(events):
        routers, _ = step(routers, event, TIMING, float(at_s))
    return routers


UP = (Started(record(1)), Hello(1, 8000))
IN_STATE = {
    State.DOWN: run(),
    State.SERVING: run(*UP),
    State.REPLACING: run(*UP, Started(record(2))),
    State.STOPPING: run(*UP, Started(record(2)), Stopped(5.0)),
}
EVENTS = (
    Started(record(3)), StartFailed(), AddressNeeded(), Adopted(record(4)),
    Adopted(record(5, retiring=True)), Hello(1, 8000), Hello(2, 8000), Hello(9, 8000),
    RouterBeat(1, 1, 2, 3), Exited(1), Exited(2, 0), Exited(9), Tick(), Tick(2.0, {1: 1.0}),
    Stopped(5.0), Stopped(0.0),
)  # fmt: skip


def test_every_event_has_a_cell_for_each_state_and_every_state_is_reached() -> None:
    assert {type(event) for event in EVENTS} == set(TABLE)
    assert [IN_STATE[state].state for state in COLUMNS] == list(COLUMNS)
    assert all(len(row) == len(COLUMNS) for row in TABLE.values())


@pytest.mark.parametrize("state", COLUMNS)
def test_what_cannot_happen_is_raised_with_the_state(state: State) -> None:
    for event in EVENTS:
        if TABLE[type(event)][COLUMNS.index(state)] is never:
            with pytest.raises(LifecycleError, match=f"while {state.name}"):
                step(IN_STATE[state], event, TIMING, 9.0)
        else:
            after, _ = step(IN_STATE[state], event, TIMING, 9.0)
            assert (after.serving is None) is (after.state is State.DOWN) or after.stopping


def test_a_replacement_that_is_replaced_itself_is_followed_by_a_later_number() -> None:
    routers = run(*UP, Started(record(2)), Started(record(3)), Exited(2, 0), Hello(3, 8000))
    assert routers.serving is not None
    assert (routers.serving.pid, routers.serving.number, routers.started) == (3, 3, 3)
    assert [one.pid for one in routers.retiring] == [1]


def test_a_router_that_is_ended_keeps_its_grace_when_the_supervisor_was_not_running() -> None:
    routers = run(*UP, Started(record(2)), Hello(2, 8000))
    term_at_s, kill_at_s = (at_s for at_s, _ in routers.retiring[0].signals)
    sent = []
    for at_s, paused_s in (
        (term_at_s - 1.0, 0.0),
        (term_at_s + kill_at_s, kill_at_s),
        (2 * kill_at_s - 0.1, 0.0),
        (2 * kill_at_s, 0.0),
    ):
        routers, effects = step(routers, Tick(paused_s), TIMING, at_s)
        sent.append([one.number for one in effects if isinstance(one, Signal) and one.pid == 1])
    assert sent == [[], [signal.SIGTERM], [], [signal.SIGKILL]]


@given(
    st.lists(st.sampled_from(("start", "hello", "end", "beat", "free", "tick")), max_size=40),
    st.randoms(use_true_random=False),
)
def test_whatever_happens_one_serves_or_is_planned_and_nobody_is_forgotten(
    kinds: list[str], random: Any
) -> None:
    routers, alive, last, now_s = Routers(), set[int](), 0, 0.0
    for kind in ("start", *kinds):
        now_s += random.choice((0.1, 1.0, 30.0))
        pid = random.choice((0, *alive))
        event: Any = Tick()
        if kind == "start":
            last += 1
            alive.add(last)
            event = Started(record(last))
        elif kind == "hello":
            event = Hello(pid, 8000)
        elif kind == "beat":
            event = RouterBeat(pid, 0, 0, 0)
        elif kind == "end":
            alive.discard(pid)
            event = Exited(pid, -signal.SIGKILL)
        elif kind == "free":
            event = AddressNeeded()
        routers, effects = step(routers, event, TIMING, now_s)
        if StartRouter() in effects:
            routers, _ = step(routers, StartFailed(), TIMING, now_s)
        assert {router.pid for router in routers.all} == alive
        assert routers.serving is not None or routers.retry_at_s is not None
        assert all(router.signals for router in routers.retiring), "its end is planned"
        assert {each.pid for each in effects if isinstance(each, Signal)} <= alive | {pid}
        assert all(each.name.startswith("router.") for each in effects if isinstance(each, Note))
    routers, _ = step(routers, Stopped(1.0), TIMING, now_s)
    _, effects = step(routers, Tick(), TIMING, now_s + 1.0)
    assert {one.pid for one in effects if isinstance(one, Signal)} == alive


@pytest.mark.parametrize(
    ("events", "quiet"),
    [
        (UP, True),
        (UP[:1], False),
        ((), False),
        ((*UP, Started(record(2))), False),
        ((*UP, Started(record(2)), Hello(2, 8000)), False),
        ((*UP, Exited(1, 0)), False),
        ((*UP, Stopped(1.0)), False),
    ],
)
def test_only_a_router_that_serves_alone_is_quiet(events: tuple[Any, ...], quiet: bool) -> None:
    routers = run(*events)
    late_at_s = 1.0 + TIMING.beat_timeout_s / 4
    assert quiet_until_s(routers, TIMING, 1.0) == (late_at_s if quiet else None)
    assert quiet_until_s(routers, TIMING, late_at_s) is None
