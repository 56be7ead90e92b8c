"""The frames behind a message are those that it announces."""

import asyncio
from typing import Any

import pytest
import zmq.asyncio

from lmx.protocol.errors import ErrorCode, ProtocolError
from lmx.protocol.messages.data import Cancel, Generate, Refused, Sampling
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.states import MediaForm, MediaKind
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.sockets import Role, open_socket
from lmx.worker.service.data import DataService, check_media
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
