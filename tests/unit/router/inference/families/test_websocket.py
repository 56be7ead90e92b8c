"""Responses over a WebSocket, through a real router. The official library's own client is in
tests/e2e/clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.keys import ApiKey, Keyring
from lmx.protocol.states import FinishReason
from lmx.router.inference.responses import websocket
from lmx.router.inference.responses.websocket import SOCKETS
from lmx.router.server.middleware import RequestServer
from tests.support.clients.sdk_types import extras_of
from tests.support.fakes.fake_peers import (
    FakeStream,
    ends,
    fails,
    plays,
    refuses,
    until,
    until_cancelled,
)
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, router_rig

KEY = "sk-lmx-of-this-test"
WHOLE = "".join(TEXTS)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
TEXT_AS_JSON = {"format": {"type": "json_object"}}
TRIGGER = {"type": "compaction_trigger"}
TOOLS = [{"type": "function", "name": "read", "description": "x" * 2000}]
OURS = {"store", "frequency_penalty", "presence_penalty", "timings"}


@asynccontextmanager
async def connected(
    rig: Rig, key: str | None = None, **headers: str
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    async with rig.http.ws_connect(f"{rig.url}/v1/responses", headers=headers) as socket:
        yield socket


async def say(socket: aiohttp.ClientWebSocketResponse, content: Any = "hi", **fields: Any) -> None:
    body = {"type": "response.create", "model": MODEL, "input": content, **fields}
    await socket.send_str(json.dumps(body))


async def events(socket: aiohttp.ClientWebSocketResponse) -> list[dict[str, Any]]:
    """All events of one response, or the error in its place; each strictly of the library's
    type."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] not in (
        "response.completed", "response.failed", "response.incomplete", "error",
    ):  # fmt: skip
        text = await socket.receive_str(timeout=180)
        event = EVENT.validate_json(text, strict=True)
        assert {path.rpartition(".")[2] for path in extras_of(event)} <= OURS
        found.append(json.loads(text))
    return found


