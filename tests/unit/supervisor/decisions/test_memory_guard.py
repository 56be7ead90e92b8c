"""The memory guard: levels, who is asked, who is killed, and when nobody is."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.states import MemoryPressure
from lmx.supervisor.decisions.memory_reading import MemoryReading
from lmx.supervisor.decisions.pressure import (
    ASK_S,
    ASKS,
    CALM_S,
    EVICT_S,
    GONE_S,
    SETTLE_S,
    Ask,
    Decision,
    GuardState,
    Kill,
    Lines,
    ReportExternalPressure,
    SetLevel,
    WorkerMemory,
    step,
    wanted_level,
)
from tests.support.rigs.budgets import examples

NONE, SOFT, HARD = MemoryPressure.NONE, MemoryPressure.SOFT, MemoryPressure.HARD
TOTAL = 1000
LINES = Lines(soft=0.8, hard=0.9, budget_bytes=700)
_RANK = {NONE: 0, SOFT: 1, HARD: 2}


def used(count: int) -> MemoryReading:
    return MemoryReading(TOTAL, TOTAL - count)


def worker(name: str, measured: int, granted: int = 400, **flags: bool) -> WorkerMemory:
    return WorkerMemory(name, f"model-{name}", measured, granted, **flags)


def run(
    script: Sequence[tuple[float, MemoryReading, list[WorkerMemory]]],
    state: GuardState | None = None,
) -> tuple[GuardState, list[tuple[float, Decision]]]:
    state = state or GuardState()
    reported: list[tuple[float, Decision]] = []
    for now_s, reading, workers in script:
        state, decisions = step(state, reading, workers, LINES, now_s)
        reported.extend((now_s, decision) for decision in decisions)
    return state, reported


def levels(reported: list[tuple[float, Decision]]) -> list[tuple[float, MemoryPressure]]:
    return [(now_s, one.level) for now_s, one in reported if isinstance(one, SetLevel)]


def acts(reported: list[tuple[float, Decision]]) -> list[tuple[float, Ask | Kill]]:
    return [(now_s, one) for now_s, one in reported if isinstance(one, Ask | Kill)]


def test_levels_of_the_machine() -> None:
    busy = [worker("a", 300, busy=True)]
    assert wanted_level(used(799), busy, LINES) is NONE
    assert wanted_level(used(800), busy, LINES) is SOFT
    assert wanted_level(used(900), busy, LINES) is HARD


def test_levels_of_the_budget() -> None:
    fits = [worker("a", 300), worker("b", 400)]
    assert wanted_level(used(100), fits, LINES) is NONE
    assert wanted_level(used(100), [*fits, worker("c", 2, granted=1)], LINES) is HARD
    grown = [worker("a", 100, granted=400), worker("b", 310, granted=300)]
    assert wanted_level(used(100), grown, LINES) is SOFT
    within = [replace(grown[0]), worker("b", 300, granted=310)]
    assert wanted_level(used(100), within, LINES) is NONE


def test_who_keeps_to_its_reservation_answers_for_no_smaller_budget() -> None:
    """After a reload that lowers it, the models that are there go once they are idle."""
    workers = [worker("a", 400, busy=True), worker("b", 350, busy=True)]
    state, reported = run([(float(now_s), used(760), workers) for now_s in range(60)])
    assert levels(reported) == [(0.0, SOFT)]
    assert not acts(reported)
    assert state.level is SOFT


def test_a_level_is_left_late_and_only_well_below_its_line() -> None:
    state, reported = run([(0.0, used(800), []), (1.0, used(790), []), (50.0, used(781), [])])
    assert levels(reported) == [(0.0, SOFT)]
    _, reported = run(
        [(60.0, used(770), []), (62.0, used(790), []), (63.0, used(770), []),
         (63.0 + CALM_S - 0.1, used(770), []), (63.0 + CALM_S, used(770), [])],
        state,
    )  # fmt: skip
    assert levels(reported) == [(63.0 + CALM_S, NONE)]


def test_the_reason_has_figures() -> None:
    _, reported = run([(0.0, used(800), [worker("a", 300)])])
    assert isinstance(reported[0][1], SetLevel)
    assert "80% of 1000 B" in reported[0][1].reason
    assert "300 B of their budget of 700 B" in reported[0][1].reason


def test_asked_twice_then_killed() -> None:
    workers = [worker("a", 300, busy=True), worker("b", 200, busy=True)]
    script = [(time_s / 2, used(950), workers) for time_s in range(40)]
    state, reported = run(script)
    assert acts(reported)[:2] == [(SETTLE_S, Ask("a")), (SETTLE_S + ASK_S, Ask("a"))]
    (at_s, kill), *more = acts(reported)[2:]
    assert at_s == SETTLE_S + 2 * ASK_S
    assert isinstance(kill, Kill)
    assert kill.instance == "a"
    assert "300 B" in kill.detail
    assert "context_length" in kill.detail
    assert not more  # it is still there, and nobody else's turn yet
    assert state.killed


def test_who_grew_most_comes_before_who_is_largest() -> None:
    workers = [worker("a", 300, busy=True), worker("b", 250, granted=200), worker("c", 5, 4)]
    _, reported = run([(0.0, used(950), workers), (EVICT_S, used(950), workers)])
    assert acts(reported) == [(EVICT_S, Ask("b"))]


def test_a_load_is_ended_before_an_answer_is() -> None:
    workers = [worker("a", 300, busy=True), worker("b", 200, loading=True)]
    _, reported = run([(0.0, used(950), workers), (SETTLE_S, used(950), workers)])
    assert [one.instance for _, one in acts(reported) if isinstance(one, Kill)] == ["b"]


def test_idle_ones_may_be_evicted_first_and_are_never_asked() -> None:
    workers = [worker("a", 300, busy=True), worker("b", 300)]
    _, reported = run([(0.0, used(950), workers), (SETTLE_S, used(950), workers)])
    assert not acts(reported)
    idle = [worker("a", 300), worker("b", 300)]
    _, reported = run([(float(now_s), used(950), idle) for now_s in range(60)])
    assert not acts(reported)


def test_one_that_is_on_its_way_out_is_waited_for() -> None:
    workers = [worker("a", 300, busy=True), worker("b", 300, granted=200, leaving=True)]
    script = [(float(now_s), used(950), workers) for now_s in range(int(GONE_S) + 1)]
    _, reported = run(script)
    assert acts(reported) == [(GONE_S, Ask("a"))]


def test_the_next_victim_has_time_of_its_own() -> None:
    one, two = worker("a", 400, busy=True), worker("b", 300, busy=True)
    state, reported = run([(time_s / 2, used(950), [one, two]) for time_s in range(16)])
    assert isinstance(acts(reported)[-1][1], Kill)
    _, reported = run([(time_s / 2, used(950), [two]) for time_s in range(16, 24)], state)
    assert acts(reported) == [(8.0 + SETTLE_S, Ask("b"))]


def test_asks_that_helped_are_not_held_against_it() -> None:
    one = [worker("a", 400, busy=True)]
    state, reported = run([(0.0, used(950), one), (1.0, used(950), one), (4.0, used(950), one)])
    assert len(acts(reported)) == ASKS
    state, _ = run([(7.0, used(890), one)], state)
    assert state.level is HARD
    _, reported = run([(8.0, used(950), one)], state)
    assert acts(reported) == [(8.0, Ask("a"))]


def test_one_that_has_nothing_left_to_give_up_is_asked_no_more() -> None:
    asked, larger = worker("a", 300, busy=True), worker("b", 250, busy=True)
    state, reported = run(
        [(0.0, used(950), [asked, larger]), (SETTLE_S, used(950), [asked, larger])]
    )
    assert acts(reported) == [(SETTLE_S, Ask("a"))]
    idle = [worker("a", 200), larger]
    _, reported = run([(20.0, used(950), idle), (20.0 + ASK_S, used(950), idle)], state)
    assert acts(reported) == [(20.0, Ask("b")), (20.0 + ASK_S, Ask("b"))]


def test_others_are_blamed_again_after_a_calm() -> None:
    small = [worker("a", 100, busy=True)]
    state, _ = run([(float(now_s), used(950), small) for now_s in range(5)])
    calm = [(5.0 + now_s, used(100), small) for now_s in range(20)]
    state, _ = run(calm, state)
    _, reported = run([(30.0, used(950), small)], state)
    assert [type(one) for _, one in reported] == [SetLevel, ReportExternalPressure]


def test_others_are_blamed_once_and_nobody_is_killed() -> None:
    small = [worker("a", 100, busy=True)]
    script = [(float(now_s), used(950), small) for now_s in range(60)]
    state, reported = run(script)
    assert levels(reported) == [(0.0, SOFT)]
    assert not acts(reported)
    blames = [one for _, one in reported if isinstance(one, ReportExternalPressure)]
    assert len(blames) == 1
    assert "850 B" in blames[0].detail
    assert state.level is SOFT


_WORKERS = st.lists(
    st.builds(
        WorkerMemory,
        st.sampled_from("abcd"),
        st.just("m"),
        st.integers(0, 500),
        st.integers(0, 500),
        busy=st.booleans(),
        loading=st.booleans(),
        leaving=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda one: one.instance,
)
_SCRIPT = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0]), st.integers(0, TOTAL), _WORKERS),
    min_size=1,
    max_size=40,
)


@given(_WORKERS, st.integers(0, TOTAL), st.integers(0, TOTAL), st.integers(0, 3), st.integers(0))
def test_more_memory_in_use_is_never_a_lower_level(
    workers: list[WorkerMemory], one: int, other: int, index: int, more: int
) -> None:
    """Of the machine, while lmx's part is not small; and always of a worker's own."""
    low, high = sorted((one, other))
    measured = sum(worker.measured_bytes for worker in workers)
    before = wanted_level(used(low), workers, LINES)
    if measured * 4 >= high:
        assert _RANK[wanted_level(used(high), workers, LINES)] >= _RANK[before]
    if index < len(workers):
        grown = list(workers)
        grown[index] = replace(grown[index], measured_bytes=grown[index].measured_bytes + more)
        assert _RANK[wanted_level(used(low), grown, LINES)] >= _RANK[before]


@given(_WORKERS, st.integers(0, TOTAL))
def test_the_margin_never_lowers_a_level(workers: list[WorkerMemory], taken: int) -> None:
    with_margin = wanted_level(used(taken), workers, LINES, 0.02)
    assert _RANK[with_margin] >= _RANK[wanted_level(used(taken), workers, LINES)]


@settings(max_examples=examples(300))
@given(_SCRIPT)
def test_whatever_happens(script: list[tuple[float, int, list[WorkerMemory]]]) -> None:
    state, now_s = GuardState(), 0.0
    victim: str | None = None
    asks, killed_at_s, fell_at_s = 0, -1e9, -1e9
    for passed_s, taken, workers in script:
        now_s += passed_s
        was = state.level
        state, decisions = step(state, used(taken), workers, LINES, now_s)
        reported = [one for one in decisions if isinstance(one, SetLevel)]
        # A level is told when it changes, falls by one at a time, and never at once again.
        assert [one.level for one in reported] == ([state.level] if state.level is not was else [])
        assert _RANK[state.level] >= _RANK[wanted_level(used(taken), workers, LINES)]
        if _RANK[state.level] < _RANK[was]:
            assert _RANK[was] - _RANK[state.level] == 1
            assert now_s - fell_at_s >= CALM_S
            fell_at_s = now_s
        by_instance = {one.instance: one for one in workers}
        actions = [one for one in decisions if isinstance(one, Ask | Kill)]
        assert len(actions) <= 1
        if state.level is not HARD:
            assert not actions
            victim, asks = None, 0
        if victim is not None and victim not in by_instance:
            victim, asks = None, 0
        for action in actions:
            chosen = by_instance[action.instance]
            assert not chosen.leaving
            assert chosen.busy or chosen.loading or chosen.excess_bytes > 0
            killed_one_is_there = victim is not None and now_s - killed_at_s < GONE_S
            if action.instance != victim:
                asks = 0
            victim = action.instance
            if isinstance(action, Ask):
                assert not killed_one_is_there or killed_at_s < 0
                asks += 1
                assert asks <= ASKS
            else:
                assert asks == ASKS or chosen.loading
                killed_at_s, asks = now_s, 0
