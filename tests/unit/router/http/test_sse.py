"""The bytes of a stream whose client keeps up: whole events, in the form that its HTTP has."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from lmx.protocol.messages.data import Delta
from lmx.protocol.states import DeltaKind
from lmx.router.rendering.openai import ChunkWriter
from tests.support.fakes.fake_peers import FakeStream, until
from tests.support.rigs.router_rig import TEXTS, Rig, chat_body, data_lines, joined_text, router_rig


async def answer_of(rig: Rig, version: str, path: str = "/v1/chat/completions") -> bytes:
    """Return the bytes after the headers, up to the end of the connection."""
    body = json.dumps({**chat_body(stream=True), "max_tokens": 50}).encode()
    reader, writer = await asyncio.open_connection(rig.spec.host, rig.spec.port)
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    async with asyncio.timeout(90):
        answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n\r\n", 1)[1]


def chunks_of(body: bytes) -> list[bytes]:
    """Return the chunks of a chunked body, which must be whole."""
    chunks = []
    while True:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        chunks.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        body = rest[length + 2 :]
        if not length:
            assert body == b""
            return chunks[:-1]


async def slowly(stream: FakeStream) -> None:
    """Say each text in a message of its own, once the one before must have gone out."""
    await stream.accept()
    for text in TEXTS[:-1]:
        await stream.say(text)
        await asyncio.sleep(0.02)
    await stream.finish(TEXTS[-1])


async def test_each_message_is_a_chunk_of_whole_events_and_the_end_has_one_with_the_last() -> None:
    async with router_rig(slowly) as rig:
        chunks = chunks_of(await answer_of(rig, "1.1"))
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert joined_text(data_lines(b"".join(chunks))) == "".join(TEXTS)
    assert TEXTS[-2].encode() not in chunks[-1]
    assert b"[DONE]" in chunks[-1] and b"quoted" in chunks[-1]


async def test_an_old_client_gets_the_events_alone() -> None:
    async with router_rig(slowly) as rig:
        body = await answer_of(rig, "1.0")
    assert joined_text(data_lines(body)) == "".join(TEXTS)


async def test_deltas_without_an_event_do_not_end_the_body() -> None:
    async def think_silently(stream: FakeStream) -> None:
        await stream.accept()
        for _ in range(3):
            await stream.send_deltas(Delta(0, "", 1))
            await asyncio.sleep(0.02)
        await stream.finish("said")

    async with router_rig(think_silently) as rig:
        chunks = chunks_of(await answer_of(rig, "1.1"))
    assert joined_text(data_lines(b"".join(chunks))) == "said"


async def test_anthropics_events_come_whole_too() -> None:
    async def think_and_say(stream: FakeStream) -> None:
        await stream.accept()
        for text in ("so", " far"):
            await stream.send_deltas(Delta(0, text, 1, kind=DeltaKind.REASONING))
            await asyncio.sleep(0.02)
        await stream.finish("said")

    async with router_rig(think_and_say) as rig:
        chunks = chunks_of(await answer_of(rig, "1.1", "/v1/messages"))
    assert all(chunk.startswith(b"event: ") and chunk.endswith(b"\n\n") for chunk in chunks)
    assert b'"thinking":" far"' in b"".join(chunks) and b'"text":"said"' in chunks[-1]


async def test_an_error_on_the_short_way_ends_its_own_stream_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, reported = ChunkWriter.deltas, asyncio.Event()

    def fail_on_one(writer: ChunkWriter, deltas: Sequence[Delta]) -> bytes:
        if any(delta.text == "bad" for delta in deltas):
            raise ValueError("a bug")
        return write(writer, deltas)

    async def say_both(stream: FakeStream) -> None:
        await stream.accept()
        await stream.say("good")
        if stream.request.stream_id == 1:
            await reported.wait()
            await stream.finish("end")
        else:
            await asyncio.sleep(0.02)
            await stream.say("bad")
            await until(lambda: stream.cancelled)
            reported.set()

    monkeypatch.setattr(ChunkWriter, "deltas", fail_on_one)
    async with router_rig(say_both) as rig:
        first = asyncio.create_task(rig.chat_events())
        await rig.worker.stream()
        lines = await asyncio.wait_for(rig.chat_events(), 90)
        assert json.loads(lines[-1])["error"]["code"] == "internal_server_error"
        assert joined_text(await asyncio.wait_for(first, 90)) == "goodend"
