"""How the engine's time is divided among rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.worker.scheduling.compute_shares import ComputeShares


def test_a_prompt_s_steps_are_its_row_s_and_the_others_are_shared() -> None:
    shares = ComputeShares()
    shares.add(2.0, read=1)
    shares.decodes(1)
    shares.add(1.0, read=None)
    shares.add(3.0, read=2)
    shares.decodes(2)
    shares.add(1.0, read=None)
    assert shares.end(1) == pytest.approx(2.0 + 1.0 + 0.5)
    shares.add(1.0, read=None)
    assert shares.end(2) == pytest.approx(3.0 + 0.5 + 1.0)
    assert shares.end(2) == 0
    shares.add(9.0, read=None)  # Nobody decodes.
    shares.decodes(3)
    assert shares.end(3) == 0


@given(st.lists(st.tuples(st.sampled_from(["read", "decode", "end", "step"]), st.integers(0, 3))))
def test_all_time_is_divided_exactly_once(events: list[tuple[str, int]]) -> None:
    shares, decoding, given_s, taken_s = ComputeShares(), set[int](), 0.0, 0.0
    for what, row in events:
        if what == "read":
            shares.add(1.0, row)
            given_s += 1.0
        elif what == "decode" and row not in decoding:
            shares.decodes(row)
            decoding.add(row)
        elif what == "end":
            taken_s += shares.end(row)
            decoding.discard(row)
        elif what == "step":
            shares.add(1.0, None)
            given_s += bool(decoding)
    assert taken_s + sum(shares.end(row) for row in range(4)) == pytest.approx(given_s)
