"""The ledger: reserved, returning and missing bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.supervisor.decisions.ledger import Ledger, format_bytes

INSTANCES = st.sampled_from("abcdef")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), INSTANCES, st.integers(0, 70)),
        st.tuples(st.just("release"), INSTANCES, st.just(0)),
        st.tuples(st.just("exited"), INSTANCES, st.just(0)),
        st.tuples(st.just("settle"), INSTANCES, st.integers(-10, 90)),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_what_only_lmx_reserved_never_exceeds_the_budget(
    operations: list[tuple[str, str, int]],
) -> None:
    """Against a plain model of it: each instance holds bytes in one state."""
    ledger = Ledger(100)
    held: dict[str, tuple[str, int]] = {}
    for what, instance, size in operations:
        state, had = held.get(instance, ("", 0))
        if what == "reserve" and not state:
            fits = size <= 100 - sum(count for _, count in held.values())
            try:
                ledger.reserve(instance, size, "m")
                assert fits
                held[instance] = ("reserved", size)
            except LmxError as error:
                assert not fits
                assert error.code is ErrorCode.INSUFFICIENT_MEMORY
        elif what == "release" and state in ("", "reserved"):
            assert ledger.release(instance) == had
            held.pop(instance, None)
        elif what == "exited" and state == "reserved":
            assert ledger.exited(instance) == had
            held[instance] = ("returning", had)
        elif what == "settle" and state != "reserved":
            missing = min(max(size, 0), had)
            assert ledger.settle(instance, size) == had - missing
            held.pop(instance, None)
            if missing:
                held[instance] = ("missing", missing)
        for name in ("reserved", "returning", "missing"):
            expected = sum(count for state, count in held.values() if state == name)
            assert getattr(ledger, f"{name}_bytes") == expected
        assert ledger.held_bytes == sum(count for _, count in held.values()) <= 100
        assert ledger.free_bytes == 100 - ledger.held_bytes == -ledger.excess_bytes


def test_the_refusal_has_the_figures() -> None:
    ledger = Ledger(10 * 1024**3)
    ledger.reserve("a", 8 * 1024**3, "one")
    with pytest.raises(LmxError, match=r"two needs 3.0 GiB, but only 2.0 GiB of 10.0 GiB are free"):
        ledger.reserve("b", 3 * 1024**3, "two")
    assert ledger.reserved_by("b") == 0


def test_a_load_corrects_both_ways_and_work_only_upwards() -> None:
    ledger = Ledger(100)
    ledger.reserve("a", 80, "m")
    ledger.correct("a", 60)
    assert ledger.reserved_bytes == 60
    ledger.raise_to("a", 50)
    assert ledger.reserved_bytes == 60
    ledger.raise_to("a", 120)
    assert (ledger.free_bytes, ledger.excess_bytes) == (0, 20)
    with pytest.raises(KeyError):
        ledger.correct("b", 1)


def test_bytes_of_an_exited_worker_are_nobodys_until_they_are_seen() -> None:
    ledger = Ledger(100)
    ledger.reserve("a", 80, "m")
    assert ledger.exited("a") == 80
    assert (ledger.reserved_bytes, ledger.returning_bytes, ledger.free_bytes) == (0, 80, 20)
    assert ledger.settle("a", 30) == 50
    assert (ledger.returning_bytes, ledger.missing_bytes, ledger.free_bytes) == (0, 30, 70)
    assert ledger.settle("a", 90) == 0, "no more is missing than there was"
    assert ledger.settle("a", 0) == 30
    assert ledger.held_bytes == 0
    assert ledger.settle("unknown", 50) == 0


def test_format_bytes() -> None:
    sizes = (0, 1023, 1536, 5 * 1024**2, 3 * 1024**3)
    assert [format_bytes(size) for size in sizes] == ["0 B", "1023 B", "2 KiB", "5 MiB", "3.0 GiB"]
