"""Whatever comes over a socket is a message or a ProtocolError, never anything else."""

from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

# Imported for their messages: decode knows only what is registered.
import lmx.protocol.messages.control
import lmx.protocol.messages.data
import lmx.protocol.messages.specs  # noqa: F401
from lmx.protocol.errors import ErrorCode, ProtocolError
from lmx.protocol.messages.control import Denied, Drain, LoadAdvanced
from lmx.protocol.messages.data import Cancel, Credit, Generate, Outputs, Sampling
from lmx.protocol.messages.snapshot import Snapshot
from lmx.protocol.states import LoadPhase
from lmx.protocol.wire.codec import MAGIC, MAX_MESSAGE_BYTES, VERSION, decode, encode

GOLDEN = [path.read_bytes() for path in sorted((Path(__file__).parent / "golden").glob("*.bin"))]


def frame(kind: Any, body: Any, *, version: Any = VERSION, correlation: Any = 0) -> bytes:
    return bytes(msgpack.packb([MAGIC, version, kind, correlation, body]))


def accepts_or_refuses(payload: bytes) -> None:
    try:
        decode(payload)
    except ProtocolError as error:
        assert error.code is ErrorCode.PROTOCOL_ERROR
        assert error.message


@given(st.binary(max_size=300))
def test_random_bytes(payload: bytes) -> None:
    accepts_or_refuses(payload)


@given(st.sampled_from(GOLDEN), st.data())
def test_mutated_messages(golden: bytes, data: st.DataObject) -> None:
    mutated = bytearray(golden)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        mutated[position] = data.draw(st.integers(0, 255))
    accepts_or_refuses(bytes(mutated))


@given(st.sampled_from(GOLDEN), st.data())
def test_truncated_and_extended_messages(golden: bytes, data: st.DataObject) -> None:
    accepts_or_refuses(golden[: data.draw(st.integers(0, len(golden)))])
    accepts_or_refuses(golden + data.draw(st.binary(min_size=1, max_size=20)))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
    | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)  # fmt: skip


@given(st.sampled_from(GOLDEN), st.data())
def test_any_value_in_any_field(golden: bytes, data: st.DataObject) -> None:
    magic, version, kind, correlation, body = msgpack.unpackb(golden)
    if body:
        body[data.draw(st.sampled_from(sorted(body)))] = data.draw(VALUES)
    accepts_or_refuses(bytes(msgpack.packb([magic, version, kind, correlation, body])))


