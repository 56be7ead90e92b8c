"""Frames from a plain zmq socket on an asyncio loop, without a future for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import zmq

# Then other callbacks of the loop get their turn.
_MESSAGES_PER_TURN: Final = 256


class ZmqReader:
    """Calls ``on_frames`` for every message of a socket, on the loop.

    A zmq descriptor is edge-triggered: it says only that something has changed. So the socket
    is read until it is empty, and whoever *sends* on it has to call :meth:`check` afterwards,
    because a send may consume the change that announced a message.
    """

    def __init__(self, socket: Any, on_frames: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._on_frames = on_frames
        self._loop = asyncio.get_running_loop()
        self._descriptor: int = socket.getsockopt(zmq.FD)
        self._scheduled = False
        self._closed = False
        self._loop.add_reader(self._descriptor, self._read)
        self.check()

    def check(self) -> None:
        """Read soon if a message waits."""
        if (
            not self._scheduled
            and not self._closed
            and self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN
        ):
            self._scheduled = True
            self._loop.call_soon(self._read)

    def close(self, linger_ms: int) -> None:
        """Stop reading and close the socket; what is unsent has ``linger_ms`` to go."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=linger_ms)

    def _read(self) -> None:
        self._scheduled = False
        for _ in range(_MESSAGES_PER_TURN):
            if self._closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frames(frames)
        self.check()
