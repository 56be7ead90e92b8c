"""Requests with media through a whole router: fetched, sent as frames, refused by name."""

import asyncio
import base64
import contextlib
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Acquired
from lmx.protocol.messages.data import Usage
from lmx.protocol.messages.specs import MediaLimits
from lmx.protocol.messages.tasks import Tokenize, Tokenized
from lmx.protocol.states import MediaForm, MediaKind
from lmx.router.media.source import MediaSource
from lmx.router.schema.requests.conversation.media import ImageReference, ImageUrlPart
from lmx.router.services import SERVICES
from tests.support.fakes.fake_peers import FakeStream, ends, plays, ready, refuses, until
from tests.support.faults.hostile_server import HostileServer, answer, hostile_server, redirect
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, router_rig
from tests.support.rigs.router_rig import answer as says

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
WAV = b"RIFF....WAVEfmt " + bytes(2000)
LIMITS = MediaLimits(
    allowed_networks=("127.0.0.1",), max_item_bytes=100_000, max_items=4, max_held_bytes=250_000,
    read_timeout_s=30.0, total_timeout_s=60.0,
)  # fmt: skip
IN_BASE64 = base64.b64encode(PNG).decode()
IMAGE = {"type": "image_url", "image_url": {"url": IN_BASE64}}
PATH = "messages[0].content[1].image_url"


def asking(*parts: Any) -> list[Any]:
    text = {"type": "text", "text": "What is it?"}
    return [{"role": "user", "content": [text, *parts]}]


def image_at(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@contextlib.asynccontextmanager
async def seeing(script: Any = says, **fields: Any) -> AsyncIterator[tuple[Rig, HostileServer]]:
    async with hostile_server() as server, router_rig(script, **{"media": LIMITS, **fields}) as rig:
        yield rig, server


async def test_pictures_of_ollama_s_clients_go_the_same_way() -> None:
    async with seeing() as (rig, _):
        turn = {"role": "user", "content": "What is it?", "images": [IN_BASE64, IN_BASE64]}
        status, reported = await rig.post_json(
            "/api/chat", model=MODEL, messages=[turn], stream=False
        )
        assert status == 200, reported
        chat = rig.worker.streams[-1]
        text = {"type": "text", "text": "What is it?"}
        seen = [{"type": "image", "media": 0}, {"type": "image", "media": 1}]
        assert chat.blobs == (PNG, PNG)
        assert chat.request.messages == ({"role": "user", "content": [*seen, text]},)
        body = {"prompt": "What is it?", "images": [IN_BASE64], "stream": False}
        status, reported = await rig.post_json("/api/generate", model=MODEL, **body)
        assert status == 200 and rig.worker.streams[-1].blobs == (PNG,)
        status, reported = await rig.post_json("/api/generate", model=MODEL, **body, raw=True)
        assert (status, reported["param"]) == (400, "images")


async def test_media_go_with_the_request_as_frames() -> None:
    async with seeing() as (rig, server):
        server.answers["/a"] = answer(WAV)
        sound = {"type": "audio", "audio": f"{server.url}/a"}
        status, reported = await rig.chat_json(messages=asking(IMAGE, sound))
        assert status == 200, reported
        stream = rig.worker.streams[0]
        assert stream.blobs == (PNG, WAV)
        assert [(item.kind, item.form, item.size_bytes) for item in stream.request.media] == [
            (MediaKind.IMAGE, MediaForm.PNG, len(PNG)),
            (MediaKind.AUDIO, MediaForm.WAV, len(WAV)),
        ]
        assert stream.request.messages == (
            {"role": "user", "content": [
                {"type": "text", "text": "What is it?"}, {"type": "image", "media": 0},
                {"type": "audio", "media": 1},
            ]},
        )  # fmt: skip
        await rig.chat_json()
        assert (rig.worker.streams[1].request.media, rig.worker.streams[1].blobs) == ((), ())


async def test_streams_and_other_families_carry_them_too() -> None:
    async with seeing() as (rig, _):
        assert (await rig.chat_events(messages=asking(IMAGE)))[-1] == "[DONE]"
        block = {"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": IN_BASE64,
        }}  # fmt: skip
        status, reported = await rig.post_json(
            "/v1/messages", model=MODEL, max_tokens=9,
            messages=[{"role": "user", "content": [block]}],
        )  # fmt: skip
        assert status == 200, reported
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{IN_BASE64}"}
        items = [{"role": "user", "content": [image]}]
        status, reported = await rig.post_json("/v1/responses", model=MODEL, input=items)
        assert status == 200, reported
        # What is kept of a conversation has its images too.
        asked = {"input": "And now?", "previous_response_id": reported["id"]}
        status, reported = await rig.post_json("/v1/responses", model=MODEL, **asked)
        assert status == 200, reported
        assert [stream.blobs for stream in rig.worker.streams] == [(PNG,)] * 4


