"""The official OpenAI Python SDK against a real model."""

import secrets

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.support.rigs.rig import Rig, wait_until

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


def test_two_streams_of_one_model_advance_together(client: OpenAI, server: Rig) -> None:
    """The second one has its whole answer while the first one continues."""
    first_id, second_id = (f"together-{secrets.token_hex(8)}" for _ in range(2))
    with client.chat.completions.create(
        model="smollm2", messages=FRANCE, temperature=0, max_tokens=4000, stream=True,
        extra_body={"ignore_eos": True}, extra_headers={"X-Request-Id": first_id},
    ) as first:  # fmt: skip
        next(chunk for chunk in first if chunk.choices and chunk.choices[0].delta.content)
        second = client.chat.completions.create(
            model="smollm2", messages=FRANCE, temperature=0,
            extra_headers={"X-Request-Id": second_id},
        )  # fmt: skip
        assert second.choices[0].finish_reason == "stop"
        next(chunk for chunk in first if chunk.choices and chunk.choices[0].delta.content)

    def ends() -> list[tuple[str, str]]:
        return [
            (entry["request_id"], entry["event"])
            for entry in server.log_events("worker-smollm2")
            if entry["event"] in ("stream.finished", "stream.cancelled")
            and entry["request_id"] in (first_id, second_id)
        ]

    wait_until(lambda: len(ends()) == 2, "both have ended")
    assert ends() == [(second_id, "stream.finished"), (first_id, "stream.cancelled")]


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
