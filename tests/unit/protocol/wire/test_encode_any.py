"""Replies travel whatever they hold, and JSON that commands print is JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Denied, Done, Event, EventList
from lmx.protocol.wire import codec
from lmx.supervisor.cli.views.json_output import json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats()
    | st.text(st.characters(codec=None, categories=None)) | st.binary(max_size=5)
    | st.just(Path("/x")) | st.just({1, 2}),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(codec=None, categories=None)), inner,
                      max_size=3),
    max_leaves=12,
)  # fmt: skip


def event_with(data: dict[str, Any]) -> EventList:
    """A reply that holds values of any kind."""
    return EventList("e", 1, (Event(1, 1.0, "model.added", None, "", data),))


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_any_values_travel(data: dict[str, Any]) -> None:
    found = codec.decode(codec.encode_any(event_with(data), 7))
    assert found.correlation == 7
    assert len(found.message.events[0].data) <= len(data)
    json.loads(json_text(data), parse_constant=pytest.fail)


def test_what_can_travel_is_as_it_was() -> None:
    for message in (event_with({"a": [1, {"b": "é"}]}), Denied(ErrorCode.INTERNAL, "no")):
        assert codec.encode_any(message, 3) == codec.encode(message, 3)


def test_what_can_not_is_replaced_and_nothing_else() -> None:
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    data = {"name": "a\ud800", "big": 2**70, "small": -(2**70), "deep": deep, "good": [1, "x"]}
    found = codec.decode(codec.encode_any(event_with(data))).message.events[0].data
    assert found["name"] == "a\\ud800"
    assert (found["big"], found["small"]) == (2**64 - 1, -(2**63))
    assert found["good"] == [1, "x"]
    assert codec.decode(codec.encode_any(Done("\udcff"))).message.message == "\\udcff"


def test_a_bug_is_still_one() -> None:
    with pytest.raises(TypeError):
        codec.encode_any(object())
    with pytest.raises(UnicodeEncodeError):
        codec.encode(Done("\ud800"))
