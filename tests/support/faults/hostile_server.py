"""An HTTP server on loopback that answers each path with the bytes that a test wants, or with ever
more of them. It speaks HTTP by hand: a real server would not send what these tests need."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
"""What is sent: bytes, or what a coroutine function writes."""


@dataclass
class HostileServer:
    """What a test has in hand."""

    port: int
    host: str = "127.0.0.1"
    answers: dict[str, Answer] = field(default_factory=dict)
    """The answer to each path."""
    requests: list[bytes] = field(default_factory=list)
    """The heads of all requests."""
    open_connections: int = 0

    @property
    def url(self) -> str:
        """The beginning of its URLs."""
        return f"http://{self.host}:{self.port}"

    def paths(self) -> list[str]:
        """The paths that were requested, in order."""
        return [request.split(b" ", 2)[1].decode() for request in self.requests]


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def redirect(url: str, status: str = "302 Found") -> bytes:
    """An answer that leads elsewhere."""
    return answer(b"", f"Location: {url}", status=status)


@contextlib.asynccontextmanager
async def hostile_server(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[HostileServer]:
    """Serve until the end of the block."""
    server = HostileServer(0, host)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.open_connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            server.requests.append(head)
            said = server.answers.get(head.split(b" ", 2)[1].decode(), answer(b"", status="404 No"))
            if isinstance(said, bytes):
                writer.write(said)
                await writer.drain()
            else:
                writing = asyncio.ensure_future(said(writer))
                # The client leaves, or all is said.
                leaving = asyncio.ensure_future(reader.read())
                await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
                await _cancelled(writing, leaving)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            server.open_connections -= 1
            writer.close()

    listening = await asyncio.start_server(serve, host, port)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
