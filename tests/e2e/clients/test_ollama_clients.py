"""Ollama's own libraries on lmx: for Python here, and for JavaScript on Node."""

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.support.clients.client_packages import run_node

SENTENCE = "The quick brown fox jumps over the lazy dog."
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'


@pytest.fixture
def url(scripted_client: OpenAI) -> str:
    return str(scripted_client.base_url).rstrip("/").removesuffix("/v1")


@pytest.fixture
def client(url: str, scripted_client: OpenAI) -> Iterator[ollama.Client]:
    headers = {"Authorization": f"Bearer {scripted_client.api_key}"}
    yield ollama.Client(host=url, headers=headers, timeout=300)


def user(content: Any) -> dict[str, str]:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"role": "user", "content": text}


def test_a_conversation_whole_and_streamed(client: ollama.Client) -> None:
    whole = client.chat("scripted", [user("Hello")])
    assert (whole.message.content, whole.done_reason) == (SENTENCE, "stop")
    assert whole.eval_count == 9 and whole.total_duration and whole.total_duration > 0
    parts = list(client.chat("scripted:latest", [user("Hello")], stream=True))
    assert "".join(part.message.content or "" for part in parts) == SENTENCE
    assert [part.done for part in parts].count(True) == 1 and parts[-1].done
    assert parts[-1].model == "scripted:latest"


def test_a_prompt(client: ollama.Client) -> None:
    assert client.generate("scripted", "Hello").response == SENTENCE
    parts = client.generate("scripted", "Hello", stream=True, options={"num_predict": 4})
    assert SENTENCE.startswith("".join(part.response or "" for part in parts))
    assert client.generate("scripted").done_reason == "load"


def test_a_tool_makes_the_round(client: ollama.Client) -> None:
    def get_weather(city: str) -> str:
        """Get the weather of a city.

        Args:
            city: The city's name.
        """
        return f"It rains in {city}."

    messages: list[Any] = [user({"pieces": [CALL[:20], CALL[20:]]})]
    made = client.chat("scripted", messages, tools=[get_weather])
    assert made.message.tool_calls is not None
    (call,) = made.message.tool_calls
    assert (call.function.name, dict(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    result = {"pieces": [get_weather(**call.function.arguments)]}
    messages += [
        made.message,
        {"role": "tool", "tool_name": "get_weather", "content": json.dumps(result)},
    ]
    assert client.chat("scripted", messages, tools=[get_weather]).message.content == (
        "It rains in Oslo."
    )
    streamed = client.chat("scripted", messages[:1], tools=[get_weather], stream=True)
    calls = [call for part in streamed for call in part.message.tool_calls or ()]
    assert [dict(call.function.arguments) for call in calls] == [{"city": "Oslo"}]


def test_thoughts(client: ollama.Client) -> None:
    script = user({"pieces": ["<think>", "Hm.", "</think>", "Yes."]})
    made = client.chat("scripted", [script], think=True)
    assert (made.message.thinking, made.message.content) == ("Hm.", "Yes.")
    parts = list(client.chat("scripted", [script], think=True, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == "Hm."


def test_a_form(client: ollama.Client) -> None:
    class City(BaseModel):
        city: str

    made = client.chat("good", [user("Where?")], format=City.model_json_schema())
    assert City.model_validate_json(made.message.content or "").city is not None


def test_vectors_lists_and_errors(client: ollama.Client) -> None:
    vectors = client.embed("minilm", ["a", "b"])
    assert [len(vector) for vector in vectors.embeddings] == [384, 384]
    assert list(client.embeddings("minilm", "a").embedding) == pytest.approx(
        list(vectors.embeddings[0]), abs=1e-6
    )
    names = [model.model for model in client.list().models]
    assert {"scripted:latest", "minilm:latest"} <= set(names)
    assert "scripted:latest" in [model.model for model in client.ps().models]
    assert "completion" in (client.show("scripted").capabilities or ())
    assert client.show("minilm:latest").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("none", [user("Hello")])
    assert refused.value.status_code == 404 and "does not exist" in refused.value.error
    with pytest.raises(ollama.ResponseError):
        client.chat("scripted", [user({"step_raise_at": 1})])


def test_the_javascript_library(scripted_client: OpenAI, url: str) -> None:
    call = json.dumps({"pieces": [CALL[:20], CALL[20:]]})
    found = json.loads(run_node("ollama.mjs", url, scripted_client.api_key, call))
    assert found["whole"] == found["streamed"] == found["generated"] == SENTENCE
    assert found["called"] == found["calledStreamed"] == [["get_weather", {"city": "Oslo"}]]
    assert found["dimensions"] == [384, 384]
    assert "scripted:latest" in found["models"] and "scripted:latest" in found["running"]
    assert "completion" in found["capabilities"]
    assert found["refused"]["status"] == 404 and "does not exist" in found["refused"]["error"]
