"""The official OpenAI Python SDK against a real model."""

import secrets

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.support.rigs.rig import Rig, wait_until

pytestmark = pytest.mark.engine

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
