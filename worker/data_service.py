"""The worker's data socket: messages of routers in, outputs and pulses out."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, Final

import structlog
import zmq

from lmx.protocol.codec import decode, encode
from lmx.protocol.data import Cancel, Credit, Generate
from lmx.protocol.endpoints import RunDirectory
from lmx.protocol.errors import ProtocolError
from lmx.protocol.sockets import Role, open_socket
from lmx.worker.generations import Generations
from lmx.worker.zmq_reader import ZmqReader

log = structlog.get_logger()

# For the last words of a stream when the process ends: a local peer takes them at once.
_LINGER_MS: Final = 200


class DataService:
    """Binds ``w-<instance>`` and speaks for :class:`Generations`. Event loop only.

    A router that can't be reached (gone, or its queue full) loses all its streams.
    """

    def __init__(self, context: zmq.Context[Any], directory: RunDirectory, instance: str) -> None:
        self._path: Path = directory.worker_socket(instance)
        self._socket = open_socket(context, Role.DATA_SERVER)
        self._socket.bind(directory.worker(instance))

    def start(self, generations: Generations) -> None:
        """Take messages from now on."""
        self._generations = generations
        self._reader = ZmqReader(self._socket, self._take)

    def send(self, router: bytes, message: Any) -> None:
        """Send one message; if its router can't take it, cancel all that router's streams."""
        try:
            self._socket.send_multipart((router, encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (errno.EHOSTUNREACH, zmq.EAGAIN):
                raise
            log.warning("router.unreachable", router=router.hex(), reason=error.strerror)
            self._generations.cancel_router(router)
        self._reader.check()

    def close(self) -> None:
        """Close the socket and remove its file; what was sent has a moment to go."""
        self._reader.close(_LINGER_MS)
        self._path.unlink(missing_ok=True)

    def _take(self, frames: list[bytes]) -> None:
        try:
            if len(frames) < 2:
                raise ProtocolError("a message has an identity and a payload")
            message = decode(frames[1]).message
        except ProtocolError as error:
            log.warning("data.bad_frame", reason=error.message)
            return
        router = frames[0]
        match message:
            case Generate():
                self._generations.generate(router, message)
            case Credit(stream_id, deltas):
                self._generations.credit(router, stream_id, deltas)
            case Cancel(stream_id):
                self._generations.cancel(router, stream_id)
            case _:
                log.warning("data.unexpected", kind=type(message).__name__)
