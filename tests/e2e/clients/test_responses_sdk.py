"""OpenAI's own Python library on lmx's Responses API: create, stream, parse, background, retrieve,
input items, cancel, delete; every event by the library's own types."""

import json
import time
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import (
    Response,
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseItemList,
    ResponseStreamEvent,
)
from pydantic import BaseModel, TypeAdapter

from tests.support.clients.sdk_types import extras_of

SENTENCE = "The quick brown fox jumps over the lazy dog."
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
PATCH = '<tool_call>{"name": "sh", "arguments": {"input": "ls \\"a\\"\\n"}}</tool_call>'
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    },
    "strict": False,
}  # fmt: skip
CUSTOM: Any = {"type": "custom", "name": "sh"}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
OURS = {"store", "frequency_penalty", "presence_penalty", "timings", "warnings"}
"""The fields that lmx's responses have beyond the library's types."""


def script(*pieces: str) -> str:
    return json.dumps({"pieces": list(pieces)})


def create(client: OpenAI, content: Any, **fields: Any) -> Response:
    made: Response = client.responses.create(model="scripted", input=content, **fields)
    return made


def checked(made: BaseModel) -> dict[str, Any]:
    """An object as JSON, after a strict check by the library's type."""
    value = made.model_dump(mode="json", by_alias=True, exclude_unset=True)
    again = type(made).model_validate_json(json.dumps(value), strict=True)
    extra = {path.rpartition(".")[2] for path in extras_of(again)}
    assert extra <= OURS, extra - OURS
    return value


