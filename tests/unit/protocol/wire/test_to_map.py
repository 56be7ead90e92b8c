"""A message carries every field that is not at its default, in the order of its class."""

import dataclasses
from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.messages.data import Delta, Outputs, TokenLogprob, ToolCallPart, TopLogprob
from lmx.protocol.states import DeltaKind
from lmx.protocol.wire.codec import MAGIC, VERSION, decode, encode

NUMBERS = st.integers(0, 300)
TOP = st.builds(TopLogprob, st.binary(max_size=3), st.floats(-9, 0), NUMBERS)
LOGPROBS = st.builds(
    TokenLogprob,
    st.binary(max_size=3),
    st.none() | st.floats(-9, 0),
    NUMBERS,
    st.just(()) | st.tuples(TOP),
    st.none() | NUMBERS,
)
CALLS = st.builds(ToolCallPart, NUMBERS, st.none() | st.text(max_size=3))
DELTAS = st.builds(
    Delta,
    NUMBERS,
    st.text(max_size=5),
    NUMBERS,
    NUMBERS,
    st.sampled_from(DeltaKind),
    st.none() | CALLS,
    st.just(()) | st.tuples(LOGPROBS, LOGPROBS),
    st.just(()) | st.tuples(NUMBERS),
)


def plain_map(value: Any) -> Any:
    """A dataclass as a map, written as the rule reads: field by field."""
    if isinstance(value, tuple):
        return [plain_map(inner) for inner in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {
        field.name: plain_map(inner)
        for field in dataclasses.fields(value)
        if (inner := getattr(value, field.name)) is not field.default
    }


@given(st.lists(DELTAS, max_size=3))
def test_a_message_has_the_fields_that_are_not_at_their_default(deltas: list[Delta]) -> None:
    outputs = Outputs(tuple(deltas))
    packed = encode(outputs)
    assert packed == msgpack.packb([MAGIC, VERSION, "Outputs", 0, plain_map(outputs)])
    assert decode(packed).message == outputs
