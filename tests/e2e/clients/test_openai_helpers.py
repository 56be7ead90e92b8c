"""The official SDK's helpers: streams with events, tools, parsed answers, raw responses, async."""

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

SENTENCE = "The quick brown fox jumps over the lazy dog."
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: str


CALL = '<tool_call>{"name": "Weather", "arguments": {"city": "Oslo"}}</tool_call>'
CALLS = {"pieces": ["<tool_call>", CALL[11:30], CALL[30:50], CALL[50:]]}
ANSWERS = {"pieces": ['{"city": ', '"Os', 'lo"}']}


def says(directive: Any) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": json.dumps(directive)}]


def test_the_stream_helper_gathers_tool_calls(scripted_client: OpenAI) -> None:
    parts, done = [], []
    with scripted_client.chat.completions.stream(
        model="scripted", messages=says(CALLS), tools=[openai.pydantic_function_tool(Weather)]
    ) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                parts.append(event.arguments_delta)
            elif event.type == "tool_calls.function.arguments.done":
                done.append((event.name, event.parsed_arguments))
        final = stream.get_final_completion()
    assert done == [("Weather", Weather(city="Oslo"))]
    assert json.loads("".join(parts)) == {"city": "Oslo"}
    assert final.choices[0].finish_reason == "tool_calls"


def test_parse_reads_answers_and_calls(scripted_client: OpenAI) -> None:
    answer = scripted_client.chat.completions.parse(
        model="scripted", messages=says(ANSWERS), response_format=Weather
    )
    assert answer.choices[0].message.parsed == Weather(city="Oslo")
    calling = scripted_client.chat.completions.parse(
        model="scripted", messages=says(CALLS), tools=[openai.pydantic_function_tool(Weather)]
    )
    assert calling.choices[0].message.tool_calls is not None
    assert calling.choices[0].message.tool_calls[0].function.parsed_arguments == Weather(
        city="Oslo"
    )
    with pytest.raises(openai.LengthFinishReasonError):
        scripted_client.chat.completions.parse(
            model="scripted", messages=says(ANSWERS), response_format=Weather, max_tokens=1
        )


def test_raw_responses_and_request_ids(scripted_client: OpenAI) -> None:
    raw = scripted_client.chat.completions.with_raw_response.create(
        model="scripted", messages=HELLO, extra_headers={"X-Request-Id": "my-own-id"}
    )
    assert raw.headers["x-request-id"] == raw.request_id == "my-own-id"
    assert raw.retries_taken == 0
    answer = scripted_client.chat.completions.create(model="scripted", messages=HELLO)
    assert answer._request_id
    with scripted_client.chat.completions.with_streaming_response.create(
        model="scripted", messages=HELLO, stream=True
    ) as streaming:
        assert streaming.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in streaming.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


async def test_the_async_client(scripted_client: OpenAI) -> None:
    url, key = scripted_client.base_url, scripted_client.api_key
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        answer = await client.chat.completions.create(model="scripted", messages=HELLO)
        assert answer.choices[0].message.content == SENTENCE
        stream = await client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(parts) == SENTENCE
        async with client.chat.completions.stream(model="scripted", messages=HELLO) as helped:
            final = await helped.get_final_completion()
        assert final.choices[0].message.content == SENTENCE
        assert {model.id async for model in client.models.list()} >= {"scripted", "narrow"}
        vectors = await client.embeddings.create(model="minilm", input=["a", "b"])
        assert [item.index for item in vectors.data] == [0, 1]
        text = await client.completions.create(model="scripted", prompt=["a", "b"], max_tokens=2)
        assert [choice.index for choice in text.choices] == [0, 1]
