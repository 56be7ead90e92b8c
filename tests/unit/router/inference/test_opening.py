"""What a stream shows while its request waits: for a model, or for its turn."""

import asyncio
import json
from typing import Any, cast

import aiohttp
import orjson
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Acquired, Denied
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import LoadPhase, SlotState, WorkerState
from lmx.router.http.api_family import OPENAI
from lmx.router.http.sse import EventStream
from lmx.router.inference.answering import with_wait_comments
from tests.support.fakes.fake_peers import FakeStream, cold, refuses, until
from tests.support.rigs.router_rig import (
    MODEL,
    TEXTS,
    Rig,
    answer,
    chat_body,
    data_lines,
    joined_text,
    router_rig,
)

LOADED = "0000000b"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmx.router.inference.answering.QUIET_S", 0.05)
    monkeypatch.setattr("lmx.router.inference.answering.INTERVAL_S", 0.01)


def weights(fraction: float) -> ModelView:
    return cold(
        "big",
        SlotState.OCCUPIED,
        worker=WorkerState.LOADING,
        phase=LoadPhase.WEIGHTS,
        fraction=fraction,
    )


async def line_of(response: aiohttp.ClientResponse) -> str:
    """The next line that is not empty."""
    async with asyncio.timeout(90):
        while not (line := (await response.content.readline()).strip()):
            assert not response.content.at_eof()
    return line.decode()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", chat_body(model="big")),
        ("/v1/completions", {"model": "big", "prompt": "hi"}),
        ("/v1/completions", {"model": "big", "prompt": ["hi", "there"]}),
    ],
)
async def test_comments_show_the_load_and_the_answer_is_the_same(
    rig: Rig, path: str, fields: dict[str, Any]
) -> None:
    rig.add_worker(LOADED, answer)
    await rig.publish(cold("big", SlotState.QUEUED, position=2))
    async with rig.http.post(f"{rig.url}{path}", json={**fields, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["X-Request-Id"]
        assert await line_of(response) == ": big waits for memory, 2nd in line"
        await rig.publish(weights(0.4))
        assert await line_of(response) == ": big is loading: weights 40%"
        await rig.publish(weights(0.8))
        assert await line_of(response) == ": big is loading: weights 80%"
        await rig.supervisor.reply(0, Acquired("big", LOADED))
        raw = await response.content.read()
    waited = data_lines(raw.lstrip(b"\n"))
    rig.supervisor.acquire_reply = lambda question: Acquired(question.model_id, LOADED)
    at_once = await rig.post_events(path, **fields)
    assert waited[-1] == "[DONE]"
    assert [shape(line) for line in sorted(waited)] == [shape(line) for line in sorted(at_once)]
    timings = [json.loads(line).get("timings") for line in waited[:-1]]
    assert next(filter(None, timings))["load_s"] > 0.05


def shape(line: str) -> Any:
    """A chunk without what differs between two answers."""
    if line == "[DONE]":
        return line
    return json.dumps(json.loads(line)["choices"])


async def test_a_change_is_reported_once_and_silence_is_broken_by_pings() -> None:
    async with router_rig(ping_interval_s=0.1) as rig:
        rig.add_worker(LOADED, answer)
        await rig.publish(weights(0.4))
        async with rig.chat(model="big", stream=True) as response:
            lines = [await line_of(response) for _ in range(4)]
            assert lines == [": big is loading: weights 40%", ": ping", ": ping", ": ping"]
            await rig.supervisor.reply(0, Acquired("big", LOADED))
            assert joined_text(data_lines(await rest(response))) == "".join(TEXTS)


async def rest(response: aiohttp.ClientResponse) -> bytes:
    return (await response.content.read()).lstrip(b"\n")


async def test_an_error_after_the_headers_is_an_event(rig: Rig) -> None:
    await rig.publish(weights(0.4))
    async with rig.chat(model="big", stream=True) as response:
        assert (await line_of(response)).startswith(": big is loading")
        await rig.supervisor.reply(0, Denied(ErrorCode.MODEL_LOAD_FAILED, "bad weights"))
        lines = data_lines(await rest(response))
    assert [json.loads(line)["error"]["code"] for line in lines] == ["model_load_failed"]
    await until(lambda: rig.router.traffic.under_way == 0)


async def test_an_error_that_comes_soon_keeps_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmx.router.inference.answering.QUIET_S", 600.0)
    async with router_rig() as rig:
        await rig.publish(weights(0.4))
        rig.supervisor.acquire_reply = lambda _: Denied(ErrorCode.INSUFFICIENT_MEMORY, "too big")
        async with rig.chat(model="big", stream=True) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "insufficient_memory"


PING = b": ping\n\n"
EVENTS = "text/event-stream"
STREAMS = {
    "/v1/chat/completions": (chat_body(), EVENTS, PING, "data: "),
    "/v1/completions": ({"model": MODEL, "prompt": ["hi", "there"]}, EVENTS, PING, "data: "),
    "/v1/responses": ({"model": MODEL, "input": "hi"}, EVENTS, PING, "event: error\ndata: "),
    "/v1/messages": (
        {**chat_body(), "max_tokens": 9},
        EVENTS,
        b'event: ping\ndata: {"type":"ping"}\n\n',
        "event: error\ndata: ",
    ),
    "/api/chat": (chat_body(), "application/x-ndjson", b" ", " "),
    "/api/generate": ({"model": MODEL, "prompt": "hi"}, "application/x-ndjson", b" ", " "),
}
"""Of each family a request, the type of its stream, its ping, and how its last error begins."""


@pytest.mark.parametrize("path", STREAMS)
async def test_whatever_a_stream_waits_for_it_opens_and_an_error_then_has_its_form(
    path: str,
) -> None:
    """The worker has not begun with it: other prompts, or other pictures, come before."""
    body, kind, ping, before = STREAMS[path]
    reported = asyncio.Event()

    refuse_late = refuses(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", after=reported)

    async with router_rig(refuse_late) as rig:
        async with rig.http.post(rig.url + path, json={**body, "stream": True}) as response:
            assert (response.status, response.content_type) == (200, kind)
            async with asyncio.timeout(90):
                assert await response.content.readexactly(len(ping)) == ping
            reported.set()
            last = (await response.content.read()).decode()
        if before == " ":
            last = f" {last}"  # The ping is white space before the line.
        assert last.startswith(before)
        assert "context_length_exceeded" in json.dumps(json.loads(last.removeprefix(before)))
        await until(lambda: rig.router.traffic.under_way == 0)


@pytest.mark.parametrize("path", STREAMS)
async def test_an_answer_that_comes_late_follows_the_pings(path: str) -> None:
    body, _, ping, _ = STREAMS[path]
    reported = asyncio.Event()

    async def answer_late(fake: FakeStream) -> None:
        await reported.wait()
        await answer(fake)

    async with router_rig(answer_late, ping_interval_s=0.05) as rig:
        async with rig.http.post(rig.url + path, json={**body, "stream": True}) as response:
            async with asyncio.timeout(90):
                assert await response.content.readexactly(3 * len(ping)) == 3 * ping
            reported.set()
            raw = await response.content.read()
        if ping == b" ":
            lines = [json.loads(line) for line in raw.splitlines()]
            texts = [line["message"]["content"] if "chat" in path else line["response"]
                     for line in lines]  # fmt: skip
            assert "".join(texts) == "".join(TEXTS) and lines[-1]["done"]
        else:
            assert all(orjson.dumps(text)[1:-1] in raw for text in TEXTS)


async def test_a_client_that_leaves_while_it_reads_comments_leaves_the_load_alone(rig: Rig) -> None:
    await rig.publish(weights(0.4))
    async with rig.chat(model="big", stream=True) as response:
        await line_of(response)
        response.close()
    await until(lambda: rig.router.queues.waiting("big") == 0)
    await until(lambda: rig.router.traffic.under_way == 0)
    worker = rig.add_worker(LOADED, answer)
    other = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: len(rig.supervisor.acquires) == 2)
    await rig.supervisor.reply(1, Acquired("big", LOADED))
    assert (await other)[0] == 200
    assert len(worker.streams) == 1


async def test_a_client_that_leaves_in_the_last_moment_leaves_no_writer() -> None:
    class Stuck:
        family = OPENAI
        is_open = False
        opening = False
        cancelled = False
        send_all = EventStream.send_all

        async def open(self) -> None:
            self.opening = True
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True

    stuck, over = Stuck(), asyncio.Event()

    async def wait() -> None:
        async with with_wait_comments(cast(EventStream, stuck), lambda: "big is loading", 5.0):
            await until(lambda: stuck.opening)
            over.set()
        raise AssertionError("half of the headers are out")

    request = asyncio.create_task(wait())
    await over.wait()
    await asyncio.sleep(0)  # it waits for its writer now
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await until(lambda: stuck.cancelled)
