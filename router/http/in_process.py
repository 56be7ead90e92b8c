"""Requests that come over no connection of their own, for the routes' own handlers: lines of
batches, and messages of a WebSocket."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from aiohttp import HttpVersion10, StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import RawRequestMessage
from aiohttp.http_writer import StreamWriter
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

_UNLIMITED_BYTES: Final = 2**40
"""The body is here already."""

_HIGH_BYTES: Final = 64 * 1024
_END_OF_HEAD: Final = b"\r\n\r\n"

SERVE: Final[web.AppKey[Callable[[web.Request], Coroutine[Any, Any, None]]]] = web.AppKey("serve")
"""Serves a request in process as any other: with every check, limit and count."""


class MemoryTransport(asyncio.Transport):
    """Takes what is written on the connection of a request in process, for a reader.

    It is HTTP/1.0: a head, then the body as it was written. Little is held: whoever writes waits,
    as with a socket, until it is read."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._held = bytearray()
        self._more = asyncio.Event()
        self._high_bytes = _HIGH_BYTES
        self._is_paused = False
        self._is_over = False

    async def read(self) -> bytes:
        """Return what was written since; nothing at the end."""
        while not self._held and not self._is_over:
            self._more.clear()
            await self._more.wait()
        found = bytes(self._held)
        self._held.clear()
        if self._is_paused:
            self._is_paused = False
            self._protocol.resume_writing()
        return found

    async def read_head(self) -> tuple[int, str, bytes]:
        """Return the status and the media type of the answer, and what has come of its body. Raises
        ``ConnectionError`` if it ends before."""
        found = b""
        while _END_OF_HEAD not in found:
            if not (piece := await self.read()):
                raise ConnectionError("the answer has no head")
            found += piece
        head, _, rest = found.partition(_END_OF_HEAD)
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = CIMultiDict(line.partition(":")[::2] for line in lines)
        media = headers.get("Content-Type", "").partition(";")[0].strip()
        return int(first.split(" ")[1]), media, rest

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_over:
            return
        self._held += data
        self._more.set()
        self._pause_if_full()

    def get_write_buffer_size(self) -> int:
        return len(self._held)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _HIGH_BYTES if high is None else high
        self._pause_if_full()

    def is_closing(self) -> bool:
        return self._is_over

    def close(self) -> None:
        """End what is read: nothing more is taken."""
        if not self._is_over:
            self._is_over = True
            self._more.set()
            self._protocol.connection_lost(None)

    def abort(self) -> None:
        self._held.clear()
        self.close()

    def _pause_if_full(self) -> None:
        if len(self._held) > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()


class _OwnProtocol(BaseProtocol):
    """What a request has in the place of its connection's."""

    ssl_context = None
    peername: Any = None
    sockname = None


async def request_in_process(
    app: web.Application,
    path: str,
    body: bytes = b"",
    *,
    headers: Mapping[str, str] | None = None,
    remote: str | None = None,
) -> web.Request:
    """Return a POST request with a JSON body, for the route of ``path``. It has no connection yet:
    :func:`connect` gives it one. ``remote`` is the address of its client."""
    loop = asyncio.get_running_loop()
    sent = CIMultiDictProxy(
        CIMultiDict(
            {
                **(headers or {}),
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
            }
        )
    )
    message = RawRequestMessage(
        "POST", path, HttpVersion10, sent, (), True, None, False, False, URL(path)
    )
    protocol = _OwnProtocol(loop)
    protocol.peername = None if remote is None else (remote, 0)
    payload = StreamReader(protocol, _UNLIMITED_BYTES, loop=loop)
    payload.feed_data(body)
    payload.feed_eof()
    task = asyncio.current_task()
    assert task is not None
    request = web.Request(
        message,
        payload,
        protocol,  # type: ignore[arg-type]  # nothing else is used of it
        StreamWriter(protocol, loop),
        task,
        loop,
    )
    match_info = await app.router.resolve(request)
    match_info.add_app(app)
    request._match_info = match_info  # as aiohttp's own application sets it
    return request


def connect(request: web.Request) -> MemoryTransport:
    """Give a request in process a connection, and return what reads its answer."""
    protocol: BaseProtocol = request.protocol
    transport = MemoryTransport(protocol)
    protocol.connection_made(transport)
    return transport
