"""Listens on a unix socket for ZeroMQ peers. It ends a connection before the process runs out of
file descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from lmx.protocol.host.quarantine_file import quarantine_file
from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES
from lmx.supervisor.sockets import zmtp

log = structlog.get_logger()

_MOST_CONNECTIONS: Final = 1024
_RESERVE: Final = 16
"""This many descriptors stay free for starting processes, for files and for answers."""

_UNSENT_LIMIT_BYTES: Final = 8 * 1024**2
"""How much one peer may leave unread. A message beyond that is not sent to it."""

_BACKLOG: Final = 100
_POLL_S: Final = 0.01
_LAST_WORDS_POLLS: Final = 25

OnMessage = Callable[["Connection", zmtp.Message], None]


class Connection(asyncio.Protocol):
    """The connection of one peer. ``identity`` is empty until the peer has introduced itself."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._parser = zmtp.Parser(MAX_MESSAGE_BYTES)
        self._transport: asyncio.Transport | None = None
        self.identity = b""
        self.named = False
        self.received_at_s = 0.0
        self.spoke = False
        self.topics: set[bytes] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.received_at_s = time.monotonic()
        transport.write(zmtp.GREETING)
        transport.write(zmtp.ready_command(self._door.socket_type))
        self._door.came(self, transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            found = self._parser.feed(data)
        except zmtp.ZmtpError as error:
            log.warning("control.bad_peer", error=str(error))
            self.end()
            return
        for each in found:
            if isinstance(each, zmtp.Ready):
                self.named = each.identity != b""
                self._door.introduced(self, each.identity)
            else:
                self.received_at_s, self.spoke = time.monotonic(), True
                self._door.on_message(self, each)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._door.left(self)

    def send(self, *parts: bytes) -> bool:
        """Send a message. Returns False if the peer has gone or leaves too much unread."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > _UNSENT_LIMIT_BYTES:
            return False
        transport.write(zmtp.message_frames(parts))
        return True

    @property
    def unsent_bytes(self) -> int:
        """How much the operating system has not taken yet of what was sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Door:
    """One listening socket and its connections. The caller must hold the supervisor lock, so that a
    socket file that is there is that of an earlier supervisor.

    When descriptors run short, or there are more than a thousand connections, a new connection
    takes the place of another one that has no name: first one whose peer has sent nothing, and
    among those the one that has been silent longest. Workers and subscribers have a name.
    """

    def __init__(self, path: Path, socket_type: bytes, on_message: OnMessage) -> None:
        self.socket_type = socket_type
        self.on_message = on_message
        self._path = path
        self._numbers = itertools.count(1)
        self._connections: dict[Connection, None] = {}
        self._by_identity: dict[bytes, Connection] = {}
        self._server: asyncio.Server | None = None
        if path.is_dir():
            quarantine_file(path)
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        path.chmod(0o700)
        self._listener.listen(_BACKLOG)

    async def open(self) -> None:
        """Accept connections from here on. Those that came before have waited in the backlog."""
        loop = asyncio.get_running_loop()
        # The backlog of 1 lets asyncio accept one connection at a time, so that each is seen before
        # the next one is accepted.
        self._server = await loop.create_unix_server(
            lambda: Connection(self), sock=self._listener, backlog=1
        )
        self._listener.listen(_BACKLOG)

    def find(self, identity: bytes) -> Connection | None:
        """Return the connection of a peer, None if it has none."""
        return self._by_identity.get(identity)

    def subscribers(self, message: bytes) -> list[Connection]:
        """Return the connections that have subscribed to a message."""
        return [
            each
            for each in self._connections
            if any(message.startswith(topic) for topic in each.topics)
        ]

    async def close(self) -> None:
        """Accept no more connections, and end all of them once what was just sent has left."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        if self._server is not None:
            self._server.close()
        self._listener.close()
        self.on_message = lambda connection, message: None
        for _ in range(_LAST_WORDS_POLLS):
            if not any(each.unsent_bytes for each in self._connections):
                break
            await asyncio.sleep(_POLL_S)
        for connection in list(self._connections):
            connection.end()

    # Called by the connections.

    def came(self, connection: Connection, descriptor: int) -> None:
        """Take a new connection. The system gives the lowest free descriptor, so that the
        connection's own descriptor says how many are in use."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        short = soft != resource.RLIM_INFINITY and descriptor >= soft - _RESERVE
        self._connections[connection] = None
        if not short and len(self._connections) <= _MOST_CONNECTIONS:
            return
        others = [each for each in self._connections if each is not connection and not each.named]
        given_up = min(
            others, key=lambda each: (each.spoke, each.received_at_s), default=connection
        )
        log.warning("control.connection_ended", connections=len(self._connections), limit=soft)
        given_up.end()

    def introduced(self, connection: Connection, identity: bytes) -> None:
        """Take a peer's name. A peer that comes back under its old name takes over from its dead
        connection."""
        if not identity:
            identity = b"\0" + next(self._numbers).to_bytes(8, "big")
        known = self._by_identity.get(identity)
        connection.identity = identity
        self._by_identity[identity] = connection
        if known is not None and known is not connection:
            known.end()

    def left(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection, None)
        if self._by_identity.get(connection.identity) is connection:
            del self._by_identity[connection.identity]