@given(st.lists(VALUES, max_size=6))
def test_any_array(parts: list[Any]) -> None:
    accepts_or_refuses(bytes(msgpack.packb(parts)))


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "not msgpack"),
        (bytes(msgpack.packb({"lmx": 1})), "not an lmx message"),
        (bytes(msgpack.packb(["xml", 1, "Cancel", 0, {}])), "not an lmx message"),
        (bytes(msgpack.packb([MAGIC, VERSION, "Cancel", 0])), "not an lmx message"),
        (frame("Cancel", {"stream_id": 1}, version=2), "version 2"),
        (frame("Cancel", {"stream_id": 1}, version="1"), "version '1'"),
        (frame("Nonesuch", {}), "unknown message kind 'Nonesuch'"),
        (frame(5, {}), "unknown message kind 5"),
        (frame(["Cancel"], {}), "unknown message kind"),
        (frame("Cancel", {"stream_id": 1}, correlation="x"), "correlation"),
        (frame("Cancel", {"stream_id": 1}, correlation=True), "correlation"),
        (frame("Cancel", []), "Cancel: expected a map, got list"),
        (frame("Cancel", None), "Cancel: expected a map, got NoneType"),
        (frame("Cancel", {}), "Cancel.stream_id is missing"),
        (frame("Cancel", {"stream_id": "1"}), "Cancel.stream_id: expected an integer, got str"),
        (frame("Cancel", {"stream_id": True}), "expected an integer, got bool"),
        (frame("Cancel", {"stream_id": 1.0}), "expected an integer, got float"),
        (frame("Drain", {"if_idle": 1}), "Drain.if_idle: expected a boolean, got int"),
        (frame("Done", {"message": b"x"}), "Done.message: expected a string, got bytes"),
        (frame("Status", {"status": []}), "Status.status: expected a map, got list"),
        (frame("Outputs", {"deltas": {}}), "Outputs.deltas: expected an array, got dict"),
        (frame("Outputs", {"deltas": [5]}), "Outputs.deltas[0]: expected a map, got int"),
        (
            frame("Outputs", {"deltas": [{"stream_id": 1, "text": "", "tokens": None}]}),
            "Outputs.deltas[0].tokens: expected an integer, got NoneType",
        ),
        (
            frame("LoadAdvanced", {"instance": "a", "phase": "lunch", "fraction": None}),
            "LoadAdvanced.phase: 'lunch' is not a LoadPhase",
        ),
        (
            frame("LoadAdvanced", {"instance": "a", "phase": ["check"], "fraction": None}),
            "is not a LoadPhase",
        ),
        (
            frame("LoadAdvanced", {"instance": "a", "phase": "check", "fraction": "1"}),
            "LoadAdvanced.fraction: expected a number, got str",
        ),
    ],
)
def test_what_is_refused_and_how_it_is_said(payload: bytes, words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(payload)
    assert words in caught.value.message


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1a"], ids=["arrays", "maps"])
@pytest.mark.parametrize("depth", [600, 5000, 200_000])
def test_deep_nesting(opener: bytes, depth: int) -> None:
    with pytest.raises(ProtocolError):
        decode(opener * depth + b"\xc0")


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1a"], ids=["arrays", "maps"])
def test_deep_nesting_inside_a_field_of_any_shape(opener: bytes) -> None:
    head = frame("Status", {"status": None})
    assert head.endswith(b"\xc0")
    for depth in (400, 5000):
        accepts_or_refuses(head[:-1] + opener * depth + b"\xc0")


def test_a_message_over_the_limit() -> None:
    with pytest.raises(ProtocolError, match="is over"):
        decode(bytes(MAX_MESSAGE_BYTES + 1))


def test_fields_that_are_not_known_are_ignored() -> None:
    payload = frame("Cancel", {"stream_id": 3, "new_in_the_next_release": {"a": [1]}})
    assert decode(payload).message == Cancel(3)
    longer = bytes(msgpack.packb([MAGIC, VERSION, "Cancel", 9, {"stream_id": 3}, "media"]))
    assert decode(longer).message == Cancel(3)


def test_fields_that_are_missing_get_their_default() -> None:
    assert decode(frame("Outputs", {})).message == Outputs()
    assert decode(frame("Denied", {"code": "queue_full", "message": "m"})).message == Denied(
        ErrorCode.QUEUE_FULL, "m"
    )
    snapshot = decode(
        frame("Snapshot", {"epoch": "e", "revision": 1, "default_model": None, "models": []})
    ).message
    assert snapshot == Snapshot("e", 1, None, ())
    generate = {"stream_id": 1, "request_id": "r", "sampling": {}, "credit_deltas": 1}
    assert decode(frame("Generate", generate)).message == Generate(1, "r", Sampling(), 1)


def test_an_integer_is_a_number_and_correlation_defaults_to_none() -> None:
    message = decode(frame("LoadAdvanced", {"instance": "a", "phase": "check", "fraction": 1}))
    assert message.message == LoadAdvanced("a", LoadPhase.CHECK, 1.0)
    assert isinstance(message.message.fraction, float)
    assert decode(encode(Drain(if_idle=False))).correlation == 0


def test_encode_takes_registered_messages_only() -> None:
    for value in (Sampling(), {"stream_id": 1}, None, Cancel):
        with pytest.raises(TypeError):
            encode(value)
    with pytest.raises(TypeError):
        encode(Credit(1, object()))  # type: ignore[arg-type]
