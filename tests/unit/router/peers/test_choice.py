"""Where a request goes: the table row by row, and what holds for every decision."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.router.peers.choice import Candidate, Rank, ranked

GIB = 1024**3


def at(machine: str, **fields: Any) -> Candidate:
    fields.setdefault("rows", 4)
    return Candidate(machine=machine, model_id="m", **fields)


HOLDS = at("holds", loaded=True, held_blocks=50, running=3)
IDLE = at("idle", loaded=True)
BUSY = at("busy", loaded=True, running=4)
FITS = at("fits", free_bytes=2 * GIB, needed_bytes=GIB)
LOADS = at("loads", loads=True, running=1)
FULL = at("full", loaded=True, running=8)
EVICTS = at("evicts", free_bytes=GIB, needed_bytes=2 * GIB)
EVICTS_MORE = at("evicts more", free_bytes=0, needed_bytes=2 * GIB)
NO_LOADS = at("no loads", can_load=False)
TABLE = (HOLDS, IDLE, BUSY, FITS, LOADS, FULL, EVICTS, EVICTS_MORE)


def order(*candidates: Candidate, blocks: int = 100) -> list[str]:
    return [one.machine for one, _ in ranked(candidates, blocks)]


def test_the_table_from_its_first_row_to_its_last() -> None:
    assert order(*reversed(TABLE), NO_LOADS) == [one.machine for one in TABLE]
    ranks = [rank for _, rank in ranked(TABLE, 100)]
    assert ranks == sorted(ranks)
    assert set(ranks) == set(Rank)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        # The longest prefix, unless the difference is small and the machine is busier.
        (replace(HOLDS, held_blocks=90), replace(HOLDS, machine="b")),
        (replace(HOLDS, held_blocks=52, running=1), replace(HOLDS, machine="b", held_blocks=58)),
        # Less than a quarter of the request is no reason.
        (IDLE, replace(HOLDS, held_blocks=24)),
        # A conversation stays where it is while others are idle, until that is full twice over.
        (replace(HOLDS, running=7), IDLE),
        (IDLE, replace(HOLDS, running=8)),
        # What has less to do, and of two with as much, the faster one.
        (IDLE, replace(IDLE, machine="a", running=1)),
        (
            replace(IDLE, running=2, tokens_per_s=80.0),
            replace(IDLE, machine="a", running=1, tokens_per_s=20.0),
        ),
        # No hop where there is no reason for one.
        (replace(IDLE, own=True, machine="z"), IDLE),
        # A route's first model before its others, within a row of the table.
        (IDLE, replace(IDLE, machine="a", place=1)),
        (replace(IDLE, place=1), BUSY),
    ],
)
def test_one_is_better_than_the_other(better: Candidate, worse: Candidate) -> None:
    for candidates in ((better, worse), (worse, better)):
        assert ranked(candidates, 100)[0][0] == better


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        machine=st.text("abcdef", min_size=1, max_size=4),
        model_id=st.just("m"),
        own=st.booleans(),
        place=st.integers(0, 3),
        loaded=st.booleans(),
        loads=st.booleans(),
        rows=st.integers(1, 64),
        running=st.integers(0, 200),
        free_bytes=st.integers(0, 4) | st.just(2**50),
        needed_bytes=st.none() | st.integers(0, 4),
        can_load=st.booleans(),
        held_blocks=st.integers(0, 20),
        tokens_per_s=st.none() | st.floats(0.1, 1e4),
    ),
    max_size=8,
    unique_by=lambda one: one.machine,
)


@given(CANDIDATES, st.integers(0, 20), st.randoms())
def test_what_holds_for_every_decision(
    candidates: list[Candidate], blocks: int, chance: Any
) -> None:
    found = ranked(candidates, blocks)
    shuffled = candidates.copy()
    chance.shuffle(shuffled)
    assert ranked(shuffled, blocks) == found, "it does not depend on who was asked first"
    chosen = [one for one, _ in found]
    left_out = [one for one in candidates if one not in chosen]
    assert all(not (one.loaded or one.loads or one.can_load) for one in left_out)
    for one, rank in found:
        assert (rank in (Rank.PREFIX, Rank.IDLE, Rank.BUSY, Rank.FULL)) is one.loaded
    if found:
        best, rank = found[0]
        # It was not overlooked that a better reason is there.
        idle = [one for one in candidates if one.loaded and one.running < one.rows]
        assert rank <= Rank.IDLE or not idle
        # A machine that becomes less busy and holds more stays the best.
        better = replace(best, running=0, held_blocks=blocks)
        rest = [better if one is best else one for one in candidates]
        assert not best.loaded or ranked(rest, blocks)[0][0].place <= best.place