async def test_what_counts_tokens_sends_the_media_too() -> None:
    block = {"type": "image", "source": {
        "type": "base64", "media_type": "image/png", "data": IN_BASE64,
    }}  # fmt: skip
    item = {"type": "input_image", "image_url": f"data:image/png;base64,{IN_BASE64}"}
    async with seeing() as (rig, _):
        rig.worker.task_script = lambda task: [Tokenized(task.stream_id, (1, 2, 3), 256)]
        for path, count, fields in (
            ("/tokenize", "count", {"messages": asking(IMAGE)}),
            ("/v1/messages/count_tokens", "input_tokens", {"messages": asking(block)}),
            ("/v1/responses/input_tokens", "input_tokens",
             {"input": [{"role": "user", "content": [item]}]}),
        ):  # fmt: skip
            status, reported = await rig.post_json(path, model=MODEL, **fields)
            assert (status, reported.get(count)) == (200, 3), reported
        assert rig.worker.task_blobs == [(PNG,)] * 3
        for task in rig.worker.tasks:
            assert isinstance(task, Tokenize)
            assert [item.form for item in task.media] == [MediaForm.PNG]
        assert rig.router._runner.app[SERVICES].media.held_bytes == 0
        status, reported = await rig.post_json(
            "/tokenize", model=MODEL, messages=asking(image_at("file:///etc/passwd"))
        )
        assert (status, reported["error"]["param"]) == (400, PATH)