def streamed(client: OpenAI, content: Any, **fields: Any) -> tuple[list[Any], dict[str, Any]]:
    """All events of a stream, and the response of the last one."""
    found = []
    for event in client.responses.create(model="scripted", input=content, stream=True, **fields):
        value = event.model_dump(mode="json", by_alias=True, exclude_unset=True)
        made = EVENT.validate_json(json.dumps(value), strict=True)
        extra = {path.rpartition(".")[2] for path in extras_of(made)}
        assert extra <= OURS, extra - OURS
        found.append(event)
    assert [event.sequence_number for event in found] == list(range(len(found)))
    return found, checked(found[-1].response)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two responses say the same, but for their ids and times."""
    changing = ("id", "created_at", "completed_at", "timings")
    texts = [
        {key: value for key, value in made.items() if key not in changing} for made in (one, other)
    ]
    for made in texts:
        made["output"] = [
            {key: value for key, value in item.items() if key not in ("id", "call_id")}
            for item in made["output"]
        ]
        made["usage"] = {"output_tokens": made["usage"]["output_tokens"]}
    return texts[0] == texts[1]


@pytest.mark.parametrize(
    ("content", "fields", "kinds"),
    [
        ("Hello", {"instructions": "Be kind.", "metadata": {"a": "b"}}, ["message"]),
        (script("<think>", "Hm.", "</think>", "Yes."), {}, ["reasoning", "message"]),
        (
            script("<think>", "Hm.", "</think>", "Yes."),
            {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]},
            ["reasoning", "message"],
        ),
        (script("Look: ", CALL[:9], CALL[9:]), {"tools": [TOOL]}, ["message", "function_call"]),
        (script(PATCH[:40], PATCH[40:62], PATCH[62:]), {"tools": [CUSTOM]}, ["custom_tool_call"]),
        ("Hello", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}, ["message"]),
        ("Hello", {"max_output_tokens": 3}, ["message"]),
    ],
)
def test_a_stream_says_what_the_whole_says(
    scripted_client: OpenAI, content: str, fields: dict[str, Any], kinds: list[str]
) -> None:
    whole = checked(create(scripted_client, content, **fields))
    events, last = streamed(scripted_client, content, **fields)
    assert same(whole, last)
    assert [item["type"] for item in whole["output"]] == kinds
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump(exclude_unset=True, mode="json") for item in done] == last["output"]
    cut = "max_output_tokens" in fields
    assert whole["status"] == ("incomplete" if cut else "completed")
    assert events[-1].type == f"response.{whole['status']}"


def test_a_loop_with_tools_and_thoughts(scripted_client: OpenAI) -> None:
    first = script("<think>", "Ask.", "</think>", CALL, PATCH)
    made = create(
        scripted_client, first, tools=[TOOL, CUSTOM], store=False,
        include=["reasoning.encrypted_content"],
    )  # fmt: skip
    thought, call, custom = made.output
    assert thought.type == "reasoning" and thought.encrypted_content
    assert isinstance(call, ResponseFunctionToolCall) and isinstance(custom, ResponseCustomToolCall)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    assert custom.input == 'ls "a"\n'
    outputs: list[Any] = [
        {"type": "custom_tool_call_output", "call_id": custom.call_id, "output": "b"},
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": [{"type": "input_text", "text": script("It rains.")}],
        },
    ]
    items = [item.model_dump(exclude_unset=True) for item in made.output]
    end = create(
        scripted_client, [{"role": "user", "content": first}, *items, *outputs],
        tools=[TOOL, CUSTOM],
    )  # fmt: skip
    assert end.output_text == "It rains."


def test_a_form_is_parsed(scripted_client: OpenAI) -> None:
    class City(BaseModel):
        city: str

    made = scripted_client.responses.parse(
        model="scripted", input=script('{"city": ', '"Oslo"}'), text_format=City
    )
    assert made.output_parsed == City(city="Oslo")
    with scripted_client.responses.stream(
        model="scripted", input=script('{"city": ', '"Oslo"}'), text_format=City
    ) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == City(city="Oslo")


def test_a_conversation_that_is_kept(scripted_client: OpenAI) -> None:
    first = create(scripted_client, "Hello", instructions="Be kind.")
    assert scripted_client.responses.retrieve(first.id).model_dump() == first.model_dump()
    second = create(scripted_client, script("Again."), previous_response_id=first.id)
    assert second.output_text == "Again." and second.previous_response_id == first.id
    page = scripted_client.responses.input_items.list(second.id, limit=2, order="asc")
    listed = list(page)
    assert [item.type for item in listed] == ["message"] * 3
    assert listed[1].model_dump() == first.output[0].model_dump()
    raw = scripted_client.responses.with_raw_response.retrieve(first.id).text
    Response.model_validate_json(raw, strict=True)
    raw = scripted_client.responses.input_items.with_raw_response.list(second.id).text
    assert not set(extras_of(ResponseItemList.model_validate_json(raw)))
    scripted_client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        scripted_client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as gone:
        create(scripted_client, "More", previous_response_id=second.id)
    assert gone.value.code == "previous_response_not_found"


def when(client: OpenAI, response_id: str, *statuses: str) -> Response:
    deadline_s = time.monotonic() + 90
    while (found := client.responses.retrieve(response_id)).status not in statuses:
        assert time.monotonic() < deadline_s, found.status
        time.sleep(0.02)
    checked(found)
    return found


def test_a_response_in_the_background(scripted_client: OpenAI) -> None:
    begun = create(scripted_client, script("Yes."), background=True)
    assert begun.status in ("queued", "in_progress") and begun.output == []
    assert when(scripted_client, begun.id, "completed").output_text == "Yes."
    endless = create(scripted_client, json.dumps({"tokens": 3000, "step_s": 0.02}), background=True)
    when(scripted_client, endless.id, "in_progress")
    assert scripted_client.responses.cancel(endless.id).status == "cancelled"
    assert when(scripted_client, endless.id, "cancelled").error is None


def test_the_tokens_of_an_input(scripted_client: OpenAI) -> None:
    asked: dict[str, Any] = {"input": "Hello", "instructions": "Be kind.", "tools": [TOOL]}
    counted = scripted_client.responses.input_tokens.count(model="scripted", **asked)
    made = scripted_client.responses.create(model="scripted", **asked)
    assert made.usage is not None and counted.input_tokens == made.usage.input_tokens


def test_errors(scripted_client: OpenAI) -> None:
    for fields, kind, param in (
        ({"model": "none"}, openai.NotFoundError, "model"),
        ({"input": [{"role": "robot"}]}, openai.BadRequestError, "input[0].role"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"conversation": "conv_1"}, openai.NotFoundError, "conversation"),
    ):
        values: Any = {"model": "scripted", "input": "Hello", **fields}
        with pytest.raises(kind) as caught:
            scripted_client.responses.create(**values)
        assert caught.value.param == param
    with pytest.raises(openai.AuthenticationError):
        scripted_client.with_options(api_key="wrong").responses.create(input="Hello")
