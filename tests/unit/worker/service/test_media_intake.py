"""The frames behind a message are those that it announces, and what waits is bounded."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import zmq.asyncio

from lmx.protocol.errors import ErrorCode, ProtocolError
from lmx.protocol.messages.data import Cancel, Generate, Refused, Sampling
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.states import MediaForm, MediaKind
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.sockets import Role, open_socket
from lmx.worker.service import generations as module
from lmx.worker.service.data import DataService, check_media
from lmx.worker.service.generations import Generations
from tests.support.fakes.fake_peers import fake_peers, until


def item(size_bytes: int) -> MediaItem:
    return MediaItem(MediaKind.IMAGE, MediaForm.PNG, "p", size_bytes, bytes(32))


def request(*sizes: int, stream_id: int = 7) -> Generate:
    return Generate(stream_id, "r", Sampling(), 8, media=tuple(map(item, sizes)))


def test_number_and_sizes_are_checked() -> None:
    check_media(request(), [])
    check_media(request(3, 0), [b"abc", b""])
    check_media(Cancel(7), [])
    for message, blobs, words in (
        (request(3), [], "announces 1 media, and 0 frames came"),
        (request(), [b"abc"], "announces 0 media, and 1 frames came"),
        (request(3, 3), [b"abc", b"ab"], r"media\[1\] announces 3 bytes, and 2 came"),
        (Cancel(7), [b""], "Cancel announces 0"),
    ):
        with pytest.raises(ProtocolError, match=words):
            check_media(message, blobs)


async def test_a_message_comes_with_its_media_or_is_refused() -> None:
    taken: list[Any] = []
    async with fake_peers() as (context, run_dir):
        service = DataService(context, run_dir, "0000000a")
        router = open_socket(zmq.asyncio.Context.instance(), Role.DATA_CLIENT)
        router.connect(run_dir.worker("0000000a"))
        listening = service.listen(lambda _, message, blobs: taken.append((message, list(blobs))))
        task = asyncio.create_task(listening)
        try:
            await router.send_multipart([encode(request(3)), b"ab"])
            await router.send_multipart([encode(request()), b"ab"])
            await router.send_multipart([encode(Cancel(7)), b"ab"])
            await router.send_multipart([encode(request(3, 1)), b"abc", b"d"])
            await until(lambda: taken)
            assert taken == [(request(3, 1), [b"abc", b"d"])]
            for _ in range(2):
                refused = decode(await router.recv()).message
                assert isinstance(refused, Refused)
                assert (refused.stream_id, refused.code) == (7, ErrorCode.PROTOCOL_ERROR)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            router.close(linger=0)
            service.close()


def test_the_media_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_MEDIA_BYTES", 10)
    sent: list[Any] = []
    begun: list[Any] = []
    generations: Any = object.__new__(Generations)
    generations._open = SimpleNamespace(
        admits=lambda *_: True,
        send=lambda _, message: sent.append(message),
        begin=lambda opened, *_: begun.append(opened),
    )
    generations._thread = SimpleNamespace(rows=0)
    generations._run_ids = iter(range(100))
    generations._by_run = {}
    generations._media_bytes = generations._encoded_bytes = 0
    generations.submit(b"router", request(6), [b"abcdef"])
    generations.submit(b"router", request(5, stream_id=8), [b"abcde"])
    assert [(refused.stream_id, refused.code) for refused in sent] == [(8, ErrorCode.QUEUE_FULL)]
    # Text has nothing that could be too much.
    generations.submit(b"router", request(stream_id=9), [])
    generations.released(begun[0])
    generations.released(begun[0])
    assert (begun[0].blobs, generations._media_bytes) == ((), 0)
    generations.submit(b"router", request(5, stream_id=8), [b"abcde"])
    assert [one.request.stream_id for one in begun] == [7, 9, 8]
