"""Rows of like length decode together; a long one leaves room for the short ones."""

from hypothesis import example, given
from hypothesis import strategies as st

from lmx.protocol.models.memory import KvLayers, kv_bytes
from lmx.worker.engine.values import SequenceRequest, SequenceSampling
from lmx.worker.scheduling.kv_admission import KvAdmission
from lmx.worker.scheduling.length_buckets import SequenceLength, batchable, padded_tokens

LLAMA_8B = (KvLayers(32, 4096, step_tokens=256),)
"""128 KiB for each token."""
GIB = 1 << 30


@given(st.lists(st.integers(1, 200_000), max_size=40))
def test_a_row_is_padded_to_the_longest_like_one(lengths: list[int]) -> None:
    padded = padded_tokens([SequenceLength(length, length, length + 5) for length in lengths])
    for length, found in zip(lengths, padded, strict=True):
        alike = [other for other in lengths if other <= length or batchable(length, other)]
        assert found == max(alike) + 5


@given(
    st.lists(
        st.tuples(
            st.sampled_from([10, 100, 2000, 2200, 5000, 9000, 30_000]),
            st.integers(1, 30) | st.integers(1, 3000),
            st.integers(0, 900),
        ),
        max_size=12,
    )
)
@example([(2000, 10, 0), *[(100, 10, 0)] * 10, (5000, 10, 0)])
def test_lanes_hold_no_more_than_their_rows_are_counted_at(
    asked: list[tuple[int, int, int]],
) -> None:
    """In whatever order they join, as the engine lets them, whatever they make in between."""
    admission = KvAdmission(LLAMA_8B, None)
    left: dict[int, int] = {}
    for sequence_id, (prompt_tokens, max_tokens, _) in enumerate(asked):
        admission.begin(
            SequenceRequest(sequence_id, [1] * prompt_tokens, max_tokens, SequenceSampling(0.0))
        )
        left[sequence_id] = max_tokens
    buckets: list[dict[int, int]] = []
    for sequence_id, (length, _, steps) in enumerate(asked):
        for bucket in buckets:
            lengths = [length, *bucket.values()]
            if batchable(min(lengths), max(lengths)):
                bucket[sequence_id] = length
                break
        else:
            buckets.append({sequence_id: length})
        for bucket in buckets:
            for one in list(bucket):
                made = min(steps, left[one])
                for _ in range(made):
                    admission.advance(one)
                bucket[one] += made
                left[one] -= made
                if not left[one]:
                    del bucket[one]
                    admission.end(one)
        buckets = [bucket for bucket in buckets if bucket]
        held = sum(len(bucket) * kv_bytes(LLAMA_8B, max(bucket.values())) for bucket in buckets)
        assert held <= admission.total_bytes


def row(sequence_id: int, prompt_tokens: int) -> SequenceRequest:
    return SequenceRequest(sequence_id, [1] * prompt_tokens, 24, SequenceSampling(0.0))


def fitting(limit_bytes: int, first: list[SequenceRequest]) -> int:
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
