"""What `make test-all` takes of a matrix, and what is left for `make conformance`."""

from tests.support.rigs.matrices import combinations


def test_each_value_is_taken_once_at_least_and_no_combination_is_lost() -> None:
    found = combinations(["a", "b", "c"], [1, 2])
    assert [one.values for one in found] == [(x, y) for x in "abc" for y in (1, 2)]
    taken = [one.values for one in found if not one.marks]
    assert taken == [("a", 1), ("b", 2), ("c", 1)]
    assert {mark.name for one in found for mark in one.marks} == {"conformance"}
