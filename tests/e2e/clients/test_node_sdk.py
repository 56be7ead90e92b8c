"""The official SDKs of OpenAI and Anthropic for Node; Node itself comes out of a Python wheel."""

import json
from pathlib import Path

from openai import OpenAI

from tests.support.clients.client_packages import run_node
from tests.support.rigs.rig import Rig, scripted, serving_too

SENTENCE = "The quick brown fox jumps over the lazy dog."
RAIN = "It rains in Oslo."
CALL = '<tool_call>{"name": "Weather", "arguments": {"city": "Oslo"}}</tool_call>'
SCRIPTS = {
    "calls": json.dumps({"pieces": ["<tool_call>", CALL[11:30], CALL[30:50], CALL[50:]]}),
    "answers": json.dumps({"pieces": ['{"city": ', '"Oslo"}']}),
    # The tool's result is the last message then, and scripts the answer to it.
    "rain": json.dumps({"pieces": [RAIN]}),
}


def test_the_node_sdk(scripted_client: OpenAI, scripted_server: Rig, tmp_path: Path) -> None:
    url, key = str(scripted_client.base_url), scripted_client.api_key
    voice = scripted(
        "voice", engine="tests.support.fakes.scripted_voice:create", kind="speech", preload=False
    )
    with serving_too(scripted_server, voice):
        scripts = {**SCRIPTS, "refused": str(tmp_path / "refused")}
        output = run_node("sdk.mjs", url, key, json.dumps(scripts))
    found = json.loads(output)
    for name in ("whole", "streamed", "helped", "final", "textStreamed", "retried", "loaded"):
        assert found[name] == SENTENCE, name
    assert found["requestId"] is True
    assert found["usage"]["completion_tokens"] == 9
    assert found["parsed"] == {"city": "Oslo"}
    round_trip = {"said": RAIN, "asked": [{"city": "Oslo"}]}
    assert found["tools"] == found["toolsStreamed"] == round_trip
    both = ["tool_calls", "Paris", "Oslo"]
    assert found["choices"] == [both, both, ["tool_calls", "Paris"], both, ["stop"]]
    assert found["texts"] == [0, 1]
    assert found["dimensions"] == [384, 384]
    assert set(found["models"]) >= {"scripted", "narrow", "minilm"}
    assert found["model"] == "scripted"
    assert [(error["status"], error["code"]) for error in found["errors"]] == [
        (401, "invalid_authentication"),
        (403, "permission_denied"),
        (400, "invalid_value"),
        (404, "model_not_found"),
        (500, "engine_error"),
        (429, "queue_full"),
        (503, "model_load_failed"),
        (400, "invalid_value"),
    ]
    assert [found["errors"][place]["param"] for place in (2, 7)] == ["temperature", "input"]
    assert found["sound"] == ["audio/wav", "WAVE", 44 + 2 * 48_000]
    assert found["soundStreamed"] == 48_000
    assert found["soundEvents"] == ["speech.audio.delta", "speech.audio.done", 100]
    assert found["busy"] == "stop"
    assert found["timedOut"] is True


def test_the_node_sdk_on_responses(scripted_client: OpenAI) -> None:
    url, key = str(scripted_client.base_url), scripted_client.api_key
    found = json.loads(run_node("responses.mjs", url, key, json.dumps(SCRIPTS)))
    assert found["whole"] == found["streamed"] == SENTENCE
    assert found["last"] == ["response.completed", SENTENCE]
    name, whole, streamed = found["call"]
    assert (name, json.loads(whole), whole) == ("Weather", {"city": "Oslo"}, streamed)
    assert found["after"] == found["referring"] == RAIN
    assert found["parsed"] == {"city": "Oslo"}
    assert found["followed"] == [SENTENCE, True]
    assert found["items"] == ["message", "function_call", "function_call_output"]
    assert found["errors"] == [[404, "not_found_error"], [400, "previous_response_not_found"]]


