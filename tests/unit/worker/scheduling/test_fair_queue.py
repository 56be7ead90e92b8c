"""Owners take turns in a queue, and nobody takes all of it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.fair_share import has_capacity
from lmx.worker.scheduling.fair_queue import FairQueue

OWNERS = st.sampled_from("abcd")


def test_the_second_owners_only_item_goes_next() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(100):
        queue.add("greedy", f"greedy {number}")
    assert queue.pop() == "greedy 0"
    queue.add("second", "second")
    assert [queue.pop() for _ in range(3)] == ["second", "greedy 1", "greedy 2"]
    assert len(queue) == 97


def test_an_owner_that_comes_back_at_once_waits_for_the_others_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("waits", "first")
    queue.add("waits", "second")
    taken = []
    for number in range(3):
        queue.add("returns", f"returns {number}")
        taken += [queue.pop(), queue.pop()] if number == 0 else [queue.pop()]
    # After `returns` had its turn, `waits` has one before it comes again.
    assert taken == ["first", "returns 0", "second", "returns 1"]


def test_one_owners_items_keep_their_order_and_are_taken_out_by_what_they_are() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(6):
        queue.add("ab"[number % 2], number)
    assert sorted(queue.remove_if(lambda number: number in (0, 1, 3, 5))) == [0, 1, 3, 5]
    assert [queue.peek(), queue.pop(), queue.pop(), bool(queue)] == [2, 2, 4, False]
    with pytest.raises(ValueError, match="empty"):
        queue.pop()


def test_a_lower_value_comes_first_and_owners_take_turns_among_the_same() -> None:
    queue: FairQueue[str] = FairQueue()
    for item, owner, priority in (
        ("a1", "a", 0), ("a2", "a", 0), ("late", "a", 5), ("b1", "b", 0), ("urgent", "a", -1),
        ("b late", "b", 5),
    ):  # fmt: skip
        queue.add(owner, item, priority)
    assert (len(queue), queue.peek()) == (6, "urgent")
    # `a` had a turn with what was urgent.
    assert [queue.pop() for _ in range(4)] == ["urgent", "b1", "a1", "a2"]
    assert queue.remove_if(lambda item: item == "late") == ["late"]
    assert (queue.pop(), bool(queue), len(queue)) == ("b late", False, 0)


@given(st.lists(st.tuples(OWNERS, st.integers(-2, 2))))
def test_all_that_is_added_comes_out_by_priority(added: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[int, int]] = FairQueue()
    for number, (owner, priority) in enumerate(added):
        queue.add(owner, (priority, number), priority)
    taken = [queue.pop() for _ in added]
    assert sorted(taken) == sorted((priority, n) for n, (_, priority) in enumerate(added))
    assert [priority for priority, _ in taken] == sorted(priority for priority, _ in taken)


@given(st.lists(st.one_of(OWNERS, st.none())))
def test_while_two_wait_none_gets_two_turns_more_than_the_other(steps: list[str | None]) -> None:
    """A step adds an item of an owner, or takes the next one out."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    waiting: dict[str, list[int]] = {}
    turns: dict[str, Counter[str]] = {}
    for number, owner in enumerate(steps):
        if owner is not None:
            queue.add(owner, (owner, number))
            waiting.setdefault(owner, []).append(number)
            turns.setdefault(owner, Counter())
        elif queue:
            taken, first = queue.pop()
            assert waiting[taken].pop(0) == first
            for other in waiting:
                turns[other][taken] += 1
            turns[taken] = Counter()
            if not waiting[taken]:
                del waiting[taken], turns[taken]
            # Since its own last turn, or since it began to wait, nobody had more than two.
            assert all(max(since.values(), default=0) <= 2 for since in turns.values())
    assert len(queue) == sum(map(len, waiting.values()))


@given(st.integers(60, 400), st.lists(OWNERS, max_size=600))
def test_there_is_room_for_a_fifth_owner_whatever_four_do(places: int, comers: list[str]) -> None:
    held: Counter[str] = Counter()
    for owner in comers:
        if has_capacity(places, held.total(), held[owner]):
            held[owner] += 1
    assert has_capacity(places, held.total(), 0)


def test_shares_of_a_queue() -> None:
    def filled(places: int, owners: str) -> Counter[str]:
        held: Counter[str] = Counter()
        for owner in owners * places:
            if has_capacity(places, held.total(), held[owner]):
                held[owner] += 1
        return held

    assert filled(8, "a") == {"a": 8}
    assert filled(288, "a") == {"a": 256}
    assert filled(288, "ab") == {"a": 136, "b": 136}
    alone = filled(288, "a")
    alone.update({"b": 1})
    assert has_capacity(288, alone.total(), alone["b"])
