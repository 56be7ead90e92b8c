"""The events of the Responses API: their order, and that a stream says the same as a whole."""

import itertools
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.data import ChoiceEnded, Delta, TokenLogprob, TopLogprob
from lmx.protocol.states import FinishReason
from lmx.router.rendering.accumulator import Accumulator
from lmx.router.rendering.answer_format import Beginning, Generated
from lmx.router.rendering.envelope import Identity
from lmx.router.rendering.responses.events import ResponseAnswer
from lmx.router.rendering.responses.events import ResponseStreamEvent as OurEvent
from lmx.router.rendering.responses.items import ItemForm, response_of_item
from lmx.router.rendering.responses.sealing import sealed, sealing_key, unsealed
from lmx.router.rendering.responses.state import ResponseObject
from lmx.router.rendering.responses.tools import CalledTool, InputReader
from tests.support.clients.answer_check import check_shape
from tests.support.clients.sdk_types import extras_of
from tests.support.rigs.answers import ENDING, call, ended, named_events, say, stream_of, think

IDENTITY = Identity("resp_" + "0" * 24, 1700000000, "org/model", "fp_0")
EVENT: TypeAdapter[Any] = TypeAdapter(OurEvent)
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ASKED: dict[str, Any] = {
    "background": False, "frequency_penalty": 0.0, "instructions": None,
    "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "presence_penalty": 0.0, "previous_response_id": None,
    "prompt_cache_key": None, "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None, "service_tier": "default", "store": True, "temperature": 0.7,
    "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto",
    "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled", "user": None,
}  # fmt: skip
OURS = {
    # Fields of a response that OpenAI's library does not know: the Open Responses specification
    # has the first three.
    "response.store", "response.frequency_penalty", "response.presence_penalty",
    "response.timings", "response.warnings",
}  # fmt: skip
CALLED = {
    "f0": CalledTool("f0"), "f1": CalledTool("f1", "space"), "f2": CalledTool("f2", custom=True),
}  # fmt: skip
KEY = sealing_key("secret")


def form(*, logprobs: bool = False, **options: Any) -> ResponseAnswer:
    return ResponseAnswer(ASKED, ItemForm(CALLED, **options), logprobs=logprobs)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    found = list(named_events(raw))
    for value in found:
        EVENT.validate_python(value)
        extra = set(extras_of(SDK_EVENT.validate_python(value, strict=True)))
        assert extra <= OURS, extra - OURS
    assert [value["sequence_number"] for value in found] == list(range(len(found)))
    return found


def streamed(
    deltas: list[Delta], end: ChoiceEnded, answer: ResponseAnswer, sizes: list[int]
) -> list[dict[str, Any]]:
    return events_of(stream_of(answer, IDENTITY, deltas, end, sizes))


def whole(deltas: list[Delta], end: ChoiceEnded, answer: ResponseAnswer) -> dict[str, Any]:
    kept = Accumulator(1, answer.retained_logprobs)
    kept.add(deltas)
    made = json.loads(
        orjson.dumps(
            answer.complete_answer(
                Generated(IDENTITY, Beginning(9), kept.choices, {0: end}, ENDING)
            )
        )
    )
    check_shape(ResponseObject, made)
    return dict(made)


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a client collects; each event must come where it may, and the deltas of an
    item must make up what its last event says."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    open_item: dict[str, Any] | None = None
    open_part, text = False, ""
    for event in events[2:-1]:
        name = event["type"]
        if name == "response.output_item.added":
            assert open_item is None and event["output_index"] == len(items)
            open_item, text = event["item"], ""
            continue
        assert open_item is not None and event["output_index"] == len(items)
        if name == "response.output_item.done":
            assert not open_part and event["item"]["id"] == open_item["id"]
            items.append(event["item"])
            open_item = None
            continue
        assert event["item_id"] == open_item["id"]
        if name.endswith("part.added"):
            assert not open_part and event["part"]["text"] == ""
            open_part = True
        elif name.endswith("part.done"):
            assert open_part and event["part"]["text"] == text
            open_part = False
        elif name.endswith(".delta"):
            assert event["delta"]
            text += event["delta"]
        else:
            said = [event[key] for key in ("text", "arguments", "input") if key in event]
            assert name.endswith(".done") and said == [text]
    assert open_item is None
    return items


TEXTS = st.text(max_size=3)
INPUTS = st.text(max_size=6).map(lambda text: json.dumps({"input": text}))
CALLS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.sampled_from(["{}", '{"a"', ": 1}"]), max_size=3)),
    max_size=3,
)
STRETCHES = st.lists(
    st.one_of(
        st.builds(say, TEXTS).map(lambda delta: [delta]),
        st.builds(think, TEXTS).map(lambda delta: [delta]),
        INPUTS.map(lambda text: ["input", text]),
        st.sampled_from(["{}", '{"a": 1}']).map(lambda text: ["arguments", text]),
    ),
    max_size=8,
)


@given(
    STRETCHES,
    st.sampled_from(FinishReason),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 3), max_size=4),
    st.data(),
)
def test_a_stream_says_what_the_whole_says(
    stretches: list[list[Any]],
    reason: FinishReason,
    summarizes: bool,
    seals: bool,
    sizes: list[int],
    data: st.DataObject,
) -> None:
    deltas: list[Delta] = []
    for index, stretch in enumerate(stretches):
        if isinstance(stretch[0], Delta):
            deltas += stretch
        else:
            cut = data.draw(st.integers(0, len(stretch[1])))
            name = 2 if stretch[0] == "input" else index % 2
            deltas += call(index, stretch[1][:cut], stretch[1][cut:], name=name)
    options: dict[str, Any] = {
        "summarizes": summarizes, "sealing_key": KEY if seals else None,
    }  # fmt: skip
    events = streamed(deltas, ended(reason), form(**options), sizes)
    made = whole(deltas, ended(reason), form(**options))
    assert events[-1]["response"] == made
    assert folded(events) == made["output"]
    is_cut = reason is FinishReason.LENGTH
    assert events[-1]["type"] == ("response.incomplete" if is_cut else "response.completed")
    assert (made["incomplete_details"] is not None) == is_cut
    ids = [item["id"] for item in made["output"]]
    assert len(set(ids)) == len(ids)
    assert {response_of_item(one) for one in ids} <= {IDENTITY.completion_id}


