"""Answers and chunks are valid by the OpenAI SDK's own types, strictly."""

import json
import urllib.request
from typing import Any

import pytest
from openai import OpenAI
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from tests.support.clients.sdk_types import checked

CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CHATS: dict[str, dict[str, Any]] = {
    "plain": {"content": "Hello"},
    "logprobs": {"content": "Hello", "logprobs": True, "top_logprobs": 2},
    "several": {"content": "Hello", "n": 2},
    "cut": {"content": "Hello", "max_tokens": 2},
    "tools": {"content": {"pieces": [CALL[:20], CALL[20:]]}, "tools": TOOLS},
    "reasoning": {"content": {"pieces": ["<think>", "Hm.", "</think>", "Yes."]}},
}


@pytest.fixture
def wire(scripted_client: OpenAI) -> Any:
    def send(path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            f"{scripted_client.base_url}{path[1:]}",
            None if body is None else json.dumps(body).encode(),
            {
                "Content-Type": "application/json",
                "Authorization": f"Bearer {scripted_client.api_key}",
            },
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            content: bytes = response.read()
        return content

    return send


def chat(name: str, **more: Any) -> dict[str, Any]:
    settings = dict(CHATS[name])
    content = settings.pop("content")
    text = content if isinstance(content, str) else json.dumps(content)
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": text}],
        **settings,
        **more,
    }


def data(raw: bytes) -> list[str]:
    lines = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return lines


@pytest.mark.parametrize("name", CHATS)
def test_chat_whole_and_streamed(wire: Any, name: str) -> None:
    whole = checked(ChatCompletion, wire("/chat/completions", chat(name)))
    assert whole.usage is not None
    usage = {"include_usage": True}
    body = chat(name, stream=True, stream_options=usage)
    chunks = [checked(ChatCompletionChunk, line) for line in data(wire("/chat/completions", body))]
    assert chunks[-1].usage == whole.usage
    text = "".join(c.choices[0].delta.content or "" for c in chunks if len(c.choices) == 1)
    if "n" not in body:
        assert text == (whole.choices[0].message.content or "")


def test_completions_whole_and_streamed(wire: Any) -> None:
    body = {"model": "scripted", "prompt": ["One", "Two"], "logprobs": 1, "max_tokens": 4}
    whole = checked(Completion, wire("/completions", body))
    assert [choice.index for choice in whole.choices] == [0, 1]
    for line in data(wire("/completions", body | {"stream": True})):
        chunk = json.loads(line)
        for choice in chunk["choices"]:
            # OpenAI sends null while a text goes on, though the SDK's type has no null.
            if choice["finish_reason"] is None:
                choice["finish_reason"] = "stop"
        checked(Completion, json.dumps(chunk))


def test_embeddings_and_models(wire: Any) -> None:
    body = {"model": "minilm", "input": ["a"], "encoding_format": "float"}
    checked(CreateEmbeddingResponse, wire("/embeddings", body))
    listed = json.loads(wire("/models"))
    # `models` is for Codex, which reads no `data`.
    assert set(listed) == {"object", "data", "models"}
    for item in [*listed["data"], json.loads(wire("/models/scripted"))]:
        checked(Model, json.dumps(item))


def test_the_check_itself_is_strict(wire: Any) -> None:
    answer = json.loads(wire("/chat/completions", chat("plain")))
    for wrong in (
        {key: value for key, value in answer.items() if key != "created"},
        answer | {"created": str(answer["created"])},
        answer | {"object": "chat.completion.chunk"},
    ):
        with pytest.raises(ValidationError):
            checked(ChatCompletion, json.dumps(wrong))
    with pytest.raises(AssertionError):
        checked(ChatCompletion, json.dumps(answer | {"surprise": 1}))
