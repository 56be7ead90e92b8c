"""Ollama's routes through a real router: their answers, lines, names, errors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import ollama
import pytest
from fake_peers import FakeStream, ready
from pydantic import BaseModel
from router_rig import MODEL, TEXTS, router_rig
from sdk_types import left_out

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.data import Delta, ToolCallPart
from lmx.protocol.states import DeltaKind, FinishReason, MediaKind, ModelKind
from lmx.router.http.api_family import OLLAMA
from lmx.router.operators.ollama import capabilities_of
from lmx.router.schema.answers.errors import OllamaError
from lmx.router.schema.answers.ollama import OllamaChatAnswer, OllamaGenerateAnswer
from lmx.router.schema.requests.ollama.chat import parse_ollama_chat
from lmx.router.schema.requests.ollama.embed import parse_ollama_embed, parse_ollama_embeddings

HI = {"role": "user", "content": "hi"}
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}


OURS = {
    # Ollama itself has these; its Python library does not know them yet.
    "message.tool_calls.id", "message.tool_calls.function.index", "models.name",
}  # fmt: skip
"""The fields of answers that are not in the library's types."""


def known(shape: type[BaseModel], value: Any) -> None:
    """Check a value by a type of Ollama's library, strictly, with no field that is not in OURS."""
    made = shape.model_validate_json(json.dumps(value), strict=True)
    kept = made.model_dump(by_alias=True, exclude_unset=True, mode="json")
    extra = set(left_out(value, kept))
    assert extra <= OURS, extra - OURS


def lines_of(raw: bytes) -> list[dict[str, Any]]:
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.decode().splitlines()]


async def test_an_answer_whole_and_as_lines() -> None:
    async with router_rig() as rig:
        for path, fields, shape, theirs in (
            ("/api/chat", {"messages": [HI]}, OllamaChatAnswer, ollama.ChatResponse),
            ("/api/generate", {"prompt": "hi"}, OllamaGenerateAnswer, ollama.GenerateResponse),
        ):
            body = {"model": MODEL, **fields}
            status, whole = await rig.post_json(path, **body, stream=False)
            async with rig.http.post(f"{rig.url}{path}", json=body) as response:
                assert response.content_type == "application/x-ndjson", "it streams by itself"
                lines = lines_of(await response.read())
            for line in [*lines, whole]:
                shape.model_validate(line)
                known(theirs, line)
                # Without a fraction of the second OllamaKit, and so Enchanted, reads no time.
                assert re.search(r"T\d\d:\d\d:\d\d\.\d+Z$", line["created_at"])
            said = [
                line["message"]["content"] if path == "/api/chat" else line["response"]
                for line in lines
            ]
            assert said == [*TEXTS, ""]
            assert [line["done"] for line in lines] == [False] * len(TEXTS) + [True]
            shown = whole["message"]["content"] if path == "/api/chat" else whole["response"]
            assert (status, shown, whole["done_reason"]) == (200, "".join(TEXTS), "stop")
            assert lines[-1]["eval_count"] == whole["eval_count"] > 0


