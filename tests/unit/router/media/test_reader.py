"""From what a request says to bytes with a description."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.messages.specs import MediaLimits
from lmx.protocol.states import MediaForm, MediaKind
from lmx.router.media.fetch import Fetcher
from lmx.router.media.reader import MediaReader
from lmx.router.media.source import MediaSource
from tests.support.fakes.fake_peers import until
from tests.support.faults.hostile_server import answer, hostile_server, redirect

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
WAV = b"RIFF....WAVEfmt " + bytes(50)
MP4 = b"\0\0\0\x10ftypisom" + bytes(70)
LIMITS = MediaLimits(allowed_networks=("127.0.0.1",), max_item_bytes=1000, max_items=8)


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


@asynccontextmanager
async def reader(limits: MediaLimits = LIMITS) -> AsyncIterator[MediaReader]:
    fetcher = Fetcher(limits, "lmx/test")
    try:
        yield MediaReader(limits, fetcher)
    finally:
        await fetcher.close()


async def test_all_forms_are_read_in_the_order_of_the_request() -> None:
    async with hostile_server() as server, reader() as read:
        # What headers and names say is nothing that counts.
        server.answers["/clip.txt"] = answer(MP4, "Content-Type: text/html")
        server.answers["/to"] = redirect("/clip.txt")
        sources = (
            MediaSource(MediaKind.VIDEO, "v", f"{server.url}/to", fps=2.0, max_frames=5,
                        use_audio_in_video=False),
            MediaSource(MediaKind.IMAGE, "i", f"data:audio/wav;base64,{b64(PNG)}", "high",
                        min_pixels=10, max_pixels=20),
            MediaSource(MediaKind.AUDIO, "a", b64(WAV)),
        )  # fmt: skip
        async with read.read(sources) as held:
            assert held.blobs == (MP4, PNG, WAV)
            assert held.items == (
                MediaItem(
                    MediaKind.VIDEO, MediaForm.MP4, "v", len(MP4), hashlib.sha256(MP4).digest(),
                    fps=2.0, max_frames=5, use_audio_in_video=False,
                ),
                MediaItem(
                    MediaKind.IMAGE, MediaForm.PNG, "i", len(PNG), hashlib.sha256(PNG).digest(),
                    "high", min_pixels=10, max_pixels=20,
                ),
                MediaItem(
                    MediaKind.AUDIO, MediaForm.WAV, "a", len(WAV), hashlib.sha256(WAV).digest()
                ),
            )  # fmt: skip
            texts = sum(len(source.text) for source in sources)
            assert read.held_bytes == len(MP4 + PNG + WAV) + texts
            held.release()
            assert read.held_bytes == len(held.blobs) == 0
        assert read.held_bytes == 0


async def test_the_same_bytes_are_the_same_however_they_come() -> None:
    async with hostile_server() as server, reader() as read:
        server.answers["/"] = answer(PNG)
        ways = (f"{server.url}/", f"data:;base64,{b64(PNG)}", b64(PNG))
        sources = [MediaSource(MediaKind.IMAGE, "p", text) for text in ways]
        async with read.read(sources) as held:
            assert len(set(held.items)) == 1
            assert set(held.blobs) == {PNG}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b64(b"<svg/>"), ErrorCode.INVALID_MEDIA),
        (b64(b"data:image/png;base64," + b64(PNG).encode()), ErrorCode.INVALID_MEDIA),
        (b64(WAV), ErrorCode.INVALID_MEDIA),
        ("", ErrorCode.INVALID_MEDIA),
        ("cat.png", ErrorCode.INVALID_MEDIA),
        (b64(PNG * 10), ErrorCode.MEDIA_TOO_LARGE),
        ("http://127.0.0.3/", ErrorCode.MEDIA_NOT_FETCHED),
        ("http://", ErrorCode.MEDIA_NOT_FETCHED),
    ],
)
async def test_one_bad_part_ends_all_and_is_named(text: str, code: ErrorCode) -> None:
    async with hostile_server() as server, reader() as read:
        server.answers["/"] = answer(PNG)
        sources = [
            MediaSource(MediaKind.IMAGE, "good", f"{server.url}/"),
            MediaSource(MediaKind.IMAGE, "bad", text),
        ]
        with pytest.raises(RequestError) as caught:
            async with read.read(sources):
                raise AssertionError("it was read")
        assert (caught.value.code, caught.value.param) == (code, "bad")
        assert read.held_bytes == 0


async def test_too_many_and_foreign_schemes_are_refused_before_anything_is_fetched() -> None:
    source = MediaSource(MediaKind.IMAGE, "p", "http://127.0.0.1:1/")
    async with reader() as read:
        read.check([source] * 8)
        with pytest.raises(RequestError, match="one too many") as caught:
            read.check([*[source] * 8, replace(source, param="ninth")])
        assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "ninth")
        with pytest.raises(RequestError, match="scheme 'file'"):
            read.check([source, replace(source, text="file:///etc/passwd")])


async def test_one_request_fetches_four_at_a_time_and_leaving_ends_them() -> None:
    async def silence(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with hostile_server() as server, reader() as read:
        server.answers["/"] = silence
        sources = [MediaSource(MediaKind.IMAGE, "p", f"{server.url}/")] * 8

        async def ask() -> None:
            async with read.read(sources):
                raise AssertionError("it was read")

        task = asyncio.create_task(ask())
        await until(lambda: server.open_connections == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.open_connections == 0)
        assert len(server.requests) == 4
        assert read.held_bytes == 0


async def test_all_requests_share_one_room() -> None:
    sources = [MediaSource(MediaKind.IMAGE, "p", b64(PNG))]
    tight = replace(LIMITS, max_held_bytes=len(PNG) + len(b64(PNG)) + 10)
    async with reader(tight) as read, read.read(sources) as held:
        with pytest.raises(UnavailableError) as caught:
            async with read.read(sources):
                raise AssertionError("it was read")
        assert caught.value.code is ErrorCode.QUEUE_FULL
        held.release()
        async with read.read(sources):
            assert read.held_bytes == len(PNG) + len(b64(PNG))


async def test_the_loop_has_its_turn_while_much_is_decoded() -> None:
    content = PNG + bytes(20_000_000)
    sources = [MediaSource(MediaKind.IMAGE, "p", b64(content))]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    wide = replace(LIMITS, max_item_bytes=30_000_000)
    async with reader(wide) as read, read.read(sources) as held:
        assert held.blobs == (content,)
    counting.cancel()
    assert turns > 30
