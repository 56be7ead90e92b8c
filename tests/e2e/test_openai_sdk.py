"""The official OpenAI Python SDK against a real model."""

import threading

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

# The first test also fetches, converts and loads the models.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engine,
    pytest.mark.process,
    pytest.mark.timeout(900),
]

FRANCE: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


def streamed(client: OpenAI, messages: list[ChatCompletionMessageParam], **settings: object) -> str:
    """Return the concatenated deltas of a streamed answer."""
    stream = client.chat.completions.create(
        model="smollm2", messages=messages, stream=True, **settings  # type: ignore[call-overload]
    )  # fmt: skip
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_the_capital_of_france_streamed_and_not(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=FRANCE, temperature=0)
    text = answer.choices[0].message.content
    assert text == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert streamed(client, FRANCE, temperature=0) == text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == 44


def test_streaming_equals_not_streaming_for_emoji_and_other_scripts(client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": "Repeat exactly: 東京は日本の首都です 🎉👩‍👩‍👧 Ünïcödé"}
    ]
    settings = {"temperature": 1.2, "seed": 1, "max_tokens": 12}
    whole = client.chat.completions.create(model="smollm2", messages=messages, **settings)  # type: ignore[call-overload]
    assert streamed(client, messages, **settings) == whole.choices[0].message.content


def test_usage_comes_in_a_chunk_of_its_own(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="small", messages=FRANCE, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert len({chunk.created for chunk in chunks}) == 1
    assert [len(chunk.choices) for chunk in chunks[-2:]] == [1, 0]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (37, 7)


def test_limits_stops_and_seeds(client: OpenAI) -> None:
    cut = client.chat.completions.create(
        model="smollm2", messages=FRANCE, temperature=0, max_tokens=3
    )
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == (
        "The capital of",
        "length",
    )
    stopped = client.chat.completions.create(
        model="smollm2", messages=FRANCE, temperature=0, stop=["ance is"]
    )
    assert stopped.choices[0].message.content == "The capital of Fr"
    assert stopped.choices[0].finish_reason == "stop"

    def drawn(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model="tiny", messages=FRANCE, temperature=1.5, top_p=0.95, seed=seed, max_tokens=12
        )
        return answer.choices[0].message.content

    assert drawn(7) == drawn(7)
    assert len({drawn(seed) for seed in range(4)}) > 1


def test_two_streams_of_one_model_advance_together(client: OpenAI) -> None:
    """Tokens of both arrive in turns: neither waits for the other to end."""
    order: list[str] = []

    def run(name: str) -> None:
        stream = client.chat.completions.create(
            model="smollm2", messages=FRANCE, temperature=1, seed=3, max_tokens=20, stream=True,
            extra_body={"chat_template_kwargs": {}}, stop=["\n\n\n\n"],
        )  # fmt: skip
        # One at a time, as they come: the order between the threads is what matters.
        order.extend(name for chunk in stream if chunk.choices and chunk.choices[0].delta.content)

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    first_end = min(len(order) - 1 - order[::-1].index(name) for name in "ab")
    last_start = max(order.index(name) for name in "ab")
    assert last_start < first_end, order


def test_models_are_listed(client: OpenAI) -> None:
    found = {model.id: model for model in client.models.list()}
    assert set(found) == {"smollm2", "tiny"}
    assert found["smollm2"].model_extra is not None
    assert found["smollm2"].model_extra["state"] == "ready"
    assert found["smollm2"].model_extra["context_length"] == 8192
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_errors_are_the_sdks_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=FRANCE)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model="smollm2", messages=FRANCE, temperature=3)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "word " * 9000}]
        )
    assert long.value.code == "context_length_exceeded"
    assert "8192" in str(long.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/none")
