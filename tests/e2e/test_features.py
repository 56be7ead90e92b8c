"""What a request can ask of a model, through the official SDK: streamed equals whole.

What does not depend on the words of an answer is asked of a tiny model with random weights, each
byte of which is a token.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

pytestmark = pytest.mark.engine

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Oslo", "Bergen"]},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}


@dataclass
class Joined:
    """One choice, put together from its chunks."""

    content: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish: str | None = None
    logprobs: list[Any] = field(default_factory=list)


def whole(client: OpenAI, **settings: Any) -> Any:
    return client.chat.completions.create(**{"model": "smollm2", "messages": FRANCE} | settings)


def streamed(client: OpenAI, **settings: Any) -> dict[int, Joined]:
    joined: dict[int, Joined] = {}
    chunks: Iterable[Any] = whole(client, stream=True, **settings)
    for chunk in chunks:
        for choice in chunk.choices:
            into = joined.setdefault(choice.index, Joined())
            into.content += choice.delta.content or ""
            into.finish = choice.finish_reason or into.finish
            into.logprobs += choice.logprobs.content if choice.logprobs else []
            for part in choice.delta.tool_calls or []:
                call = into.calls.setdefault(part.index, {"name": "", "arguments": ""})
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    return joined


def test_several_answers_are_different_and_reproducible(client: OpenAI) -> None:
    settings: dict[str, Any] = {
        "model": "tiny", "n": 3, "temperature": 1.3, "seed": 11, "max_tokens": 8,
    }  # fmt: skip
    answer = whole(client, **settings)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    again = streamed(client, **settings)
    assert [again[index].content for index in range(3)] == texts
    alone = whole(client, **{**settings, "n": 1})
    assert alone.choices[0].message.content == texts[0]
    assert answer.usage.completion_tokens <= 24
    marks = 3  # A token each: of the user, of the message's end, of the assistant.
    assert answer.usage.prompt_tokens == len(FRANCE[0]["content"]) + marks


def test_logprobs_streamed_and_not(client: OpenAI) -> None:
    settings = {"temperature": 0, "logprobs": True, "top_logprobs": 3, "max_tokens": 8}
    choice = whole(client, **settings).choices[0]
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token, "greedy takes the likeliest"
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-3)
    again = streamed(client, **settings)[0].logprobs
    assert [entry.token for entry in again] == [entry.token for entry in entries]


class Person(BaseModel):
    initial: Literal["A", "B", "C"]
    age: int = Field(ge=0, le=150)
    married: bool


def test_parse_gives_a_model_whatever_the_temperature(client: OpenAI) -> None:
    ask: Any = [{"role": "user", "content": "Describe a person as JSON."}]
    parsed = client.chat.completions.parse(
        model="tiny", messages=ask, response_format=Person, temperature=1.5, seed=1,
        max_tokens=200,
    )  # fmt: skip
    assert isinstance(parsed.choices[0].message.parsed, Person)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"choice": ["👩‍👩‍👧 日本語 Ünï", "🇫🇷 français 🎉"]}, None),
        ({"regex": r"(Paris|Lyon), [0-9]{2}"}, None),
        ({"grammar": 'start: "yes" | "no"'}, ("yes", "no")),
    ],
)
def test_the_form_of_an_answer_streamed_and_not(
    client: OpenAI, form: dict[str, Any], expected: tuple[str, ...] | None
) -> None:
    settings: dict[str, Any] = {
        "model": "tiny", "temperature": 1.5, "seed": 5, "extra_body": {"structured_outputs": form},
    }  # fmt: skip
    text = whole(client, **settings).choices[0].message.content
    if "choice" in form:
        assert text in form["choice"]
    elif "regex" in form:
        assert text.startswith(("Paris, ", "Lyon, "))
        assert text[-2:].isdigit()
    else:
        assert text in (expected or ())
    assert streamed(client, **settings)[0].content == text


def test_a_json_object_is_one(client: OpenAI) -> None:
    settings: dict[str, Any] = {
        "model": "tiny", "response_format": {"type": "json_object"}, "temperature": 0.7, "seed": 4,
        "max_tokens": 200,
    }  # fmt: skip
    choice = whole(client, **settings).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert streamed(client, **settings)[0].content == choice.message.content


# Together with its length, more than there is time for while an answer is written.
MANY_WORDS = {
    "type": "object",
    "properties": {
        "words": {
            "type": "string",
            "maxLength": 5000,
            "pattern": "^(?:\\S+\\s+){0,99}\\S+$",
        }
    },
}


@pytest.mark.parametrize(
    ("param", "settings"),
    [
        (
            "response_format.json_schema.schema",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
                }
            },
        ),
        (
            "response_format.json_schema.schema.properties.words",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": MANY_WORDS},
                }
            },
        ),
        (
            "tools[0].function.parameters.properties.words",
            {
                "tools": [
                    {"type": "function", "function": {"name": "x", "parameters": MANY_WORDS}}
                ],
                "tool_choice": "required",
            },
        ),
        # The tokens of this model have no way to write it.
        (
            "structured_outputs.choice[1]",
            {"extra_body": {"structured_outputs": {"choice": ["a", "a\u0004b"]}}},
        ),
        ("structured_outputs.regex", {"extra_body": {"structured_outputs": {"regex": "(a"}}}),
        ("structured_outputs.grammar", {"extra_body": {"structured_outputs": {"grammar": "%%"}}}),
        ("logit_bias", {"logit_bias": {"9999999": 1}}),
        ("max_tokens", {"max_tokens": -2}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_met_is_refused_before_anything_runs(
    client: OpenAI, param: str, settings: dict[str, Any], stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        whole(client, stream=stream, **settings)
    assert refused.value.param is not None
    assert refused.value.param.startswith(param)


@pytest.mark.parametrize(
    ("model", "choice"),
    [
        ("smollm2", "required"),
        ("tiny", {"type": "function", "function": {"name": "get_weather"}}),
    ],
)
def test_tools_are_called_when_they_must_be(client: OpenAI, model: str, choice: Any) -> None:
    ask = [{"role": "user", "content": "How is the weather in Oslo?"}]
    some = {"tools": [WEATHER], "parallel_tool_calls": False}
    # A function that is named is called once.
    settings = {
        "model": model,
        "messages": ask,
        **(some if choice == "required" else {"tools": [WEATHER, CLOCK]}),
        "tool_choice": choice,
        "temperature": 1.0,
        "seed": 3,
        "max_tokens": 60 if model == "smollm2" else 400,
    }
    answer = whole(client, **settings).choices[0]
    reason = "tool_calls"
    assert answer.finish_reason == reason
    # Its template knows no tools; they are enforced all the same.
    found: Any = client.models.retrieve(model)
    assert found.capabilities == ["tools", "structured_outputs"]
    assert not answer.message.content
    (call,) = answer.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather"
    assert call.id.startswith("call_")
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    again = streamed(client, **settings)[0]
    assert again.calls == {0: {"name": "get_weather", "arguments": call.function.arguments}}
    assert (again.finish, again.content) == (reason, "")
    # What a call that is cut off is to be is known before it says so.
    cut = settings | {"max_tokens": 6}
    begun = whole(client, **cut).choices[0].message
    assert not begun.content and begun.tool_calls[0].function.name == "get_weather"
    calls = {0: {"name": "get_weather", "arguments": ""}}
    assert streamed(client, **cut)[0] == Joined(calls=calls, finish="length")


def test_tool_results_in_the_history(client: OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "unit": "celsius"}'},
    }
    history = [
        {"role": "user", "content": "How is the weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees, rain"},
    ]
    settings: dict[str, Any] = {
        "model": "tiny", "messages": history, "tools": [WEATHER], "tool_choice": "none",
        "max_tokens": 16,
    }  # fmt: skip
    answer = whole(client, temperature=0, **settings).choices[0]
    assert answer.message.content
    assert not answer.message.tool_calls


def test_biases_penalties_and_limits(client: OpenAI) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 10}
    plain = whole(client, **greedy).choices[0].message.content
    ids = client.post("/../tokenize", body={"model": "smollm2", "prompt": " Paris"}, cast_to=object)
    token = ids["tokens"][-1]  # type: ignore[index]
    banned = whole(client, logit_bias={str(token): -100}, **greedy).choices[0].message.content
    assert "Paris" in plain
    assert "Paris" not in banned
    forced = whole(client, logit_bias={str(token): 100}, **{**greedy, "max_tokens": 3})
    assert forced.choices[0].message.content == " Paris Paris Paris"
    endless = whole(client, extra_body={"ignore_eos": True}, **greedy)
    assert endless.choices[0].finish_reason == "length"
    assert endless.usage.completion_tokens == 10
    longer = whole(client, extra_body={"min_tokens": 9}, **greedy)
    assert longer.usage.completion_tokens >= 9
    penalized = whole(client, frequency_penalty=2, logit_bias={str(token): 3}, **greedy)
    assert penalized.choices[0].message.content.count("Paris") <= 2


def test_the_ends_of_prompts_and_the_tokens_of_answers_are_the_clients(client: OpenAI) -> None:
    """vLLM's fields: a message is gone on with, a prompt is cut, tokens and words are banned."""
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    begun = [*FRANCE, {"role": "assistant", "content": "The capital of France is"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    answer = whole(client, messages=begun, extra_body=more, **greedy)
    assert answer.choices[0].message.content.startswith(" Paris")
    stream = whole(client, messages=begun, stream=True, extra_body=more, **greedy)
    texts = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert "".join(texts) == answer.choices[0].message.content
    other = whole(client, messages=begun, extra_body=more | {"bad_words": ["Paris"]}, **greedy)
    assert "Paris" not in other.choices[0].message.content
    ids = {"allowed_token_ids": [504, 3575], "return_token_ids": True}
    banned = whole(client, messages=begun, extra_body=more | ids, **greedy)
    assert set(banned.choices[0].token_ids) <= {504, 3575}
    assert banned.usage.completion_tokens == 8
    cut = client.completions.create(
        model="smollm2", prompt=[9, 9, 9, 504, 3575, 282], echo=True, logprobs=0, max_tokens=0,
        extra_body={"truncate_prompt_tokens": 3},
    )  # fmt: skip
    same = client.completions.create(
        model="smollm2", prompt=[504, 3575, 282], echo=True, logprobs=0, max_tokens=0
    )
    assert cut.choices[0] == same.choices[0]
    assert cut.usage is not None
    assert cut.usage.prompt_tokens == 3
    with pytest.raises(openai.BadRequestError) as caught:
        whole(client, extra_body={"allowed_token_ids": [10**6]}, **greedy)
    assert caught.value.param == "allowed_token_ids"


def test_texts_are_scored(client: OpenAI) -> None:
    """As evaluation harnesses do it: whole texts as tokens, several at once, with `max_tokens` 0,
    or 1 and the last entry taken away, whatever token that one is."""
    texts = [[504, 3575, 282, 4649, 314], [1, 2, 3, 4, 5, 6, 7]]
    settings: dict[str, Any] = {
        "model": "smollm2", "prompt": texts, "temperature": 0, "logprobs": 1, "seed": 1234,
        "echo": True,
    }  # fmt: skip
    scored = client.completions.create(**settings, max_tokens=0)
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0
    with client.completions.create(**settings, max_tokens=0, stream=True) as stream:
        chunks = [choice for chunk in stream for choice in chunk.choices]
    for bias in ({}, {"2": 100}):  # SmolLM2's end token.
        longer = client.completions.create(**settings, max_tokens=1, logit_bias=bias)
        assert longer.choices[1].finish_reason == ("stop" if bias else "length")
        for index, (text, one, other) in enumerate(
            zip(texts, scored.choices, longer.choices, strict=True)
        ):
            assert one.finish_reason == "length"
            assert one.logprobs is not None
            assert other.logprobs is not None
            wanted = one.logprobs.token_logprobs
            assert wanted is not None
            assert other.logprobs.token_logprobs is not None
            assert len(wanted) == len(text)
            assert wanted[0] is None
            assert other.logprobs.token_logprobs[1:-1] == pytest.approx(wanted[1:], abs=1e-3)
            streamed = [choice for choice in chunks if choice.index == index]
            assert "".join(choice.text for choice in streamed) == one.text
            assert other.text.startswith(one.text)


def test_a_prompt_beyond_the_context_names_both_numbers(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        whole(client, messages=[{"role": "user", "content": "word " * 9000}])
    assert refused.value.code == "context_length_exceeded"
    assert "8192" in refused.value.message