async def test_a_call_is_one_line_and_thoughts_have_their_own() -> None:
    async def calls(stream: FakeStream) -> None:
        await stream.accept()
        part = ToolCallPart(0, "call_1", "f")
        second = ToolCallPart(1, "call_2", "g")
        await stream.send_deltas(
            Delta(0, "Hm.", 1, kind=DeltaKind.REASONING),
            Delta(0, '{"a"', 1, kind=DeltaKind.TOOL_CALL, call=part),
            Delta(0, ":1}", 1, kind=DeltaKind.TOOL_CALL, call=ToolCallPart(0)),
            Delta(0, "{}", 1, kind=DeltaKind.TOOL_CALL, call=second),
        )
        await stream.finish(reason=FinishReason.TOOL_CALLS, tokens=4)

    body = {"model": MODEL, "messages": [HI]}
    async with router_rig(calls) as rig:
        async with rig.http.post(f"{rig.url}/api/chat", json=body) as response:
            lines = lines_of(await response.read())
        _, whole = await rig.post_json("/api/chat", **body, stream=False)
    for answer in [*lines, whole]:
        known(ollama.ChatResponse, answer)
    assert lines[0]["message"]["thinking"] == whole["message"]["thinking"] == "Hm."
    called = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert called == whole["message"]["tool_calls"]
    assert [call["function"] for call in called] == [
        {"index": 0, "name": "f", "arguments": {"a": 1}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    assert lines[-1]["done_reason"] == "stop"


async def test_options_and_names() -> None:
    options = {"num_predict": 5, "temperature": 0, "stop": ["x", ""], "repeat_penalty": 1.5}
    async with router_rig() as rig:
        for name in (MODEL, f"{MODEL}:latest", "auto:latest"):
            body = {
                "model": name,
                "messages": [HI],
                "options": {**options, "num_ctx": 9},
                "format": {"type": "object"},
                "think": "low",
            }
            async with rig.http.post(f"{rig.url}/api/chat", json=body) as response:
                assert response.headers["X-Lmx-Ignored"] == "options.num_ctx"
                assert lines_of(await response.read())[0]["model"] == name
        sent = rig.worker.streams[-1].request
        assert (sent.max_tokens, sent.stop, sent.sampling.temperature) == (5, ("x",), 0)
        assert sent.sampling.repetition_penalty == 1.5
        assert sent.structure is not None and sent.thinking.effort == "low"


async def test_nothing_to_answer_loads_and_unloads() -> None:
    async with router_rig() as rig:
        for path, keep, reason in (
            ("/api/chat", None, "load"), ("/api/generate", 0, "unload"),
        ):  # fmt: skip
            status, answer = await rig.post_json(path, model=MODEL, keep_alive=keep, stream=False)
            assert (status, answer["done"], answer["done_reason"]) == (200, True, reason)
            assert rig.worker.streams[-1].request.max_tokens == 0
            assert rig.worker.streams[-1].request.keep_alive_s == keep


async def test_errors_are_ollama_s() -> None:
    async with router_rig() as rig:
        for body, status, param in (
            ({"model": MODEL, "messages": 5}, 400, "messages"),
            ({"messages": [HI]}, 400, "model"),
            ({"model": "gpt-9", "messages": [HI]}, 404, "model"),
            ({"model": MODEL, "messages": [HI], "options": {"top_p": 2}}, 400, "options.top_p"),
            (
                {"model": MODEL, "messages": [{**HI, "images": ["eA=="]}]},
                400,
                "messages[0].images[0]",
            ),
        ):
            found = await rig.post_json("/api/chat", **body)
            assert found[0] == status and isinstance(found[1]["error"], str)
            assert param is None or found[1]["param"] == param
    body = OLLAMA.error_body(LmxError(ErrorCode.ENGINE_ERROR, "It failed."))
    assert OllamaError.model_validate_json(json.dumps(body)).error == "It failed."
    line = OLLAMA.error_event(RequestError(ErrorCode.INVALID_VALUE, "no", param="x"))
    assert lines_of(line) == [{"error": "no", "code": "invalid_value", "param": "x"}]


async def test_an_error_in_the_middle_is_a_line() -> None:
    async def fails(stream: FakeStream) -> None:
        await stream.accept()
        await stream.send_deltas(Delta(0, "a", 1))
        await stream.fail(ErrorCode.ENGINE_ERROR, "It broke.")

    body = {"model": MODEL, "messages": [HI]}
    async with (
        router_rig(fails) as rig,
        rig.http.post(f"{rig.url}/api/chat", json=body) as response,
    ):
        lines = lines_of(await response.read())
    known(ollama.ChatResponse, lines[0])
    assert lines[0]["message"]["content"] == "a"
    # Its library raises for any line with this field, whatever else the line has.
    assert lines[-1] == {"error": "It broke.", "code": "engine_error"}


async def test_the_lists() -> None:
    async with router_rig() as rig:
        async with rig.http.get(f"{rig.url}/api/tags") as response:
            tags = await response.json()
        known(ollama.ListResponse, tags)
        listed = tags["models"]
        assert [one["name"] for one in listed] == [f"{MODEL}:latest"]
        assert len(listed[0]["digest"]) == 64
        async with rig.http.get(f"{rig.url}/api/ps") as response:
            loaded = await response.json()
        known(ollama.ProcessResponse, loaded)
        assert [one["model"] for one in loaded["models"]] == [f"{MODEL}:latest"]
        for body in ({"model": listed[0]["name"]}, {"name": MODEL}):
            status, shown = await rig.post_json("/api/show", **body)
            assert status == 200 and shown["capabilities"][0] == "completion"
            known(ollama.ShowResponse, shown)
            # OllamaKit reads an answer only with all of these.
            texts = [shown[name] for name in ("license", "template", "modelfile", "parameters")]
            assert all(isinstance(text, str) for text in texts)
        assert (await rig.post_json("/api/show"))[0] == 400
        async with rig.http.get(f"{rig.url}/api/version") as response:
            assert (await response.json())["version"]


def test_results_belong_to_their_calls() -> None:
    messages = [
        HI,
        {"role": "assistant", "content": "", "tool_calls": [CALL, {"function": {"name": "g"}}]},
        {"role": "tool", "tool_name": "g", "content": "2"},
        {"role": "tool", "content": "1"},
    ]
    sent = parse_ollama_chat({"model": "m", "messages": messages})[1].messages
    assert sent is not None
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert [sent[2]["tool_call_id"], sent[3]["tool_call_id"]] == [ids[1], ids[0]]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert [sent[2]["name"], sent[3]["name"]] == ["g", "f"]


def test_what_a_model_can_is_told_in_ollama_s_words() -> None:
    seeing = ready(
        "m", "i", kind=ModelKind.CHAT, capabilities=("tools", "reasoning", "structured_outputs"),
        media=(MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO),
    )  # fmt: skip
    assert capabilities_of(seeing) == ["completion", "tools", "thinking", "vision", "audio"]
    assert capabilities_of(replace(seeing, kind=ModelKind.EMBEDDING)) == ["embedding"]
    assert capabilities_of(replace(seeing, kind=ModelKind.RERANK)) == []
    # Zed and Copilot offer tools to no model that does not name them: nor to one that is cold.
    assert capabilities_of(replace(seeing, capabilities=(), media=None)) == ["completion", "tools"]
    assert capabilities_of(replace(seeing, capabilities=("structured_outputs",), media=())) == [
        "completion"
    ]


async def test_a_model_that_is_there_needs_no_pulling() -> None:
    async with router_rig() as rig:
        for name in (MODEL, f"{MODEL}:latest"):
            done = await rig.post_json("/api/pull", model=name, stream=False)
            assert done == (200, {"status": "success"})
            async with rig.http.post(f"{rig.url}/api/pull", json={"name": name}) as response:
                assert response.content_type == "application/x-ndjson"
                assert lines_of(await response.read()) == [{"status": "success"}]
        status, refused = await rig.post_json("/api/pull", model="llama3.2")
        assert (status, refused["code"]) == (404, "model_not_found")
        assert "lmx pull" in refused["error"] and MODEL in refused["error"]
        assert (await rig.post_json("/api/pull"))[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "instead"),
    [
        ("POST", "/api/create", "lmx.yaml"),
        ("POST", "/api/copy", "aliases"),
        ("DELETE", "/api/delete", "lmx rm"),
        ("POST", "/api/push", "hf upload"),
    ],
)
async def test_what_operators_do_is_said(method: str, path: str, instead: str) -> None:
    async with router_rig() as rig:
        body = {"model": MODEL, "source": MODEL, "destination": "b"}
        async with rig.http.request(method, f"{rig.url}{path}", json=body) as response:
            assert response.status == 400
            assert instead in (await response.json())["error"]


def test_a_text_that_is_too_long_is_cut_off_unless_that_is_refused() -> None:
    assert parse_ollama_embed({"model": "m", "input": "a"})[1].truncate
    assert parse_ollama_embeddings({"model": "m", "prompt": "a"})[1].truncate
    assert not parse_ollama_embed({"model": "m", "input": "a", "truncate": False})[1].truncate