def test_each_kind_of_item() -> None:
    deltas = [
        think("Hm."), say("Let me "), say("see."), *call(0, "{", "}"), *call(1, "{}"),
        *call(2, '{"input": "a\\n', '\\"b\\""}'), think("So."), say("Yes."),
    ]  # fmt: skip
    made = whole(deltas, ended(), form())
    shown = [
        {key: value for key, value in item.items() if key not in ("id", "status", "role")}
        for item in made["output"]
    ]
    thoughts: dict[str, Any] = {"type": "reasoning", "summary": []}
    said = {"type": "output_text", "annotations": [], "logprobs": []}
    assert shown == [
        {**thoughts, "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "content": [{**said, "text": "Let me see."}]},
        {"type": "function_call", "call_id": "call_0", "name": "f0", "arguments": "{}"},
        {
            "type": "function_call", "call_id": "call_1", "name": "f1", "namespace": "space",
            "arguments": "{}",
        },
        {"type": "custom_tool_call", "call_id": "call_2", "name": "f2", "input": 'a\n"b"'},
        {**thoughts, "content": [{"type": "reasoning_text", "text": "So."}]},
        {"type": "message", "content": [{**said, "text": "Yes."}]},
    ]  # fmt: skip
    assert made["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 13,
    }


def test_thoughts_as_a_summary_and_as_a_token() -> None:
    events = streamed([think("Hm."), say("Yes.")], ended(), form(summarizes=True), [1])
    assert [event["type"].removeprefix("response.") for event in events[3:8]] == [
        "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
    ]  # fmt: skip
    assert events[7]["item"]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    made = whole([think("Hm.")], ended(), form(sealing_key=KEY))
    token = made["output"][0]["encrypted_content"]
    assert "Hm." not in token and unsealed(token, KEY) == "Hm."


@given(st.text(), st.binary(max_size=40))
def test_only_own_tokens_are_thoughts(thoughts: str, noise: bytes) -> None:
    token = sealed(thoughts, KEY)
    assert unsealed(token, KEY) == thoughts
    assert unsealed(token, sealing_key("another")) is None
    assert unsealed(noise.decode("latin-1"), KEY) is None
    changed = token[:-6] + ("A" if token[-6] != "A" else "B") + token[-5:]
    assert unsealed(changed, KEY) is None
    assert unsealed(f"lmx1.{noise.hex()}", KEY) is None


def test_logprobs() -> None:
    top = (TopLogprob(b"a", -0.5, 1),)
    deltas = [
        Delta(1, text, 1, logprobs=(TokenLogprob(text.encode(), -0.5, 1, top),)) for text in "ab"
    ]
    events = streamed([think("x"), *deltas], ended(), form(logprobs=True), [])
    made = whole([think("x"), *deltas], ended(), form(logprobs=True))
    assert events[-1]["response"] == made
    found = made["output"][1]["content"][0]["logprobs"]
    assert [one["token"] for one in found] == ["a", "b"]
    assert found[0]["bytes"] == [97] and found[0]["top_logprobs"][0]["logprob"] == -0.5
    reported = [e["logprobs"][0] for e in events if e["type"] == "response.output_text.delta"]
    assert [one["token"] for one in reported] == ["a", "b"] and "bytes" not in reported[0]


def test_a_stream_that_fails_has_what_was_made() -> None:
    writer = form().writer(IDENTITY, Beginning(9))
    raw = writer.first() + writer.deltas([think("Hm."), say("Yes")])
    events = events_of(raw + writer.failed(LmxError(ErrorCode.ENGINE_ERROR, "broken"), None))
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.failed" and response["status"] == "failed"
    assert response["error"] == {
        "code": "server_error", "message": "broken", "type": "engine_error",
    }  # fmt: skip
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


@given(st.text(), st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_an_input_is_read_the_same_however_it_is_cut(
    text: str, cuts: list[int], is_ascii: bool
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)
    reader = InputReader()
    places = [0, *sorted(cuts), len(arguments)]
    pieces = [arguments[start:end] for start, end in itertools.pairwise(places)]
    assert "".join([*map(reader.read, pieces), reader.end()]) == text


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (r'{"input":"a\x"}', r"a\x"), (r'{"input":"a\u12"}', r"a\u12"),
        (r'{"input":"\ud83d"}', "\ufffd"), (r'{"input":"\ud83d\n"}', "\ufffd\n"),
        (r'{"input":"a\u12', "a"), ('{"input":"a\\', "a"), (r'{"input":"a\ud83d\ude', "a"),
    ],
)  # fmt: skip
def test_an_input_with_a_wrong_escape_or_cut_off_in_one(arguments: str, wanted: str) -> None:
    for pieces in ([arguments], list(arguments)):
        reader = InputReader()
        assert "".join([*map(reader.read, pieces), reader.end()]) == wanted


def test_arguments_of_another_form_are_the_input() -> None:
    for arguments in ("ls -l", '{"input": 1}', "[1]", "{}", "", '{"a": {"b": "c"}}'):
        whole_reader, reader = InputReader(), InputReader()
        assert whole_reader.read(arguments) + whole_reader.end() == arguments
        assert "".join(map(reader.read, arguments)) + reader.end() == arguments
