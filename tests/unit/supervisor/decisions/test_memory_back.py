"""Memory measured back after workers' exits: what is missing, of whom, and what returns."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.supervisor.decisions.reclaim import (
    DEADLINE_S,
    MIN_MISSING_BYTES,
    Balance,
    ExitedWorker,
    judge,
    threshold_bytes,
)
from tests.support.rigs.budgets import examples

GIB = 1024**3
BEFORE = Balance(40 * GIB)


def left(held: int = 8 * GIB, name: str = "a", before: Balance = BEFORE) -> ExitedWorker:
    return ExitedWorker(name, f"model-{name}", held, before, 100.0)


WIRED = left(before=Balance(40 * GIB, 2 * GIB))


@pytest.mark.parametrize(
    ("departure", "now", "at_s", "missing_bytes"),
    [
        (left(), BEFORE, 100.0, 0),
        (left(), Balance(BEFORE.attainable_bytes - 2 * GIB), 100.0, 0),
        (left(MIN_MISSING_BYTES), Balance(0), 100.0, 0),
        (left(), Balance(0), 200.0, 8 * GIB),
        (WIRED, Balance(34 * GIB, 2 * GIB), 200.0, 0),
        (WIRED, Balance(34 * GIB, -4 * GIB), 200.0, 6 * GIB),
    ],
    ids=[
        "all came back", "a noisy reading", "a small worker", "never more than was held",
        "what is not wired is another program's", "what stays wired is missing",
    ],
)  # fmt: skip
def test_what_is_missing_of_one_that_has_settled(
    departure: ExitedWorker, now: Balance, at_s: float, missing_bytes: int
) -> None:
    assert judge([departure], now, at_s)[0].missing_bytes == missing_bytes


def test_what_does_not_come_back_is_missing_after_the_deadline() -> None:
    now = Balance(35 * GIB)
    assert judge([left()], now, 100.0 + DEADLINE_S - 0.1) == [left()]
    (departure,) = judge([left()], now, 100.0 + DEADLINE_S)
    assert departure == replace(left(), missing_bytes=5 * GIB)
    assert judge([departure], now, 200.0) == [departure]


def test_what_is_missing_is_reported_again_when_it_returns() -> None:
    missing = replace(left(), missing_bytes=5 * GIB)
    assert judge([missing], Balance(34 * GIB), 200.0) == [missing]
    (departure,) = judge([missing], Balance(37 * GIB), 200.0)
    assert departure == replace(left(), missing_bytes=3 * GIB)
    assert judge([departure], Balance(39 * GIB), 200.0) == [replace(left(), missing_bytes=0)]


def test_two_that_left_together_do_not_miss_the_same_bytes() -> None:
    now = Balance(34 * GIB)
    judged = judge([left(), left(name="b")], now, 200.0)
    assert [one.missing_bytes for one in judged] == [0, 6 * GIB]


def test_a_later_one_is_not_charged_with_an_earlier_loss() -> None:
    later = left(name="b", before=Balance(34 * GIB))
    judged = judge([left(), later], Balance(34 * GIB), 200.0)
    assert [one.missing_bytes for one in judged] == [6 * GIB, 0]


_BYTES = st.integers(0, 40 * GIB)
_DEPARTURES = st.lists(
    st.builds(
        ExitedWorker,
        st.just("i"),
        st.just("m"),
        _BYTES,
        st.builds(Balance, _BYTES),
        st.floats(0, 10),
        st.none() | st.integers(1, 40 * GIB),
    ),
    max_size=5,
)


@settings(max_examples=examples(300))
@given(_DEPARTURES, _BYTES, st.floats(0, 30))
def test_whatever_happens(departures: list[ExitedWorker], reach: int, now_s: float) -> None:
    now = Balance(reach)
    judged = judge(departures, now, now_s)
    news = [one for was, one in zip(departures, judged, strict=True) if one != was]
    fresh = [one.missing_bytes or 0 for one in news]
    most = max((one.before.attainable_bytes - reach for one in departures), default=0)
    assert sum(fresh) <= max(0, most)
    for was, departure in zip(departures, judged, strict=True):
        missing = departure.missing_bytes
        if departure == was:
            waits = was.missing_bytes is None and now_s - was.exited_at_s < DEADLINE_S
            assert waits or was.missing_bytes is not None
            continue
        assert missing is not None
        assert departure == replace(was, missing_bytes=missing)
        assert missing == 0 or threshold_bytes(was.held_bytes) < missing <= was.held_bytes
        # What was told only ever becomes less.
        assert was.missing_bytes is None or missing < was.missing_bytes
    # Settled is settled: the same reading says nothing new.
    kept = [departure for departure in judged if departure.missing_bytes]
    if len(kept) == len(judged):
        assert judge(kept, now, now_s) == kept
