"""Which models start and which give way: every rule, and what holds for any picture at all."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.states import LoadOutcome
from lmx.supervisor.config.schema import GroupConfig
from lmx.supervisor.decisions.forecast import forecast, without
from lmx.supervisor.decisions.placement import decide, queue_order
from lmx.supervisor.decisions.placement_view import (
    Decision,
    Deny,
    Drop,
    Evict,
    Expire,
    Groups,
    PlacementView,
    Resident,
    Stage,
    Start,
    Waiting,
)
from tests.support.rigs.budgets import examples

NOW_S = 1000.0
RESIDENCY_S = 10.0
FAIR_S = 30.0


def resident(name: str, held: int, idle_for_s: float | None = 100.0, **other: Any) -> Resident:
    """One that serves, by default long since and idle; ``idle_for_s`` None: busy."""
    idle_since_s = None if idle_for_s is None else NOW_S - idle_for_s
    return Resident(name, held, Stage.SERVING, idle_since_s=idle_since_s, **other)


def waiting(name: str, need: int, for_s: float | None = 1.0, **other: Any) -> Waiting:
    return Waiting(name, need, None if for_s is None else NOW_S - for_s, **other)


def scene(
    waits: list[Waiting], residents: list[Resident], budget: int = 100, **other: Any
) -> PlacementView:
    returning = other.get("returning_bytes", 0) + other.get("missing_bytes", 0)
    free = budget - sum(one.held_bytes for one in residents) - returning
    return PlacementView(
        tuple(waits), tuple(residents), budget, free,
        min_residency_s=RESIDENCY_S, fair_wait_s=FAIR_S, **other,
    )  # fmt: skip


def groups(**members: str) -> Groups:
    """``swap_x="ab"``: a group of that name, with the rules that stand in it."""
    return Groups(
        GroupConfig(
            name=name, models=tuple(models), swap="swap" in name,
            exclusive="exclusive" in name, persistent="persistent" in name,
        )
        for name, models in members.items()
    )  # fmt: skip


def decided(
    waits: list[Waiting], residents: list[Resident], budget: int = 100, **other: Any
) -> tuple[Decision, ...]:
    return decide(scene(waits, residents, budget, **other), NOW_S)


def denied(picture: PlacementView) -> str:
    (decision,) = decide(picture, NOW_S)
    assert isinstance(decision, Deny)
    return decision.reason


def test_what_fits_starts_in_the_order_of_the_requests() -> None:
    waits = [waiting("new", 40, 1), waiting("old", 40, 5), waiting("late", 40, 0)]
    assert decided(waits, []) == (Start("old"), Start("new"))


def test_the_least_recently_used_is_evicted_and_no_more_than_needed() -> None:
    residents = [resident("a", 30, 50), resident("b", 30, 90), resident("c", 40, 70)]
    assert decided([waiting("x", 30)], residents) == (Evict("b", "x", True),)
    # b and c are needed as the least recently used; then c alone is enough.
    assert decided([waiting("x", 40)], residents) == (Evict("c", "x", True),)


@pytest.mark.parametrize(
    "spared",
    [
        resident("a", 60, None),
        resident("a", 60, pinned=True),
        resident("a", 60, since_s=NOW_S - RESIDENCY_S + 0.1),
        resident("a", 60, settled_at_s=NOW_S + 0.1),
        Resident("a", 60, Stage.LOADING),
    ],
    ids=["busy", "pinned", "young", "before its first requests", "loading"],
)
def test_who_is_spared(spared: Resident) -> None:
    decisions = decided([waiting("x", 50)], [spared, resident("b", 10)])
    # Beside what is pinned it can never be, and that is told at once.
    assert [type(one) for one in decisions] == ([Deny] if spared.pinned else [])
    other = resident("b", 40, 1)
    assert decided([waiting("x", 40)], [spared, other]) == (Evict("b", "x", True),)


def test_nobody_goes_when_all_who_may_go_are_not_enough() -> None:
    assert decided([waiting("x", 90)], [resident("a", 40), resident("b", 50, None)]) == ()


def test_bytes_on_their_way_back_are_counted_before_another_goes() -> None:
    leaving = Resident("gone", 40, Stage.LEAVING)
    other = resident("b", 60)
    assert decided([waiting("x", 40)], [leaving, other]) == ()
    assert decided([waiting("x", 60)], [leaving, other]) == (Evict("b", "x", True),)
    assert decided([waiting("x", 40)], [other], returning_bytes=40) == ()


def test_a_later_model_passes_only_into_what_an_earlier_one_does_not_need() -> None:
    waits = [waiting("big", 90, 20), waiting("small", 20, 10)]
    busy = resident("a", 60, None)
    assert decided(waits, [busy]) == (Start("small"),)
    leaving = replace(busy, stage=Stage.LEAVING)
    assert decided(waits, [leaving]) == ()
    # However long the one that leaves takes, who is in nobody's way does not wait for it.
    less = [waiting("big", 80, 20), waiting("small", 20, 10), waiting("more", 1, 5)]
    assert decided(less, [leaving]) == (Start("small"),)
    young = replace(resident("a", 60), since_s=NOW_S - 1)
    long = [waiting("big", 90, FAIR_S), waiting("small", 20, 10)]
    assert decided(long, [young]) == (), "none passes one that has waited so long"


def test_what_each_that_waited_long_needs_is_kept_for_it() -> None:
    """Also where one before it is already being served."""
    waits = [waiting("big", 70, 2 * FAIR_S), waiting("middle", 25, FAIR_S), waiting("small", 20, 1)]
    residents = [resident("a", 60), resident("b", 10, pinned=True)]
    assert decided(waits, residents) == (Evict("a", "big", True),)


def test_a_later_model_never_evicts_past_an_earlier_one() -> None:
    waits = [waiting("big", 90, 20), waiting("small", 40, 10)]
    assert decided(waits, [resident("a", 60, None), resident("b", 40)]) == ()


def test_one_that_waited_long_has_a_busy_one_drained() -> None:
    residents = [
        resident("young", 50, None, since_s=NOW_S - 100),
        resident("old", 50, None, since_s=NOW_S - 200),
    ]
    assert decided([waiting("x", 50, FAIR_S - 0.1)], residents) == ()
    decisions = decided([waiting("x", 50, FAIR_S)], residents)
    assert decisions == (Evict("old", "x", False),)
    idle = resident("idle", 20)
    residents = [replace(residents[0], held_bytes=30), residents[1], idle]
    decisions = decided([waiting("x", 20, FAIR_S)], residents)
    assert decisions == (Evict("idle", "x", True),), "an idle one is enough"


def test_who_is_waited_for_by_nobody_evicts_nobody() -> None:
    waits = [waiting("b", 60, None), waiting("p", 60, None, pinned=True)]
    assert decided(waits, []) == (Start("p"), Drop("b"))
    assert decided([waiting("b", 60, None)], [resident("a", 50)]) == (Drop("b"),)
    leaving = Resident("a", 50, Stage.LEAVING)
    assert decided([waiting("b", 60, None)], [leaving]) == (), "what comes back may be for it"


def test_what_can_never_fit_is_reported_at_once_with_figures() -> None:
    gib = 1024**3
    too_large = scene([waiting("x", 12 * gib)], [], budget=10 * gib)
    words = "x needs 12.0 GiB, which is more than the whole budget of 10.0 GiB"
    assert words in denied(too_large)
    pinned = [resident("p", 4 * gib, pinned=True), resident("q", 3 * gib, None, pinned=True)]
    reason = denied(scene([waiting("x", 5 * gib)], pinned, budget=10 * gib))
    for words in ("everything else is pinned", "p (4.0 GiB), q (3.0 GiB)", "unpin p", "10.0 GiB"):
        assert words in reason
    picture = scene([waiting("x", 5 * gib)], [], budget=10 * gib, missing_bytes=6 * gib)
    assert "6.0 GiB did not come back" in denied(picture)
    picture = scene([waiting("x", 1)], [resident("p", 1, pinned=True)], groups=groups(swap="xp"))
    assert "can't be loaded together with p, which is pinned" in denied(picture)


def test_one_that_can_never_fit_is_in_nobodys_way() -> None:
    waits = [waiting("never", 900, FAIR_S * 2), waiting("x", 50)]
    decisions = decided(waits, [])
    assert [type(one) for one in decisions] == [Deny, Start]


@pytest.mark.parametrize("holder", ["stuck worker", "stuck worker of its group", "lent rank"])
def test_a_model_that_nothing_can_make_room_for_keeps_no_other_waiting(holder: str) -> None:
    in_group = holder == "stuck worker of its group"
    big = waiting("b", 10 if in_group else 70, 2 * FAIR_S)
    small, old = waiting("s", 5), resident("old", 10)
    stuck = () if holder == "lent rank" else (Resident("x", 60, Stage.STUCK),)
    picture = scene([big, small], [*stuck], groups=groups(**({"swap": "bx"} if in_group else {})))
    picture = replace(picture, free_bytes=40)
    assert decide(picture, NOW_S) == (Start("s"),)
    # Models are evicted for one behind it.
    full = replace(picture, residents=(*stuck, replace(old, held_bytes=40)), free_bytes=0)
    assert decide(full, NOW_S) == (Evict("old", "s", True),)
    # Behind another model that waits, nothing is kept for it either.
    first = waiting("first", 35, 3 * FAIR_S)
    behind = replace(picture, waiting=(first, big, small), residents=(*stuck, old), free_bytes=30)
    assert decide(behind, NOW_S) == (Evict("old", "first", True), Start("s"))
    # Once it can have what it needs, it is the first again.
    ended = replace(full, residents=full.residents[-1:], free_bytes=0, returning_bytes=60)
    assert decide(ended, NOW_S)[:1] == (() if in_group else (Evict("old", "b", True),))


def test_idle_models_expire_but_pinned_and_busy_ones_stay() -> None:
    due = {"expires_at_s": NOW_S}
    residents = [
        resident("a", 10, **due), resident("b", 10, None, **due),
        resident("c", 10, pinned=True, **due), resident("d", 10, expires_at_s=NOW_S + 1),
        resident("e", 10), resident("f", 10, settled_at_s=NOW_S + 1, **due),
    ]  # fmt: skip
    assert decided([], residents) == (Expire("a"),)


def test_an_expired_model_is_room_for_the_next() -> None:
    residents = [resident("a", 50, expires_at_s=NOW_S), resident("b", 50, 900)]
    assert decided([waiting("x", 50)], residents) == (Expire("a"),)


def test_short_of_memory_nothing_begins_and_idle_ones_go_one_by_one() -> None:
    residents = [resident("a", 10, 5), resident("b", 10, 50), resident("c", 10, None)]
    assert decided([waiting("x", 10)], residents, short_of_memory=True) == (Evict("b", None, True),)
    residents[1] = replace(residents[1], stage=Stage.LEAVING)
    assert decided([], residents, short_of_memory=True) == ()
    assert decided([], residents[:1], short_of_memory=True, returning_bytes=10) == ()
    young = resident("a", 10, 5, since_s=NOW_S - 1)
    assert decided([], [young], short_of_memory=True) == (Evict("a", None, True),)


def test_a_ledger_over_its_budget_is_brought_back() -> None:
    residents = [resident("a", 60, 5), resident("b", 30, 50), resident("c", 40, None)]
    assert decided([], residents) == (Evict("b", None, True),)
    assert decided([], [resident("a", 60, None), resident("b", 60, None)]) == ()
    residents = [resident("a", 5, 5), resident("c", 140, None)]
    assert decided([], residents) == (Evict("a", None, True),), "as far as it goes"


def test_groups_say_who_may_not_be_there_together() -> None:
    rules = groups(swap_a="ab", exclusive_c="cd", persistent_e="e")
    pairs = {
        pair
        for pair in ("ab", "ac", "ae", "ax", "cd", "ce", "cx", "ex", "xy", "aa")
        if rules.conflict(*pair)
    }
    assert pairs == {"ab", "ac", "cx"}
    assert all(rules.conflict(b, a) == rules.conflict(a, b) for a in "abcdex" for b in "abcdex")


def test_the_others_of_a_group_go_even_where_memory_is_free() -> None:
    rules, a, busy = groups(swap="ab"), waiting("a", 10), resident("b", 10, None)
    idle = [resident("b", 10), resident("c", 10, 900)]
    assert decided([a], idle, groups=rules) == (Evict("b", "a", True),)
    assert decided([a], [busy], groups=rules) == ()
    long = waiting("a", 10, FAIR_S)
    assert decided([long], [busy], groups=rules) == (Evict("b", "a", False),)
    leaving = Resident("b", 10, Stage.LEAVING)
    assert decided([a], [leaving], groups=rules) == (), "it is still there"
    assert decided([a, waiting("b", 10, 5)], [], groups=rules) == (Start("b"),)


# For any picture at all.

NAMES = "abcdefgh"


@st.composite
def scenes(draw: st.DrawFn) -> PlacementView:
    """Mostly such in which somebody waits, and some of the others may go."""
    names = list(NAMES)
    residents = []
    for _ in range(draw(st.integers(1, 5))):
        since_s = NOW_S - draw(st.sampled_from([1, 15, 60, 200]))
        idle_for_s = draw(st.sampled_from([None, None, 0, 1, 20, 40]))
        residents.append(
            Resident(
                names.pop(),
                draw(st.integers(1, 40)),
                draw(st.sampled_from([Stage.SERVING] * 4 + [Stage.LOADING, Stage.LEAVING])),
                pinned=draw(st.integers(0, 3)) == 0,
                since_s=since_s,
                settled_at_s=draw(st.sampled_from([0.0, 0.0, 0.0, NOW_S + 1])),
                idle_since_s=None if idle_for_s is None else NOW_S - idle_for_s,
                expires_at_s=draw(st.sampled_from([None] * 6 + [NOW_S - 1, NOW_S + 9])),
            )
        )
    waits = [
        Waiting(
            name,
            draw(st.integers(1, 105)),
            draw(st.sampled_from([None, NOW_S - 1, NOW_S - 20, NOW_S - 40, NOW_S - 90])),
            draw(st.booleans()),
        )
        for name in names[: draw(st.integers(0, 3))]
    ]
    rules = (
        Groups(),
        Groups(),
        groups(swap="abh"),
        groups(exclusive="agh"),
        groups(exclusive="a", persistent="h"),
    )
    return scene(
        waits,
        residents,
        budget=draw(st.sampled_from([100, 100, 150])),
        returning_bytes=draw(st.sampled_from([0, 0, 20])),
        missing_bytes=draw(st.sampled_from([0, 0, 15])),
        short_of_memory=draw(st.integers(0, 9)) == 0,
        groups=draw(st.sampled_from(rules)),
    )


def of(kind: type[Any], decisions: tuple[Decision, ...]) -> list[Any]:
    return [decision for decision in decisions if isinstance(decision, kind)]


def carried_out(picture: PlacementView, decisions: tuple[Decision, ...]) -> PlacementView:
    """The picture in the next moment, before anybody has exited."""
    going = {one.model_id for kind in (Evict, Expire) for one in of(kind, decisions)}
    done = {one.model_id for kind in (Deny, Drop) for one in of(kind, decisions)}
    started = {one.model_id for one in of(Start, decisions)}
    new = [one for one in picture.waiting if one.model_id in started]
    return replace(
        picture,
        waiting=tuple(one for one in picture.waiting if one.model_id not in done | started),
        residents=(
            *(
                replace(one, stage=Stage.LEAVING) if one.model_id in going else one
                for one in picture.residents
            ),
            *(Resident(one.model_id, one.need_bytes, Stage.LOADING, one.pinned) for one in new),
        ),
        free_bytes=picture.free_bytes - sum(one.need_bytes for one in new),
    )


@settings(max_examples=examples(200), deadline=None)
@given(scenes())
def test_nobody_goes_who_is_busy_loading_pinned_or_young(picture: PlacementView) -> None:
    """But a busy one for fairness, which is asked to end its requests first."""
    by_name = {one.model_id: one for one in picture.residents}
    asked = {one.model_id: one.requested_at_s for one in picture.waiting}
    for decision in of(Evict, decide(picture, NOW_S)) + of(Expire, decide(picture, NOW_S)):
        one = by_name[decision.model_id]
        assert one.stage is Stage.SERVING
        assert not one.pinned
        assert one.settled_at_s <= NOW_S
        if isinstance(decision, Expire):
            assert one.idle_since_s is not None
            continue
        assert decision.if_idle == (one.idle_since_s is not None)
        if decision.for_model is None:
            assert decision.if_idle
            continue
        assert one.since_s + RESIDENCY_S <= NOW_S
        since_s = asked[decision.for_model]
        assert since_s is not None, "nobody waits for it"
        assert decision.if_idle or NOW_S - since_s >= FAIR_S


@settings(max_examples=examples(200), deadline=None)
@given(scenes())
def test_what_starts_fits_and_no_two_start_that_exclude_each_other(picture: PlacementView) -> None:
    started = [one.model_id for one in of(Start, decide(picture, NOW_S))]
    need = {one.model_id: one.need_bytes for one in picture.waiting}
    assert sum(need[name] for name in started) <= max(0, picture.free_bytes)
    there = [one.model_id for one in picture.residents] + started
    for name in started:
        assert not any(picture.groups.conflict(name, other) for other in there)
    assert not (picture.short_of_memory and started)


@settings(max_examples=examples(200), deadline=None)
@given(scenes())
def test_victims_are_enough_and_each_is_needed(picture: PlacementView) -> None:
    decisions = decide(picture, NOW_S)
    victims = [one for one in of(Evict, decisions) if one.for_model is not None]
    if not victims:
        return
    (name,) = {one.for_model for one in victims}
    (wanted,) = [one for one in picture.waiting if one.model_id == name]
    after = carried_out(picture, decisions)
    coming = after.returning_bytes + sum(
        one.held_bytes for one in after.residents if one.stage is Stage.LEAVING
    )
    spare = after.free_bytes + coming - wanted.need_bytes
    assert spare >= 0
    assert not any(
        picture.groups.conflict(name, one.model_id)
        for one in after.residents
        if one.stage is not Stage.LEAVING
        and one.model_id not in {d.model_id for d in of(Start, decisions)}
    )
    for victim in victims:
        (one,) = [other for other in picture.residents if other.model_id == victim.model_id]
        assert picture.groups.conflict(name, one.model_id) or one.held_bytes > spare


@settings(max_examples=examples(200), deadline=None)
@given(scenes())
def test_nobody_who_waits_longer_loses_bytes_to_one_behind_it(picture: PlacementView) -> None:
    decisions = decide(picture, NOW_S)
    order = queue_order(picture.waiting)
    place = {one.model_id: number for number, one in enumerate(order)}
    denied = {one.model_id for one in of(Deny, decisions)}
    started = {one.model_id for one in of(Start, decisions)}
    going = {one.model_id for one in decisions if isinstance(one, Evict | Expire)}
    coming = picture.returning_bytes + sum(
        one.held_bytes
        for one in picture.residents
        if one.stage is Stage.LEAVING or one.model_id in going
    )
    victims = [one for one in of(Evict, decisions) if one.for_model is not None]
    if victims:
        first = order[place[victims[0].for_model]]
        needs = sum(one.need_bytes for one in order if one.model_id in started)
        assert first.need_bytes + needs <= picture.free_bytes + coming
    for one in picture.waiting:
        waited_long = one.requested_at_s is not None and NOW_S - one.requested_at_s >= FAIR_S
        if waited_long and one.model_id not in started | denied:
            behind = {name for name in started if place[name] > place[one.model_id]}
            needs = sum(other.need_bytes for other in order if other.model_id in started)
            assert not behind or one.need_bytes + needs <= picture.free_bytes + coming


@settings(max_examples=examples(200), deadline=None)
@given(scenes())
def test_one_that_waited_long_gets_its_room_if_anybody_may_go(picture: PlacementView) -> None:
    """The starvation cap: for the first in the queue, being busy protects nobody any more."""
    decisions = decide(picture, NOW_S)
    denied = {one.model_id for one in of(Deny, decisions)}
    queue = [one for one in queue_order(picture.waiting) if one.model_id not in denied]
    if not queue or picture.short_of_memory or queue[0].requested_at_s is None:
        return
    first = queue[0]
    assert first.requested_at_s is not None
    if NOW_S - first.requested_at_s < FAIR_S or Start(first.model_id) in decisions:
        return
    after = carried_out(picture, decisions)
    may_go = [
        one for one in after.residents
        if one.stage is Stage.SERVING and not one.pinned
        and max(one.settled_at_s, one.since_s + RESIDENCY_S) <= NOW_S
    ]  # fmt: skip
    stay = [one for one in after.residents if one.stage is not Stage.LEAVING and one not in may_go]
    freed = after.returning_bytes + sum(
        one.held_bytes for one in after.residents if one.stage is Stage.LEAVING
    )
    all_of_them = after.free_bytes + freed + sum(one.held_bytes for one in may_go)
    blocked = any(picture.groups.conflict(first.model_id, one.model_id) for one in stay)
    if all_of_them >= first.need_bytes and not blocked:
        assert after.free_bytes + freed >= first.need_bytes


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(1, 100),
    st.randoms(use_true_random=False),
)
def test_of_idle_models_the_least_recently_used_go_and_only_those_needed(
    idle: list[tuple[int, int]], need: int, random: Any
) -> None:
    """All of them may go, some were used at the same time, and the memory is full."""
    residents = [
        resident(name, held, idle_for_s=10.0 * ago)
        for name, (held, ago) in zip(NAMES, idle, strict=False)
    ]
    budget = sum(one.held_bytes for one in residents)
    decisions = decide(scene([waiting("x", need)], residents, budget), NOW_S)
    if need > budget:
        assert [type(one) for one in decisions] == [Deny]
        return
    victims = {one.model_id for one in of(Evict, decisions)}
    gone = [one for one in residents if one.model_id in victims]
    spare = sum(one.held_bytes for one in gone) - need
    assert spare >= 0
    assert all(one.held_bytes > spare for one in gone), "one of them could have stayed"
    newest_s = max(one.idle_since_s or 0.0 for one in gone)
    older = [one for one in residents if (one.idle_since_s or 0.0) < newest_s]
    assert sum(one.held_bytes for one in older) < need, "older ones were enough"
    random.shuffle(residents)
    again = decide(scene([waiting("x", need)], residents, budget), NOW_S)
    assert {one.model_id for one in of(Evict, again)} == victims


@settings(max_examples=examples(200), deadline=None)
@given(scenes(), st.randoms(use_true_random=False))
def test_it_is_a_function_of_the_picture_and_comes_to_an_end(
    picture: PlacementView, random: Any
) -> None:
    decisions = decide(picture, NOW_S)
    assert decide(picture, NOW_S) == decisions
    mixed = list(picture.residents)
    random.shuffle(mixed)
    others = decide(replace(picture, residents=tuple(mixed)), NOW_S)
    assert set(map(repr, of(Evict, others))) == set(map(repr, of(Evict, decisions)))
    assert of(Start, others) == of(Start, decisions)
    for _ in range(20):
        if not decisions:
            break
        picture = carried_out(picture, decisions)
        decisions = decide(picture, NOW_S)
    assert decisions == ()


# What would follow.

FORECASTS: dict[str, tuple[PlacementView, LoadOutcome, tuple[str, ...], str]] = {
    "there is room": (scene([], [resident("a", 40)]), LoadOutcome.STARTS, (), "60 B are free"),
    "idle ones go, the least recent first": (
        scene([], [resident("a", 50, 10), resident("b", 50, 90)]),
        LoadOutcome.EVICTS, ("b",), "b would be evicted",
    ),
    "busy ones are waited for": (
        scene([], [resident("a", 90, None)]), LoadOutcome.WAITS, ("a",), "then a would be",
    ),
    "one that has just come stays for a while": (
        scene([], [resident("a", 90, 1.0, since_s=NOW_S - 1)]), LoadOutcome.WAITS, ("a",), "just",
    ),
    "what does not end is waited for": (
        scene([], [Resident("a", 90, Stage.STUCK), resident("b", 5)]),
        LoadOutcome.WAITS, (), "a worker that does not end",
    ),
    "what is lent is waited for": (
        replace(scene([], [resident("b", 5)]), free_bytes=20),
        LoadOutcome.WAITS, (), "another machine",
    ),
    "who waited before comes first": (
        scene([waiting("old", 90)], []), LoadOutcome.WAITS, (), "waits",
    ),
    "pinned ones stay": (
        scene([], [resident("a", 90, pinned=True)]), LoadOutcome.IMPOSSIBLE, (), "lmx unpin a",
    ),
    "nothing starts while memory is short": (
        scene([], [], short_of_memory=True), LoadOutcome.WAITS, (), "short of memory",
    ),
    "too large": (scene([], [], 40), LoadOutcome.IMPOSSIBLE, (), "whole budget"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORECASTS)
def test_a_forecast_says_what_the_placer_would_do(case: str) -> None:
    picture, outcome, evicts, words = FORECASTS[case]
    found = forecast(waiting("x", 50, None), picture, NOW_S)
    assert (found.outcome, found.evicts) == (outcome, evicts)
    assert words in found.detail
    # Nobody waits in a forecast, and a request would: it has the same outcome.
    asked = replace(picture, waiting=(*picture.waiting, waiting("x", 50, 0.0)))
    decisions = decide(asked, NOW_S)
    assert (Start("x") in decisions) is (outcome is LoadOutcome.STARTS)
    assert any(isinstance(each, Deny) for each in decisions) is (outcome is LoadOutcome.IMPOSSIBLE)


def test_a_model_s_own_worker_makes_room_for_its_load_with_other_settings() -> None:
    picture = scene([waiting("x", 70)], [resident("x", 90)])
    assert forecast(waiting("x", 95), without("x", picture), NOW_S).outcome is LoadOutcome.STARTS