async def closed(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """The code with which a connection is closed."""
    while (await socket.receive(timeout=180)).type not in (
        aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR,
    ):  # fmt: skip
        pass
    return socket.close_code


def read(rig: Rig, number: int = -1) -> list[tuple[str, str]]:
    """The turns of one of the generations that were asked for, of the last one if not said."""
    asked = rig.worker.streams[number].request
    return [(one["role"], one["content"]) for one in asked.messages or ()]


async def test_several_responses_with_the_events_of_a_stream(rig: Rig) -> None:
    async with connected(rig) as socket:
        await say(socket, instructions="Be kind.")
        first = await events(socket)
        body = {"model": MODEL, "input": "hi", "instructions": "Be kind.", "stream": True}
        async with rig.http.post(f"{rig.url}/v1/responses", json=body) as response:
            same = [
                json.loads(block.partition("\ndata: ")[2])
                for block in (await response.text()).split("\n\n") if block
            ]  # fmt: skip
        assert [(one["type"], one.get("delta")) for one in first] == [
            (one["type"], one.get("delta")) for one in same
        ]
        assert [one["sequence_number"] for one in first] == list(range(len(first)))
        # What is stored is continued from wherever; two that are sent at once come in their order.
        previous = first[-1]["response"]["id"]
        await say(socket, "on", previous_response_id=previous)
        await say(socket, "alone")
        await events(socket)
        # The next one may have begun by now.
        assert read(rig, 2)[0] == ("user", "hi")
        last = await events(socket)
        assert read(rig) == [("user", "alone")]
        kept = await rig.http.get(f"{rig.url}/v1/responses/{last[-1]['response']['id']}")
        assert (await kept.json())["status"] == "completed"
    await until(lambda: not rig.router._runner.app[SOCKETS])
    await until(lambda: rig.router.traffic.under_way == 0)


async def test_what_is_not_stored_is_continued_on_its_connection_alone(rig: Rig) -> None:
    async with connected(rig) as socket, connected(rig) as other:
        previous = None
        for turn in ("one", "two", "three"):
            await say(socket, turn, store=False, previous_response_id=previous)
            previous = (await events(socket))[-1]["response"]["id"]
        assert read(rig) == [
            ("user", "one"), ("assistant", WHOLE), ("user", "two"), ("assistant", WHOLE),
            ("user", "three"),
        ]  # fmt: skip
        await say(other, "four", store=False, previous_response_id=previous)
        assert (await events(other))[-1]["error"]["code"] == "previous_response_not_found"
        # A fault forgets it, as at OpenAI.
        await say(socket, 5, previous_response_id=previous)
        assert (await events(socket))[-1]["error"]["param"] == "input"
        await say(socket, "six", store=False, previous_response_id=previous)
        assert (await events(socket))[-1]["error"]["code"] == "previous_response_not_found"
        await say(socket, "seven")
        assert (await events(socket))[-1]["type"] == "response.completed"


async def test_the_size_of_what_is_stored_is_not_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing needs it, and a large input takes a while to write."""
    sized: list[list[Any]] = []

    def size_bytes(items: list[Any], most_bytes: int) -> int:
        sized.append(items)
        return most_bytes

    monkeypatch.setattr(websocket, "_size_bytes", size_bytes)
    async with connected(rig) as socket:
        await say(socket, "one")
        await events(socket)
        assert sized == []
        await say(socket, "two", store=False)
        await events(socket)
        assert [len(items) for items in sized] == [1, 1]


async def test_a_summary_that_is_not_stored_is_continued(rig: Rig) -> None:
    async with connected(rig) as socket:
        await say(socket, [{"role": "user", "content": "one"}, TRIGGER], store=False)
        previous = (await events(socket))[-1]["response"]["id"]
        await say(socket, "two", store=False, previous_response_id=previous)
        last = (await events(socket))[-1]
        assert last["type"] == "response.completed", last
        ((role, content),) = read(rig)
        assert role == "user" and content.startswith("one\n") and content.endswith("\ntwo")
        assert WHOLE in content
        # The whole conversation can be summed up again.
        previous = last["response"]["id"]
        await say(socket, [TRIGGER], store=False, previous_response_id=previous)
        assert (await events(socket))[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"instructions": "x" * 3000, "tools": TOOLS}, "response.completed"),
        ({"input": "x" * 8000}, "error"),
    ],
)
async def test_of_a_conversation_that_is_not_stored_only_the_items_count(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], found: str
) -> None:
    async with connected(rig) as socket:
        monkeypatch.setattr(websocket, "_MOST_BYTES", 8000)
        previous = None
        for turn in ("one", "two", "three"):
            asked = {"input": turn, **fields, "store": False, "previous_response_id": previous}
            await say(socket, **asked)
            last = (await events(socket))[-1]
            if last["type"] == "error":
                break
            previous = last["response"]["id"]
        assert last["type"] == found, last


@pytest.mark.parametrize("store", [True, False])
async def test_a_prompt_that_is_read_ahead_has_no_output_and_is_continued(
    rig: Rig, store: bool
) -> None:
    answers = rig.worker.script
    async with connected(rig) as socket:
        rig.worker.script = plays(ends(reason=FinishReason.LENGTH))
        await say(socket, "one", generate=False, store=store, text=TEXT_AS_JSON)
        begun = await events(socket)
        assert [one["type"].partition(".")[2] for one in begun] == [
            "created", "in_progress", "completed"
        ]  # fmt: skip
        asked = rig.worker.streams[-1].request
        assert (asked.max_tokens, asked.structure) == (0, None)
        response = begun[-1]["response"]
        assert (response["status"], response["output"]) == ("completed", [])
        if store:
            kept = await rig.http.get(f"{rig.url}/v1/responses/{response['id']}")
            found = await kept.json()
            assert (found["status"], found["output"]) == ("completed", [])
        rig.worker.script = answers
        await say(socket, "two", store=store, previous_response_id=response["id"])
        assert (await events(socket))[-1]["response"]["status"] == "completed"
        assert "".join(text for _, text in read(rig)).split() == ["one", "two"]
        await say(socket, [TRIGGER], generate=False)
        assert (await events(socket))[-1]["error"]["param"] == "generate"


async def test_messages_that_are_refused_leave_the_connection_open(rig: Rig) -> None:
    async with connected(rig) as socket:
        for text, param in [
            ("{", None), ("[]", None), ("{}", "type"), ('{"type": "response.steer"}', "type"),
            ('{"type": "response.create", "generate": false, "conversation": "a"}', "generate"),
            ('{"type": "response.create", "stream_id": "a"}', "stream_id"),
            ('{"type": "response.create", "background": true}', "background"),
            ('{"type": "response.create", "input": "hi", "temperature": 9}', "temperature"),
        ]:  # fmt: skip
            await socket.send_str(text)
            (event,) = await events(socket)
            assert (event["status"], event["error"]["param"]) == (400, param), event
        await say(socket, model="none")
        (event,) = await events(socket)
        assert (event["status"], event["error"]["code"]) == (404, "model_not_found")
        rig.worker.script = refuses(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long")
        await say(socket)
        assert (await events(socket))[-1]["error"]["code"] == "context_length_exceeded"
        rig.worker.script = plays("Hel", fails(ErrorCode.ENGINE_ERROR, "broken"))
        await say(socket)
        assert (await events(socket))[-1]["response"]["error"]["type"] == "engine_error"
        await socket.send_bytes(json.dumps({"type": "response.create", "input": "hi"}).encode())
        assert (await events(socket))[-1]["type"] == "response.failed"


async def test_what_the_server_refuses_is_an_event() -> None:
    async with router_rig(max_requests=1) as rig, connected(rig) as socket:
        with rig.router.traffic.count():
            await say(socket)
            (event,) = await events(socket)
            assert (event["status"], event["error"]["code"]) == (429, "queue_full")
        await say(socket)
        assert (await events(socket))[-1]["type"] == "response.completed"


async def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_MOST_OF_ONE", 1)
    held = asyncio.Event()
    async with router_rig(plays(held, ends("x")), body_limit_bytes=10_000) as rig:
        async with connected(rig) as socket:
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with connected(rig):
                    pass
            assert caught.value.status == 429
            await say(socket)
            await until(lambda: rig.worker.streams)
            for number in range(9):
                await say(socket, str(number))
            # The first is under way, eight wait, and one is too many.
            begun = await events(socket)
            assert begun[-1]["error"]["code"] == "queue_full" and begun[-1]["status"] == 429
            held.set()
            for _ in range(9):
                assert (await events(socket))[-1]["type"] == "response.completed"
            await say(socket, "x" * 20_000)
            assert await closed(socket) == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        await until(lambda: not rig.router._runner.app[SOCKETS])
        monkeypatch.setattr(websocket, "_LONGEST_S", 0.0)
        async with connected(rig) as socket:
            (event,) = await events(socket)
            assert event["error"]["code"] == "websocket_connection_limit_reached"
            assert await closed(socket) == aiohttp.WSCloseCode.GOING_AWAY


async def test_a_client_that_leaves_cancels_what_is_under_way() -> None:
    async with router_rig(plays("Hel", until_cancelled)) as rig:
        async with connected(rig) as socket:
            await say(socket)
            await say(socket, "never")
            while json.loads(await socket.receive_str(timeout=180))["type"] != (
                "response.output_text.delta"
            ):
                pass
        await until(lambda: rig.worker.streams[0].cancelled)
        await until(lambda: not rig.router.traffic.under_way)
        assert len(rig.worker.streams) == 1


async def test_a_client_that_takes_nothing_is_dropped() -> None:
    async def speaks(stream: FakeStream) -> None:
        await stream.accept()
        while not stream.cancelled:
            await stream.say_within_credit("x" * 50_000)

    async with router_rig(speaks, stall_timeout_s=1.0) as rig, connected(rig) as socket:
        await say(socket)
        await until(lambda: rig.worker.streams)
        await until(lambda: rig.worker.streams[0].cancelled)
        await until(lambda: not rig.router.traffic.under_way)
        await until(lambda: not rig.router._runner.app[SOCKETS])


@pytest.mark.parametrize("begun", [b"", b"event: response.created\ndata: {}\n\n"])
async def test_an_answer_that_breaks_off_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    async def breaks(_: RequestServer, request: web.Request) -> None:
        if begun:
            head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
            assert request.transport is not None
            request.transport.write(head + begun)

    monkeypatch.setattr(RequestServer, "serve_in_process", breaks)
    async with router_rig() as rig, connected(rig) as socket:
        await say(socket)
        assert await closed(socket) == aiohttp.WSCloseCode.INTERNAL_ERROR


async def test_who_may_connect() -> None:
    keys = (ApiKey.of_secret(KEY, "one"),)
    async with router_rig(api_keys=keys, cors_origins=("https://app.example",)) as rig:
        origin = rig.url
        for key, headers, status in [
            (None, {}, 401), ("wrong", {}, 401), (KEY, {"Origin": "https://evil.example"}, 403),
            (KEY, {"Origin": "null"}, 403), (KEY, {"Host": "evil.example"}, 403),
        ]:  # fmt: skip
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with connected(rig, key, **headers):
                    pass
            assert caught.value.status == status, headers
        for headers in ({}, {"Origin": origin}, {"Origin": "https://app.example"}):
            async with connected(rig, KEY, **headers) as socket:
                await say(socket)
                assert (await events(socket))[-1]["type"] == "response.completed"
        # A page of another origin may still ask by GET, and is told nothing but the method.
        async with rig.http.get(
            f"{rig.url}/v1/responses", headers={"Authorization": f"Bearer {KEY}"}
        ) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")

        # A key that is revoked closes its connection.
        async with connected(rig, KEY) as socket:
            rig.router.keys.put(Keyring((ApiKey.of_secret("sk-lmx-another", "two"),)))
            (event,) = await events(socket)
            assert event["status"] == 401
            assert await closed(socket) == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_a_router_that_ends_closes_what_is_idle_and_ends_what_is_not() -> None:
    held = asyncio.Event()
    async with (
        router_rig(plays("Hel", held, ends("lo"))) as rig, connected(rig) as idle,
        connected(rig) as busy,
    ):  # fmt: skip
        await say(busy)
        await until(lambda: rig.worker.streams)
        ending = asyncio.create_task(rig.router.stop(grace_s=60))
        assert await closed(idle) == aiohttp.WSCloseCode.SERVICE_RESTART
        assert not ending.done()
        held.set()
        assert (await events(busy))[-1]["type"] == "response.completed"
        assert await closed(busy) == aiohttp.WSCloseCode.SERVICE_RESTART
        await ending


async def test_a_handshake_that_is_none_gets_an_error_of_the_api() -> None:
    async with router_rig() as rig:
        upgrade = {"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        status, body = await rig.json("GET", "/v1/responses", headers=upgrade)
        assert status == 400
        assert body["error"]["code"] == "malformed_request"