REFUSED = {
    "to loopback": (redirect("http://127.0.0.2/"), 400, "media_not_fetched"),
    "to a cloud's keys": (redirect("http://169.254.169.254/"), 400, "media_not_fetched"),
    "too large": (answer(PNG * 200), 413, "media_too_large"),
    "no image": (answer(b"<svg/>", "Content-Type: image/png"), 400, "invalid_media"),
    "a sound": (answer(WAV), 400, "invalid_media"),
    "not there": (answer(b"", status="404 Not Found"), 400, "media_not_fetched"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_names_the_part_and_has_its_own_status(name: str) -> None:
    said, status, code = REFUSED[name]
    async with seeing() as (rig, server):
        server.answers["/"] = said
        for stream in (False, True):
            async with rig.chat(
                messages=asking(image_at(f"{server.url}/")), stream=stream
            ) as response:
                error = (await response.json())["error"]
            assert (response.status, error["code"], error["param"]) == (status, code, PATH)
        assert rig.worker.streams == []


async def test_a_slow_server_is_a_504_and_others_are_answered_meanwhile() -> None:
    async def silence(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    limits = replace(LIMITS, read_timeout_s=1.0, total_timeout_s=2.0)
    async with seeing(media=limits) as (rig, server):
        server.answers["/"] = silence
        slow = asyncio.create_task(rig.chat_json(messages=asking(image_at(f"{server.url}/"))))
        await until(lambda: server.requests)
        assert (await rig.chat_json())[0] == 200
        status, reported = await slow
        assert (status, reported["error"]["code"], reported["error"]["param"]) == (
            504, "media_timeout", PATH,
        )  # fmt: skip


async def test_a_client_that_leaves_ends_the_fetch() -> None:
    async def silence(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    limits = replace(LIMITS, read_timeout_s=60.0, total_timeout_s=60.0)
    async with seeing(media=limits) as (rig, server):
        server.answers["/"] = silence
        for stream in (False, True):
            task = asyncio.create_task(
                rig.chat_json(messages=asking(image_at(f"{server.url}/")), stream=stream)
            )
            await until(lambda: server.open_connections == 1)
            task.cancel()
            await until(lambda: server.open_connections == 0)


async def test_too_many_media_are_refused() -> None:
    async with seeing() as (rig, _):
        status, reported = await rig.chat_json(messages=asking(*[IMAGE] * 5))
        assert (status, reported["error"]["param"]) == (400, "messages[0].content[5].image_url")


async def test_a_model_that_takes_text_only_says_which_one_takes_images() -> None:
    eyes = (MediaKind.IMAGE,)
    async with seeing() as (rig, _):
        await rig.publish(ready(MODEL, INSTANCE, media=()), default=MODEL)
        status, reported = await rig.chat_json(messages=asking(IMAGE))
        assert (status, reported["error"]["code"], reported["error"]["param"]) == (
            400, "unsupported_value", PATH,
        )  # fmt: skip
        assert "no model that is configured here takes images" in reported["error"]["message"]
        await rig.publish(
            ready(MODEL, INSTANCE, media=()), ready("b/seeing", "0000000b", media=eyes),
            default=MODEL,
        )  # fmt: skip
        status, reported = await rig.chat_json(messages=asking(IMAGE))
        assert (status, "takes images: b/seeing" in reported["error"]["message"]) == (400, True), (
            reported
        )
        # A route takes the one that can.
        other = rig.add_worker("0000000b", says)
        assert (await rig.chat_json(model="auto", messages=asking(IMAGE)))[0] == 200
        assert (len(rig.worker.streams), other.streams[0].blobs) == (0, (PNG,))


async def test_the_bytes_go_along_when_the_request_is_sent_again() -> None:
    async with seeing(refuses(ErrorCode.MODEL_UNLOADED, "draining")) as (rig, server):
        server.answers["/"] = answer(PNG)
        other = rig.add_worker("0000000b", says)
        rig.supervisor.acquire_reply = lambda _: Acquired(MODEL, "0000000b")
        assert (await rig.chat_json(messages=asking(image_at(f"{server.url}/"))))[0] == 200
        assert other.streams[0].blobs == rig.worker.streams[0].blobs == (PNG,)
        assert other.streams[0].request.media == rig.worker.streams[0].request.media
        assert server.paths() == ["/"], "it was fetched once"


def _has(one: object, text: str) -> bool:
    if isinstance(one, ImageUrlPart):
        return isinstance(one.image_url, ImageReference) and one.image_url.url == text
    return isinstance(one, MediaSource) and one.text == text


async def test_what_is_held_is_given_back_once_a_worker_has_it() -> None:
    go_on = asyncio.Event()

    large = b"\x89PNG\r\n\x1a\n" + bytes(90_000)
    text = base64.b64encode(large).decode()
    part = image_at(text)
    async with seeing(plays(go_on, ends("done", tokens=1))) as (rig, _):
        media = rig.router._runner.app[SERVICES].media
        # Both are accepted, though there is room for one: the first is no longer held.
        tasks = []
        for index in range(2):
            tasks.append(asyncio.create_task(rig.chat_json(messages=asking(part))))
            await rig.worker.stream(index)
            await until(lambda: media.held_bytes == 0)
        # Nor is the text of which the bytes were made.
        gc.collect()
        assert not [one for one in gc.get_objects() if _has(one, text)]
        go_on.set()
        assert [status for status, _ in await asyncio.gather(*tasks)] == [200, 200]


LARGE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 400
LARGE_TEXT = base64.b64encode(LARGE).decode()
LARGE_URL = f"data:image/png;base64,{LARGE_TEXT}"
BLOCK = {"type": "image", "source": {
    "type": "base64", "media_type": "image/png", "data": LARGE_TEXT,
}}  # fmt: skip
SEEN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": asking(image_at(LARGE_URL))},
    "/v1/messages": {"messages": asking(BLOCK), "max_tokens": 9},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": LARGE_URL}]}],
        "store": False,
    },
    "/api/chat": {"messages": [{"role": "user", "content": "?", "images": [LARGE_TEXT]}]},
    "/api/generate": {"prompt": "?", "images": [LARGE_TEXT]},
}


def _large_values() -> list[tuple[str, int]]:
    """What in this process refers to a text or to bytes as large as the picture."""
    gc.collect()
    return [
        (type(one).__name__, len(value))
        for one in gc.get_objects()
        for value in gc.get_referents(one)
        if isinstance(value, (str, bytes, bytearray)) and LARGE[-50_000:] in _decoded(value)
    ]


def _decoded(value: str | bytes | bytearray) -> bytes:
    if len(value) < len(LARGE):
        return b""
    if not isinstance(value, str):
        return bytes(value)
    return base64.b64decode(value.rpartition(",")[2]) if value.endswith(LARGE_TEXT[-9:]) else b""


@pytest.mark.parametrize("path", SEEN)
async def test_no_frame_keeps_what_is_counted_as_given_back(path: str) -> None:
    """Neither the bytes nor the text that they came in, for as long as the answer takes."""
    goes_on = asyncio.Event()

    async def slowly(stream: FakeStream) -> None:
        stream.blobs = ()
        await stream.accept()
        await goes_on.wait()
        await stream.finish("done", tokens=1)

    limits = replace(LIMITS, max_item_bytes=2**20, max_held_bytes=2**21)
    # What there is now is looked through once, and not at each look: that takes a second.
    gc.collect()
    gc.freeze()
    async with seeing(slowly, media=limits) as (rig, _):
        known = len(_large_values())  # Those of this test.
        media = rig.router._runner.app[SERVICES].media
        body = orjson.dumps({"model": MODEL, "stream": True, **SEEN[path]})
        # No client that keeps its request.
        reader, writer = await asyncio.open_connection(rig.spec.host, rig.spec.port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        del body
        await rig.worker.stream()
        async with asyncio.timeout(90):
            assert (await reader.readline()).endswith(b" 200 OK\r\n")
        assert media.held_bytes == 0
        # What was sent is freed on another thread.
        await until(lambda: len(_large_values()) == known)
        goes_on.set()
        async with asyncio.timeout(90):
            assert b"done" in await reader.read()
        writer.close()


async def test_usage_shows_what_media_took() -> None:
    async def counted(stream: FakeStream) -> None:
        await stream.accept()
        usage = Usage(100, 1, cached_tokens=20, image_tokens=60, audio_tokens=7, video_tokens=5)
        await stream.finish("done", usage=usage)

    async with seeing(counted) as (rig, _):
        _, reported = await rig.chat_json(messages=asking(IMAGE))
        assert reported["usage"]["prompt_tokens"] == 100
        assert reported["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 20, "image_tokens": 60, "audio_tokens": 7, "video_tokens": 5,
        }  # fmt: skip
