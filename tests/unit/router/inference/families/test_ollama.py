"""Ollama's routes through a real router: their answers, lines, names, errors."""

import json
import re
import time
from dataclasses import replace
from typing import Any

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.data import Delta, TokenLogprob, ToolCallPart, TopLogprob
from lmx.protocol.messages.status import GetStatus, Status
from lmx.protocol.states import DeltaKind, FinishReason, MediaKind, ModelKind
from lmx.router.http.api_family import OLLAMA, OllamaError
from lmx.router.operators.ollama import capabilities_of
from lmx.router.rendering.ollama import OllamaChatAnswer, OllamaGenerateAnswer
from lmx.router.rendering.ollama_context import context_of, turns_of
from lmx.router.schema.requests.ollama.chat import parse_ollama_chat
from lmx.router.schema.requests.ollama.embed import parse_ollama_embed, parse_ollama_embeddings
from lmx.router.schema.validation import MAX_COUNT
from tests.support.clients.answer_check import check_shape
from tests.support.clients.sdk_types import left_out
from tests.support.fakes.admin_lines import reported_status, status_line
from tests.support.fakes.fake_peers import FakeStream, cold, ends, plays, ready
from tests.support.rigs.router_rig import INSTANCE, MODEL, TEXTS, Rig, router_rig

HI = {"role": "user", "content": "hi"}
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}


OURS = {
    # Ollama itself has these; its Python library does not know them yet.
    "message.tool_calls.id", "message.tool_calls.function.index", "models.name",
    "logprobs.bytes", "logprobs.top_logprobs.bytes",
    "models.capabilities", "models.context_length",
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


async def test_an_answer_whole_and_as_lines(rig: Rig) -> None:
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
            check_shape(shape, line)
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


def scored(text: bytes, logprob: float, *others: TopLogprob) -> TokenLogprob:
    return TokenLogprob(text, logprob, 1, others)


async def test_logprobs() -> None:
    tokens = [
        scored("é".encode()[:1], -0.5, TopLogprob(b"a", -0.25, 2), TopLogprob(b"b", -1.0, 3)),
        scored("é".encode()[1:], -0.125),
        scored(b"!", -2.0),
    ]
    answer = zip(("", "é", "!"), tokens, strict=True)
    said = [Delta(0, text, 1, logprobs=(token,)) for text, token in answer]
    scores = plays((Delta(0, "Hm.", 1, kind=DeltaKind.REASONING), *said), ends(tokens=4))
    async with router_rig(scores) as rig:
        for path, fields, theirs in (
            ("/api/chat", {"messages": [HI]}, ollama.ChatResponse),
            ("/api/generate", {"prompt": "hi"}, ollama.GenerateResponse),
        ):
            body = {"model": MODEL, **fields, "logprobs": True, "top_logprobs": 2}
            _, whole = await rig.post_json(path, **body, stream=False)
            async with rig.http.post(f"{rig.url}{path}", json=body) as response:
                assert "X-Lmx-Ignored" not in response.headers
                lines = lines_of(await response.read())
            for answer in [*lines, whole]:
                known(theirs, answer)
            assert rig.worker.streams[-1].request.top_logprobs == 2
            reported = [one for line in lines for one in line.get("logprobs", ())]
            assert reported == whole["logprobs"]
            assert [one["logprob"] for one in reported] == [-0.5, -0.125, -2.0]
            assert bytes(byte for one in reported for byte in one["bytes"]).decode() == "é!"
            assert [one["token"] for one in reported[0]["top_logprobs"]] == ["a", "b"]
            assert "top_logprobs" not in reported[1]
        for asks in ({}, {"logprobs": False, "top_logprobs": 2}):
            await rig.post_json("/api/chat", model=MODEL, messages=[HI], stream=False, **asks)
            assert rig.worker.streams[-1].request.top_logprobs is None
        status, refused = await rig.post_json(
            "/api/chat", model=MODEL, messages=[HI], logprobs=True, top_logprobs=21
        )
        assert (status, refused["param"]) == (400, "top_logprobs")


async def test_a_context_continues_with_its_conversation(rig: Rig) -> None:
    asked = {"model": MODEL, "prompt": "hi", "system": "Be brief."}
    _, whole = await rig.post_json("/api/generate", **asked, stream=False)
    async with rig.http.post(f"{rig.url}/api/generate", json=asked) as response:
        *lines, last = lines_of(await response.read())
    assert last["context"] == whole["context"]
    assert not any("context" in line for line in lines)
    body = {"model": MODEL, "prompt": "And?", "context": whole["context"], "stream": False}
    _, second = await rig.post_json("/api/generate", **body)
    said = "".join(TEXTS)
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And?"},
    ]
    assert list(rig.worker.streams[-1].request.messages or ()) == turns
    _, third = await rig.post_json(
        "/api/generate", **{**body, "context": second["context"], "system": "Shout."}
    )
    sent = rig.worker.streams[-1].request.messages or ()
    assert [turn["content"] for turn in sent] == ["Shout.", "hi", said, "And?", said, "And?"]
    known(ollama.GenerateResponse, third)
    _, raw = await rig.post_json("/api/generate", model=MODEL, prompt="hi", raw=True, stream=False)
    assert "context" not in raw
    for fields, param in (
        ({"context": [1, 2, 3]}, "context"),
        ({"context": [*whole["context"][:-1], 7]}, "context"),
        ({"context": whole["context"][:-1]}, "context"),
        ({"context": [whole["context"][0], -1]}, "context"),
        ({"context": [whole["context"][0], 2**40, 2**70]}, "context"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": whole["context"], "raw": True}, "context"),
        ({"system": "x", "raw": True}, "system"),
    ):
        bad = {"model": MODEL, "prompt": "hi", **fields, "stream": False}
        status, refused = await rig.post_json("/api/generate", **bad)
        assert (status, refused["param"]) == (400, param), refused
        assert f"`{param}" in refused["error"]


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text())))
def test_a_context_is_read_as_it_was_written(turns: list[tuple[str, str]]) -> None:
    context = context_of(turns)
    assert all(0 <= number < 2**32 for number in context)
    assert turns_of(context) == turns


