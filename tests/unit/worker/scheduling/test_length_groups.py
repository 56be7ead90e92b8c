"""Rows of like length decode together; a long one leaves room for the short ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.models.memory import KvLayers
from lmx.worker.engine import RowRequest, RowSampling
from lmx.worker.scheduling.kv_admission import KvAdmission
from lmx.worker.scheduling.length_groups import are_alike, group_by_length

LLAMA_8B = (KvLayers(32, 4096, step_tokens=256),)
"""128 KiB for each token."""
GIB = 1 << 30


@given(st.lists(st.integers(1, 200_000), max_size=40))
def test_every_length_is_in_a_group_of_like_ones(lengths: list[int]) -> None:
    groups = group_by_length(lengths)
    assert sorted(length for group in groups for length in group) == sorted(lengths)
    for group in groups:
        assert group[0] == max(group)
        assert are_alike(min(group), max(group))


def row(row_id: int, prompt_tokens: int) -> RowRequest:
    return RowRequest(row_id, [1] * prompt_tokens, 24, RowSampling(0.0))


def fitting(limit_bytes: int, first: list[RowRequest]) -> int:
    """Return how many rows of 1,000 tokens fit beside the first ones."""
    admission = KvAdmission(LLAMA_8B, limit_bytes)
    for one in first:
        admission.begin(one)
    count = 0
    while admission.fits(new := row(1000 + count, 1000)):
        admission.begin(new)
        count += 1
    return count


def test_a_long_row_takes_its_own_room_and_no_more() -> None:
    """64k tokens beside rows of 1k: all the room that is not its own is theirs."""
    long = row(1, 64_000)
    admission = KvAdmission(LLAMA_8B, None)
    admission.begin(long)
    without = fitting(24 * GIB - admission.total_bytes, [])
    assert without > 100
    assert fitting(24 * GIB, [long]) >= 0.9 * without
