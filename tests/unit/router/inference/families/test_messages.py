"""POST /v1/messages through a real router: its answers, errors, keys and headers."""

import json
from typing import Any

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.data import Delta, ToolCallPart
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.http.api_family import ANTHROPIC, AnthropicError
from tests.support.clients.answer_check import check_shape
from tests.support.fakes.fake_peers import FakeStream
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, router_rig

PATH = "/v1/messages"
HI = {"role": "user", "content": "hi"}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 50, "messages": [HI], **fields}


def events_of(raw: bytes) -> list[tuple[str, dict[str, Any]]]:
    blocks = raw.decode().split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        if not block.startswith(":"):
            name, data = block.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_an_answer_whole_and_as_a_stream(rig: Rig) -> None:
    status, whole = await rig.post_json(PATH, **body())
    async with rig.http.post(f"{rig.url}{PATH}", json=body(stream=True)) as response:
        assert response.content_type == "text/event-stream"
        events = events_of(await response.read())
        request_id = response.headers["Request-Id"]
        assert request_id == response.headers["X-Request-Id"]
    text = "".join(TEXTS)
    assert status == 200 and whole["id"].startswith("msg_")
    assert whole["content"] == [{"type": "text", "text": text}]
    assert (whole["model"], whole["stop_reason"]) == (MODEL, "end_turn")
    assert [name for name, _ in events] == [
        "message_start", "content_block_start", *["content_block_delta"] * len(TEXTS),
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    said = [data["delta"]["text"] for name, data in events if name == "content_block_delta"]
    assert "".join(said) == text
    assert events[-2][1]["usage"] == whole["usage"]
    _, found = await rig.json("GET", f"/v1/jobs/{whole['id']}")
    assert found["result"] == whole


async def test_a_call() -> None:
    async def calls(stream: FakeStream) -> None:
        await stream.accept()
        part = ToolCallPart(0, "call_1", "f")
        await stream.send_deltas(Delta(0, "{}", 1, kind=DeltaKind.TOOL_CALL, call=part))
        await stream.finish(reason=FinishReason.TOOL_CALLS, tokens=1)

    tool = {"name": "f", "input_schema": {"type": "object"}}
    async with router_rig(calls) as rig:
        status, whole = await rig.post_json(PATH, **body(tools=[tool]))
        sent = rig.worker.streams[-1].request
    assert (status, whole["stop_reason"]) == (200, "tool_use")
    assert whole["content"] == [{"type": "tool_use", "id": "call_1", "name": "f", "input": {}}]
    assert sent.tool_use is not None and sent.tool_use.tools[0]["function"]["name"] == "f"


async def test_errors_are_anthropic_s() -> None:
    kinds = {
        ErrorCode.INVALID_VALUE: "invalid_request_error",
        ErrorCode.QUEUE_FULL: "rate_limit_error",
        ErrorCode.MODEL_LOADING: "overloaded_error",
        ErrorCode.ENGINE_ERROR: "api_error",
        ErrorCode.DEADLINE_EXCEEDED: "timeout_error",
        ErrorCode.MODEL_NOT_FOUND: "not_found_error",
        ErrorCode.REQUEST_CANCELLED: "conflict_error",
    }
    for code, kind in kinds.items():
        made = ANTHROPIC.error_body(LmxError(code, "why"))
        check_shape(AnthropicError, made)
        assert made == {
            "type": "error",
            "error": {"type": kind, "message": "why", "code": code.value},
        }
    async with router_rig() as rig:
        status, refused = await rig.post_json(PATH, model=MODEL, messages=[HI])
        assert (status, refused["error"]["param"]) == (400, "max_tokens")


async def test_keys() -> None:
    async with router_rig(api_keys=("secret",)) as rig:
        for headers, wanted in (
            ({}, 401),
            ({"x-api-key": "wrong"}, 401),
            ({"x-api-key": "secret"}, 200),
            ({"api-key": "secret"}, 200),
            ({"Authorization": "Bearer secret"}, 200),
            ({"Authorization": "Bearer placeholder", "x-api-key": "secret"}, 200),
        ):
            url = f"{rig.url}{PATH}"
            async with rig.http.post(url, json=body(), headers=headers) as response:
                assert response.status == wanted, headers
                answer = await response.json()
            if wanted == 401:
                assert answer["error"]["type"] == "authentication_error"


async def test_what_changes_nothing_is_named() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    fields = {"context_management": {"edits": []}, "tools": [hosted], "odd name\n": 1}
    async with router_rig() as rig:
        for path, asked in ((PATH, body(**fields)), ("/v1/chat/completions", {**body(), "no": 1})):
            async with rig.http.post(f"{rig.url}{path}", json=asked) as response:
                assert response.status == 200
                named = response.headers["X-Lmx-Ignored"].split(", ")
            if path == PATH:
                assert named == ["context_management", "odd?name?", "tools.web_search_20250305"]
            else:
                assert named == ["no"]
        async with rig.http.post(f"{rig.url}{PATH}", json=body()) as response:
            assert "X-Lmx-Ignored" not in response.headers


async def test_a_thread_is_refused_so_that_libraries_send_the_whole_conversation(rig: Rig) -> None:
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        status, refused = await rig.post_json(
            "/v1/messages", model=MODEL, max_tokens=9, messages=[HI], thread=thread
        )
        assert (status, refused["error"]["param"]) == (400, "thread")
        assert refused["error"]["details"]["error_code"] == "thread_unsupported_request"
        check_shape(AnthropicError, refused)
    assert not rig.worker.streams
