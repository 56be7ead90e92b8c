"""Anthropic's own Python library on lmx: messages, streams, tools, errors, retries, counting."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from anthropic.types import MessageParam, ToolParam
from openai import OpenAI
from pydantic import BaseModel

SENTENCE = "The quick brown fox jumps over the lazy dog."
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
TOOL: ToolParam = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    },
}  # fmt: skip


@pytest.fixture
def url(scripted_client: OpenAI) -> str:
    """Where Anthropic's library finds the scripted models: it adds ``/v1`` itself."""
    return str(scripted_client.base_url).rstrip("/").removesuffix("/v1")


@pytest.fixture
def client(url: str, scripted_client: OpenAI) -> Iterator[Anthropic]:
    key = scripted_client.api_key
    with Anthropic(base_url=url, api_key=key, max_retries=0, timeout=300) as made:
        yield made


def user(content: Any) -> MessageParam:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"role": "user", "content": text}


def create(client: Anthropic, content: Any, **fields: Any) -> anthropic.types.Message:
    values: dict[str, Any] = {"model": "scripted", "max_tokens": 200, **fields}
    made: anthropic.types.Message = client.messages.create(messages=[user(content)], **values)
    return made


def test_an_answer_whole_and_streamed(client: Anthropic) -> None:
    whole = create(client, "Hello")
    assert [block.type for block in whole.content] == ["text"]
    assert whole.content[0].type == "text" and whole.content[0].text == SENTENCE
    assert (whole.stop_reason, whole.role) == ("end_turn", "assistant")
    assert whole.usage.output_tokens == 9 and whole._request_id
    with client.messages.stream(
        model="scripted", max_tokens=200, messages=[user("Hello")]
    ) as stream:
        assert "".join(stream.text_stream) == SENTENCE
        final = stream.get_final_message()
    assert [block.model_dump(exclude={"parsed_output"}) for block in final.content] == [
        block.model_dump() for block in whole.content
    ]
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 9)


def test_thoughts_come_first_and_are_taken_back(client: Anthropic) -> None:
    script = {"pieces": ["<think>", "Hm.", "</think>", "Yes."]}
    thinking = {"type": "enabled", "budget_tokens": 100}
    made = create(client, script, thinking=thinking)
    thought, text = made.content
    assert thought.type == "thinking" and thought.thinking == "Hm." and thought.signature
    assert text.type == "text" and text.text == "Yes."
    again = client.messages.create(
        model="scripted", max_tokens=50, messages=[user(script), made.to_param(), user("Hello")]
    )
    assert again.content[0].type == "text" and again.content[0].text == SENTENCE


def test_a_stop_sequence_and_a_limit(client: Anthropic) -> None:
    made = create(client, "Hello", stop_sequences=["fox", ""])
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "fox")
    assert create(client, "Hello", max_tokens=3).stop_reason == "max_tokens"


def test_a_loop_with_a_tool(client: Anthropic) -> None:
    script = {"pieces": ["Let me see. ", CALL[:20], CALL[20:60], CALL[60:]]}
    for tool_choice in ({"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": True}):
        made = create(client, script, tools=[TOOL], tool_choice=tool_choice)
        text, call = made.content
        assert text.type == "text" and call.type == "tool_use"
        assert (call.name, call.input, made.stop_reason) == (
            "get_weather", {"city": "Oslo"}, "tool_use",
        )  # fmt: skip
        # The result is the last message, and scripts the answer to it.
        result: Any = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": [{"type": "text", "text": json.dumps({"pieces": ["It rains."]})}],
        }
        turns: list[MessageParam] = [
            user(script),
            made.to_param(),
            {"role": "user", "content": [result]},
        ]
        end = client.messages.create(model="scripted", max_tokens=50, tools=[TOOL], messages=turns)
        assert end.content[0].type == "text" and end.content[0].text == "It rains."


def test_the_library_s_own_loop_with_tools(client: Anthropic) -> None:
    asked: list[str] = []

    @beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        asked.append(city)
        return json.dumps({"pieces": ["It rains in ", city, "."]})

    runner = client.beta.messages.tool_runner(
        model="scripted",
        max_tokens=100,
        tools=[get_weather],
        messages=[{"role": "user", "content": json.dumps({"pieces": [CALL]})}],
    )
    final = runner.until_done()
    assert asked == ["Oslo"]
    assert [block.text for block in final.content if block.type == "text"] == ["It rains in Oslo."]


class City(BaseModel):
    city: str


def test_a_parsed_answer(client: Anthropic) -> None:
    made = client.messages.parse(
        model="scripted",
        max_tokens=50,
        messages=[user({"pieces": ['{"city": ', '"Oslo"}']})],
        output_format=City,
    )
    assert made.parsed_output == City(city="Oslo")


def test_a_stream_of_a_call_says_what_it_adds(client: Anthropic) -> None:
    with client.messages.stream(
        model="scripted", max_tokens=100, tools=[TOOL],
        messages=[user({"pieces": [CALL[:30], CALL[30:50], CALL[50:]]})],
    ) as stream:  # fmt: skip
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert "input_json" in kinds
    (call,) = final.content
    assert call.type == "tool_use" and call.input == {"city": "Oslo"}


def test_errors(client: Anthropic, url: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        create(client, "Hello", extra_body={"temperature": 9})
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError) as missing:
        create(client, "Hello", model="no-such-model")
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.InternalServerError):
        create(client, {"step_raise_at": 0})
    failing = user({"tokens": 20, "fail_at": 5, "step_s": 0.05})
    with (
        pytest.raises(anthropic.APIStatusError) as broken,
        client.messages.stream(model="scripted", max_tokens=50, messages=[failing]) as stream,
    ):
        stream.until_done()
    assert broken.value.type == "api_error"
    with (
        Anthropic(base_url=url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        create(stranger, "Hello")


def test_the_models(client: Anthropic) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert {"scripted", "narrow"} <= set(listed) and "minilm" not in listed
    for model in (listed["scripted"], client.models.retrieve("scripted")):
        assert (model.type, model.display_name) == ("model", "scripted")
        assert model.created_at.year > 2000 and model.max_input_tokens
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("no-such-model")
