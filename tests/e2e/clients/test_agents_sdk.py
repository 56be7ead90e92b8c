"""OpenAI's Agents SDK on lmx: its loops with tools run on the Responses API. With `make clients`;
the official SDK's responses are in `make test`."""

import json

import pytest
from openai import OpenAI

from tests.support.clients.client_packages import python_packages, run_python

pytestmark = pytest.mark.clients

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
CUSTOM = '<tool_call>{"name": "sh", "arguments": {"input": "ls -l"}}</tool_call>'
SENTENCE = "The quick brown fox jumps over the lazy dog."


def script(*pieces: str) -> str:
    return json.dumps({"pieces": list(pieces)})


def test_loops_with_tools(scripted_client: OpenAI) -> None:
    url, key = str(scripted_client.base_url), scripted_client.api_key
    directives = (
        script("<think>", "Hm.", "</think>", CALL[:20], CALL[20:]), script(CUSTOM),
        script('{"city": ', '"Oslo"}'),
    )  # fmt: skip
    packages = python_packages("agents.txt")
    output = run_python(packages, "agents_client.py", url, key, "scripted", *directives)
    found = json.loads(output.strip().split("\n")[-1])
    events = found.pop("events")
    assert found.pop("tokens") > 9
    assert found == {
        "whole": "It rains in Oslo.",
        "kinds": [
            "reasoning_item", "tool_call_item", "tool_call_output_item", "message_output_item",
        ],
        "streamed": "It rains in Oslo.",
        "custom": "Done.",
        "again": SENTENCE,
        "kept": "It rains in Oslo.",
        "typed": "Oslo",
        "asked": [["get_weather", "Oslo"]] * 2 + [["sh", "ls -l"], ["get_weather", "Oslo"]],
    }  # fmt: skip
    assert "response.reasoning_summary_text.delta" in events
    assert events.count("response.completed") == 2


def test_openai_s_own_client_over_a_websocket(scripted_client: OpenAI) -> None:
    url, key = str(scripted_client.base_url), scripted_client.api_key
    packages = python_packages("agents.txt")
    output = run_python(packages, "websocket_client.py", url, key, "scripted")
    *turns, failed, alone = json.loads(output.strip().split("\n")[-1])
    for turn in (*turns, alone):
        assert turn["text"] == SENTENCE and turn["types"][-1] == "response.completed"
        assert turn["types"][:2] == ["response.created", "response.in_progress"]
    assert len(turns) == 3 and alone["stored"] == SENTENCE
    assert (failed["types"], failed["code"]) == (["error"], "previous_response_not_found")