async def test_no_text_has_no_vector(rig: Rig) -> None:
    await rig.publish(ready("embeds", "i", kind=ModelKind.EMBEDDING))
    empty: tuple[Any, ...] = ([], "")
    for nothing in empty:
        status, made = await rig.post_json("/api/embed", model="embeds", input=nothing)
        assert (status, made["embeddings"], made["prompt_eval_count"]) == (200, [], 0)
        known(ollama.EmbedResponse, made)
    made = await rig.post_json("/api/embeddings", model="embeds", prompt="")
    assert made == (200, {"embedding": []})
    assert (await rig.post_json("/api/embed", model="none", input=[]))[0] == 404


async def test_when_a_model_is_unloaded(rig: Rig) -> None:
    for fields, expected in (
        ({"idle_s": 2.0, "expires_in_s": 60.0}, time.time() + 60),
        ({"idle_s": 2.0, "expires_in_s": None}, 10_000_000_000),
        ({"idle_s": None, "expires_in_s": None}, None),
    ):
        rig.supervisor.replies[GetStatus] = Status(reported_status(status_line(MODEL, **fields)))
        _, body = await rig.json("GET", "/api/ps")
        (model,) = body["models"]
        known(ollama.ProcessResponse, {"models": [model]})
        made = ollama.ProcessResponse(models=[model]).models[0].expires_at
        if expected is None:
            assert made is None
        else:
            assert made is not None and abs(made.timestamp() - expected) < 90


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
        assert sent.thinking.required
        await rig.post_json("/api/chat", model=MODEL, messages=[HI], think=False, stream=False)
        assert not rig.worker.streams[-1].request.thinking.required


async def test_nothing_to_answer_loads_and_unloads(rig: Rig) -> None:
    for path, keep, reason in (
        ("/api/chat", None, "load"), ("/api/generate", 0, "unload"),
    ):  # fmt: skip
        status, answer = await rig.post_json(path, model=MODEL, keep_alive=keep, stream=False)
        assert (status, answer["done"], answer["done_reason"]) == (200, True, reason)
        assert rig.worker.streams[-1].request.max_tokens == 0
        assert rig.worker.streams[-1].request.keep_alive_s == keep


async def test_what_is_not_loaded_is_not_loaded_to_be_unloaded(rig: Rig) -> None:
    await rig.publish(ready(MODEL, INSTANCE, kind=ModelKind.CHAT), cold("b", kind=ModelKind.CHAT))
    for stream in (False, True):
        body = {"model": "b", "keep_alive": 0, "stream": stream}
        async with rig.http.post(f"{rig.url}/api/generate", json=body) as response:
            answer = json.loads(await response.read())
        known(ollama.GenerateResponse, answer)
        assert (response.status, answer["response"], answer["done_reason"]) == (200, "", "unload")


async def test_errors_are_ollama_s(rig: Rig) -> None:
    for body, status, param in (
        ({"model": MODEL, "messages": 5}, 400, "messages"),
        ({"messages": [HI]}, 400, "model"),
        ({"model": "gpt-9", "messages": [HI]}, 404, "model"),
        ({"model": MODEL, "messages": [HI], "options": {"top_p": 2}}, 400, "options.top_p"),
        ({"model": MODEL, "messages": [{**HI, "images": ["eA=="]}]}, 400, "messages[0].images[0]"),
    ):
        found = await rig.post_json("/api/chat", **body)
        assert found[0] == status and isinstance(found[1]["error"], str)
        assert param is None or found[1]["param"] == param
    made = OLLAMA.error_body(LmxError(ErrorCode.ENGINE_ERROR, "It failed."))
    check_shape(OllamaError, made)
    assert made["error"] == "It failed."
    line = OLLAMA.error_event(RequestError(ErrorCode.INVALID_VALUE, "no", param="x"), None)
    assert lines_of(line) == [{"error": "no", "code": "invalid_value", "param": "x"}]


