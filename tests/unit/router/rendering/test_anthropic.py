"""The events of the Messages API: their order, and that a stream says the same as a whole."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jiter
import orjson
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.data import ChoiceEnded, Delta
from lmx.protocol.states import FinishReason
from lmx.router.rendering.accumulator import AccumulatedChoice, Accumulator, arguments_object
from lmx.router.rendering.answer_format import Beginning, Generated
from lmx.router.rendering.anthropic import AnthropicMessage, MessageAnswer, MessageEvent
from lmx.router.rendering.envelope import Identity
from tests.support.clients.answer_check import check_shape
from tests.support.clients.sdk_types import extras_of
from tests.support.rigs.answers import ENDING, call, ended, named_events, say, stream_of, think

IDENTITY = Identity("msg_1", 1700000000, "org/model", "fp_0")
EVENT: TypeAdapter[Any] = TypeAdapter(MessageEvent)
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
SDK_ERROR: TypeAdapter[Any] = TypeAdapter(ErrorResponse)
OURS = {
    # What the engine remarks, and of an error lmx's code, the field and the job.
    "warnings", "message.warnings", "error.code", "error.param", "error.job_id",
}  # fmt: skip
"""The fields that lmx has beyond the library's types."""


def known(reader: TypeAdapter[Any], value: Any) -> BaseModel:
    """Return a value as the library's type, strictly, and with no field that is not in OURS."""
    made: BaseModel = reader.validate_json(json.dumps(value), strict=True)
    extra = set(extras_of(made))
    assert extra <= OURS, extra - OURS
    return made


