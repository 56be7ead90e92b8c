"""When a router gives freed memory back."""

from lmx.router.server.trim_policy import FIRST_WAIT_S, LONGEST_WAIT_S, SLACK_BYTES, TrimPolicy

BASE = 60 * 2**20
GROWN = BASE + SLACK_BYTES + 1


def test_a_small_process_is_left_alone() -> None:
    pace = TrimPolicy(BASE)
    assert not any(pace.is_due(BASE + SLACK_BYTES, float(now_s)) for now_s in range(100))
    assert pace.is_due(GROWN, 100.0)


def test_a_trim_that_brought_much_is_followed_by_another_soon() -> None:
    pace = TrimPolicy(BASE)
    pace.trimmed(2**30, 10.0)
    assert not pace.is_due(GROWN, 10.0 + FIRST_WAIT_S - 0.1)
    assert pace.is_due(GROWN, 10.0 + FIRST_WAIT_S)


def test_pauses_grow_while_trims_bring_little_and_have_an_end() -> None:
    pace = TrimPolicy(BASE)
    now_s, waits_s = 0.0, []
    for given_back_bytes in (0, 100, -(2**30), 0, 0, 0):
        pace.trimmed(given_back_bytes, now_s)
        began_s = now_s
        while not pace.is_due(GROWN, now_s):
            now_s += 0.5
        waits_s.append(now_s - began_s)
    assert waits_s == [4.0, 8.0, 16.0, LONGEST_WAIT_S, LONGEST_WAIT_S, LONGEST_WAIT_S]
    pace.trimmed(2**30, now_s)
    assert pace.is_due(GROWN, now_s + FIRST_WAIT_S)