async def test_the_lists(rig: Rig) -> None:
    sizes = {"needed_bytes": 9, "disk_bytes": 5, "memory_bytes": 7}
    await rig.publish(ready(MODEL, INSTANCE, **sizes), default=MODEL)
    _, tags = await rig.json("GET", "/api/tags")
    known(ollama.ListResponse, tags)
    listed = tags["models"]
    assert [one["name"] for one in listed] == [f"{MODEL}:latest"]
    assert len(listed[0]["digest"]) == 64
    assert listed[0]["size"] == 5, "what it takes on the disk"
    _, loaded = await rig.json("GET", "/api/ps")
    known(ollama.ProcessResponse, loaded)
    assert [one["model"] for one in loaded["models"]] == [f"{MODEL}:latest"]
    assert loaded["models"][0]["size"] == loaded["models"][0]["size_vram"] == 7
    for body in ({"model": listed[0]["name"]}, {"name": MODEL}):
        status, shown = await rig.post_json("/api/show", **body)
        assert status == 200 and shown["capabilities"][0] == "completion"
        known(ollama.ShowResponse, shown)
        # OllamaKit reads an answer only with all of these.
        texts = [shown[name] for name in ("license", "template", "modelfile", "parameters")]
        assert all(isinstance(text, str) for text in texts)
    assert (await rig.post_json("/api/show"))[0] == 400
    _, found = await rig.json("GET", "/api/version")
    assert found["version"]


@pytest.mark.parametrize(
    ("fields", "limit", "seed", "effort"),
    [
        ({"options": {"num_predict": 128.0, "seed": 7.0, "top_k": 5.0}}, 128, 7, None),
        ({"options": {"num_predict": 0, "seed": -1}}, MAX_COUNT, None, None),
        ({"options": {"num_predict": -2.0}, "think": "max"}, MAX_COUNT, None, "max"),
        ({"options": {"num_predict": None}}, None, None, None),
    ],
)
def test_values_as_programs_for_ollama_send_them(
    fields: dict[str, Any], limit: int | None, seed: int | None, effort: str | None
) -> None:
    sent = parse_ollama_chat({"model": "m", "messages": [HI], **fields})[1]
    assert (sent.max_tokens, sent.sampling.seed, sent.thinking.effort) == (limit, seed, effort)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"num_predict": 1.5}}, "options.num_predict"),
        ({"options": {"top_k": float("inf")}}, "options.top_k"),
        ({"options": [1.0]}, "options"),
        ({"think": "most"}, "think"),
        ({"think": {}}, "think"),
    ],
)
def test_values_that_ollama_would_not_take(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_ollama_chat({"model": "m", "messages": [HI], **fields})
    assert caught.value.param == param


def test_results_belong_to_their_calls() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 2**64}}}
    other = {"name": "g", "arguments": None}
    messages = [
        HI,
        {"role": "assistant", "content": "", "tool_calls": [call, {"function": other}]},
        {"role": "tool", "tool_name": "g", "content": "2"},
        {"role": "tool", "content": "1"},
    ]
    sent = parse_ollama_chat({"model": "m", "messages": messages})[1].messages
    assert sent is not None
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert [sent[2]["tool_call_id"], sent[3]["tool_call_id"]] == [ids[1], ids[0]]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"a":18446744073709551616}'
    assert [sent[2]["name"], sent[3]["name"]] == ["g", "f"]


async def test_models_of_one_source_are_distinguished(rig: Rig) -> None:
    """llm's plugin takes names with one digest for names of one model, and asks for any of them."""
    one = ready("thinks", "i", kind=ModelKind.CHAT)
    await rig.publish(one, replace(one, model_id="does not"))
    _, body = await rig.json("GET", "/api/tags")
    listed = body["models"]
    assert len({one["digest"] for one in listed}) == len(listed) == 2


def test_what_a_model_can_is_listed_in_ollama_s_words() -> None:
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


async def test_a_model_that_is_there_needs_no_pulling(rig: Rig) -> None:
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
async def test_what_operators_do_is_said(rig: Rig, method: str, path: str, instead: str) -> None:
    body = {"model": MODEL, "source": MODEL, "destination": "b"}
    status, found = await rig.json(method, path, body=body)
    assert status == 400
    assert instead in found["error"]


def test_a_text_that_is_too_long_is_cut_off_unless_that_is_refused() -> None:
    assert parse_ollama_embed({"model": "m", "input": "a"})[1].truncate
    assert parse_ollama_embeddings({"model": "m", "prompt": "a"})[1].truncate
    assert not parse_ollama_embed({"model": "m", "input": "a", "truncate": False})[1].truncate