def streamed(
    deltas: list[Delta], end: ChoiceEnded, answer: MessageAnswer, sizes: list[int]
) -> list[dict[str, Any]]:
    found = list(named_events(stream_of(answer, IDENTITY, deltas, end, sizes)))
    for value in found:
        EVENT.validate_python(value)
        known(SDK_EVENT, value)
    return found


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream; each event must come where it may."""
    message: dict[str, Any] = events[0]["message"]
    arguments = ""
    is_open = False
    for event in events[1:-2]:
        block = message["content"][-1] if message["content"] else {}
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                is_open, arguments = True, ""
            case "content_block_delta":
                assert is_open and event["index"] == len(message["content"]) - 1
                delta = event["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] += delta["signature"]
                    case "input_json_delta":
                        arguments += delta["partial_json"]
                        block["input"] = jiter.from_json(arguments.encode(), partial_mode=True)
            case "content_block_stop":
                assert is_open and event["index"] == len(message["content"]) - 1
                is_open = False
    assert not is_open
    end, stop = events[-2:]
    assert (end["type"], stop) == ("message_delta", {"type": "message_stop"})
    return {**message, **end["delta"], "usage": end["usage"]}


def whole(deltas: list[Delta], end: ChoiceEnded, answer: MessageAnswer) -> Mapping[str, Any]:
    kept = Accumulator(1, None)
    kept.add(deltas)
    made = answer.complete_answer(Generated(IDENTITY, Beginning(9), kept.choices, {0: end}, ENDING))
    check_shape(AnthropicMessage, made)
    known(TypeAdapter(Message), made)
    return made


PIECES = st.lists(st.text(max_size=4), max_size=4)
CALLS = st.lists(st.sampled_from([(), ("{}",), ('{"a": 1}',)]), max_size=3)


STRETCHES = st.lists(st.tuples(st.sampled_from([think, say]), PIECES), max_size=4)


@given(STRETCHES, STRETCHES, CALLS, st.lists(st.integers(0, 4), max_size=4), st.booleans())
def test_a_stream_says_the_same_as_a_whole(
    before: list[tuple[Callable[[str], Delta], list[str]]],
    behind: list[tuple[Callable[[str], Delta], list[str]]],
    calls: list[tuple[str, ...]],
    sizes: list[int],
    shows_thinking: bool,
) -> None:
    deltas = [say_or_think(text) for say_or_think, texts in before for text in texts]
    for index, arguments in enumerate(calls):
        deltas += call(index, *arguments)
    deltas += [say_or_think(text) for say_or_think, texts in behind for text in texts]
    answer = MessageAnswer((), shows_thinking=shows_thinking)
    events = streamed(deltas, ended(), answer, sizes)
    assert folded(events) == whole(deltas, ended(), answer)


def test_the_events_of_an_answer() -> None:
    deltas = [think("Hm."), say("Hel"), say("lo"), *call(0, '{"a":', " 1}"), *call(1)]
    answer = MessageAnswer((), shows_thinking=True)
    events = streamed(deltas, ended(FinishReason.TOOL_CALLS), answer, [])
    delta, stop = "content_block_delta", "content_block_stop"
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start", delta, delta, stop,
        "content_block_start", delta, delta, stop,
        "content_block_start", delta, delta, stop,
        "content_block_start", stop,
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0]["message"]["usage"]["input_tokens"] == 9
    made = folded(events)
    assert [block["type"] for block in made["content"]] == ["thinking", "text", *["tool_use"] * 2]
    assert made["content"][0]["signature"]
    assert made["content"][2] == {
        "type": "tool_use", "id": "call_0", "name": "f0", "input": {"a": 1},
    }  # fmt: skip
    assert made["usage"] == {
        "input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2,
        "output_tokens": 4, "output_tokens_details": {"thinking_tokens": 1},
    }  # fmt: skip


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_in_the_middle_is_the_library_s(code: ErrorCode) -> None:
    writer = MessageAnswer((), shows_thinking=True).writer(IDENTITY, Beginning(9))
    writer.deltas([say("Hel")])
    for error in (LmxError(code, "why"), RequestError(code, "why", param="messages[0]")):
        name, data = writer.failed(error, "req-1").decode().removesuffix("\n\n").split("\n")
        assert name == "event: error"
        event = json.loads(data.removeprefix("data: "))
        assert event["request_id"] == "req-1"
        # Anthropic has these types, and the library's union has no class for them.
        if event["error"]["type"] in ("conflict_error", "request_too_large"):
            event["error"]["type"] = "invalid_request_error"
        known(SDK_ERROR, event)


def test_remarks_of_the_engine_are_warnings() -> None:
    answer = MessageAnswer((), shows_thinking=True)
    writer = answer.writer(IDENTITY, Beginning(9, ("`oneOf` is taken as `anyOf`",)))
    data = writer.first().decode().partition("\ndata: ")[2]
    assert known(SDK_EVENT, json.loads(data)).model_dump()["message"]["warnings"]
    # Others are known at the end alone.
    late = replace(ENDING, finished=replace(ENDING.finished, remarks=("not checked",)))
    list(writer.ends([ChoiceEnded(1, 0, FinishReason.STOP)]))
    data = writer.last(late).decode().partition("\ndata: ")[2].partition("\n")[0]
    assert known(SDK_EVENT, json.loads(data)).model_dump()["warnings"] == ["not checked"]
    made = Generated(IDENTITY, Beginning(9, ("first",)), [AccumulatedChoice()], {}, late)
    whole = answer.complete_answer(made)
    assert whole["warnings"] == ["first", "not checked"]


def test_thoughts_that_are_not_shown_are_signed() -> None:
    answer = MessageAnswer((), shows_thinking=False)
    made = folded(streamed([think("Hm."), say("Yes")], ended(), answer, []))
    shown = MessageAnswer((), shows_thinking=True)
    same = folded(streamed([think("Hm."), say("Yes")], ended(), shown, []))
    assert (made["content"][0]["thinking"], same["content"][0]["thinking"]) == ("", "Hm.")
    assert made["content"][0]["signature"] == same["content"][0]["signature"]


@pytest.mark.parametrize(
    ("end", "deltas", "wanted"),
    [
        (ended(), [say("x")], ("end_turn", None)),
        (ended(stop="END"), [say("x")], ("stop_sequence", "END")),
        (ended(stop="77"), [say("x")], ("end_turn", None)),
        (ended(FinishReason.LENGTH), [say("x")], ("max_tokens", None)),
        (ended(FinishReason.TOOL_CALLS), call(0, "{}"), ("tool_use", None)),
        (ended(FinishReason.LENGTH), call(0, '{"a": "b'), ("max_tokens", None)),
        (ended(FinishReason.LENGTH), [], ("max_tokens", None)),
    ],
)
def test_why_it_ended(end: ChoiceEnded, deltas: list[Delta], wanted: tuple[str, Any]) -> None:
    answer = MessageAnswer(("END",), shows_thinking=True)
    made = whole(deltas, end, answer)
    assert (made["stop_reason"], made["stop_sequence"]) == wanted
    last = streamed(deltas, end, answer, [])[-2]["delta"]
    assert (last["stop_reason"], last["stop_sequence"]) == wanted


def test_of_a_call_that_was_cut_off_the_input_is_what_is_there() -> None:
    made = whole(call(0, '{"a": 1, "b": "c'), ended(), MessageAnswer((), shows_thinking=True))
    assert made["content"][0]["input"] == {"a": 1}


def test_an_answer_that_has_not_ended_has_no_reason() -> None:
    kept = Accumulator(1, None)
    kept.add([say("Hel")])
    answer = MessageAnswer((), shows_thinking=True)
    made = answer.complete_answer(Generated(IDENTITY, Beginning(9), kept.choices, {}, None))
    assert made["stop_reason"] is None and made["usage"]["input_tokens"] == 9
    assert made["content"] == [{"type": "text", "text": "Hel"}]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (r'{"a": 1, "b": "x\ud83dy"}', {"a": 1, "b": "x\ufffdy"}),
        (r'{"b": "\ude00\ud83d", "c": [2', {"b": "\ufffd\ufffd", "c": [2]}),
        (r'{"b": "\ud83d\ude00 \\ud83d"}', {"b": "\N{GRINNING FACE} \\ud83d"}),
        ('{"n": [123456789012345678901234567890]}', {"n": [123456789012345678901234567890]}),
        ('{"n": -9223372036854775809, "m": 1e999}', {"n": -9223372036854775809, "m": None}),
    ],
)
def test_whatever_a_model_writes_arguments_are_kept(arguments: str, wanted: dict[str, Any]) -> None:
    assert json.loads(orjson.dumps(arguments_object(arguments))) == wanted