def test_the_node_sdks_on_files_batches_and_conversations(scripted_client: OpenAI) -> None:
    url, key = str(scripted_client.base_url), scripted_client.api_key
    slow = json.dumps({"tokens": 2000, "step_s": 0.05})
    found = json.loads(run_node("files.mjs", url, key, json.dumps({"slow": slow})))
    assert found["file"] == ["file", "note.txt", 8, "user_data", 3600]
    assert found["content"] == "A note.\n"
    assert (found["same"], found["processed"], found["listed"]) == (True, "processed", [True] * 3)
    for name in ("named", "namedInChat", "namedInMessages"):
        assert found[name] == SENTENCE, name
    counts = {"total": 2, "completed": 2, "failed": 0}
    assert found["batch"] == ["completed", counts, {"from": "node"}, None]
    assert found["output"] == [["one", SENTENCE], ["two", SENTENCE]]
    errors = [[1, "invalid_json_line"], [3, "duplicate_custom_id"]]
    assert found["wrong"] == ["failed", errors]
    assert found["cancelled"] == ["cancelling", "cancelled"]
    assert found["paged"] is True
    assert found["messageBatch"] == [1, "one", SENTENCE, True, "message_batch_deleted"]
    assert found["conversation"] == ["conversation", SENTENCE, True]
    assert found["items"] == [
        ["message", "user", "input_text"], ["message", "user", "input_file"],
        ["message", "assistant", "output_text"], ["message", "user", "input_text"],
    ]  # fmt: skip
    assert found["item"] == "And now?"
    assert found["metadata"] == [{"topic": "sun"}] * 2
    assert found["deleted"] == [True, True]
    assert found["errors"] == [
        [True, 404, "id"], [True, 404, "conversation.content[0].file_id"], [True, 404, "id"],
        [True, 404, "input_file_id"], [False, 409, None],
    ]  # fmt: skip


def test_anthropic_s_sdk(scripted_client: OpenAI) -> None:
    url = str(scripted_client.base_url).rstrip("/").removesuffix("/v1")
    rain = json.dumps({"pieces": [RAIN]})
    fails = json.dumps({"tokens": 20, "fail_at": 5, "step_s": 0.05})
    scripts = {**SCRIPTS, "rain": rain, "fails": fails}
    output = run_node("anthropic.mjs", url, scripted_client.api_key, json.dumps(scripts))
    found = json.loads(output)
    assert found["whole"] == found["streamed"] == found["retried"] == SENTENCE
    assert found["requestId"] is True and found["same"] is True
    assert found["stop"] == ["end_turn", True]
    assert found["events"] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert found["tools"] == {"asked": [{"city": "Oslo"}], "said": RAIN}
    assert found["parsed"] == {"city": "Oslo"}
    assert found["counted"] is True
    assert "scripted" in found["models"]
    assert found["errors"] == [
        [401, "authentication_error"],
        [400, "invalid_request_error"],
        [404, "not_found_error"],
    ]
    assert found["broken"][1] == "api_error"


AI_SDK = {"anthropic", "chat", "compatible", "ollama", "responses"}
"""The providers of Vercel's AI SDK for lmx's four API families, of which chats have two."""


def test_vercel_s_sdk_takes_every_answer(scripted_client: OpenAI) -> None:
    """Its providers refuse what does not fit their schemas: a field that these call optional is
    left out, and not null."""
    url = str(scripted_client.base_url).rstrip("/").removesuffix("/v1")
    thinks = json.dumps({"pieces": ["<think>", "Hm.", "</think>", "Yes."]})
    texts = json.dumps({"calls": SCRIPTS["calls"], "thinks": thinks})
    found = json.loads(run_node("ai_sdk.mjs", url, scripted_client.api_key, texts))
    assert set(found) == {*AI_SDK, "completions"}
    for provider, ways in found.items():
        assert len(ways) == (10 if provider in AI_SDK else 4)
        for way, got in ways.items():
            where, what = (provider, way, got), way.split()[0]
            assert isinstance(got, dict) and got["counted"], where
            assert got["ended"] == {"cut": "length", "tools": "tool-calls"}.get(what, "stop"), where
            match what:
                case "text":
                    assert got["text"] == SENTENCE, where
                case "cut":
                    assert got["text"].strip() == "The quick brown", where
                case "thinks":
                    # OpenAI's own provider shows summaries alone, and of chats no thoughts.
                    thoughts = "" if provider in ("chat", "responses") else "Hm."
                    assert (got["text"], got["thoughts"]) == ("Yes.", thoughts), where
                case "tools":
                    assert got["results"] == [RAIN], where
                case "form":
                    assert json.loads(got["text"])["n"] == 5, where
