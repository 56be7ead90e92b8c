"""Other clients that people use: instructor in short, LangChain by its own tests. They run with
`make clients`; the official SDKs, which all of them use, in `make test`."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.clients.client_packages import run_python

pytestmark = pytest.mark.clients

SENTENCE = "The quick brown fox jumps over the lazy dog."
CALL = '<tool_call>{"name": "Weather", "arguments": {"city": "Oslo"}}</tool_call>'
CALLS = json.dumps({"pieces": ["<tool_call>", CALL[11:30], CALL[30:]]})
ANSWERS = json.dumps({"pieces": ['{"city": ', '"Oslo"}']})


def run(scripted_client: OpenAI, packages: Path, script: str, *directives: str) -> Any:
    url, key = str(scripted_client.base_url), scripted_client.api_key
    output = run_python(packages, script, url, key, "scripted", *directives)
    return json.loads(output.strip().split("\n")[-1])


def test_instructor(scripted_client: OpenAI, client: OpenAI, packages: Path) -> None:
    real = [str(client.base_url), "smollm2"]
    found = run(scripted_client, packages, "instructor_client.py", "good", ANSWERS, *real)
    assert found.pop("parallel") == ["Paris", "Oslo"]
    assert found.pop("real") is True
    assert set(found.values()) == {"Oslo"}
    assert len(found) == 4


# What is skipped needs what these models do not have (images, audio, PDF files, the content parts
# of another API) or a recording of a server.
NOT_FOR_TEXT = {
    "test_pdf_inputs",
    "test_audio_inputs",
    "test_image_inputs",
    "test_image_tool_message",
    "test_pdf_tool_message",
    "test_anthropic_inputs",
    "test_stream_time",
}


def test_the_standard_tests_of_langchain(scripted_client: OpenAI, packages: Path) -> None:
    url, key = str(scripted_client.base_url), scripted_client.api_key
    output = run_python(packages, "langchain_standard.py", url, key, "good", "scripted")
    found = json.loads(output.strip().split("\n")[-1])
    ended: dict[str, str] = found["ended"]
    assert {name for name, how in ended.items() if how == "failed"} == set(), found["reasons"]
    assert {name for name, how in ended.items() if how == "skipped"} == NOT_FOR_TEXT
    assert len(ended) > 45


def test_clients_of_the_messages_api(scripted_client: OpenAI, packages: Path) -> None:
    rain = json.dumps({"pieces": ["It rains in Oslo."]})
    found = run(scripted_client, packages, "messages_clients.py", CALLS, rain)
    called = [["Weather", {"city": "Oslo"}]]
    assert found["langchain"] == {
        "whole": SENTENCE, "streamed": SENTENCE, "calls": called, "tokens": 9,
    }  # fmt: skip
    assert found["pydantic"] == {
        "whole": SENTENCE, "streamed": SENTENCE, "looped": "It rains in Oslo.", "asked": ["Oslo"],
    }  # fmt: skip
