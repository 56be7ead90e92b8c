"""The worker's data socket: it receives the routers' messages, and sends outputs and pulses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog
import zmq.asyncio

from lmx.protocol.errors import ProtocolError
from lmx.protocol.messages.data import Cancel, Credit, Generate
from lmx.protocol.messages.tasks import Task
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.protocol.wire.sockets import Role, open_socket, send_nowait
from lmx.worker.service.serving import RouterMessage

log = structlog.get_logger()

# This is for a stream's last messages when the process ends: a local peer takes them at once.
_LINGER_MS: Final = 200


class DataService:
    """Binds ``w-<instance>``. Event loop only."""

    def __init__(
        self, context: zmq.asyncio.Context, directory: RunDirectory, instance: str
    ) -> None:
        self._path: Path = directory.worker_socket(instance)
        self._socket = open_socket(context, Role.DATA_SERVER)
        self._socket.bind(directory.worker(instance))

    async def listen(self, take: Callable[[bytes, RouterMessage], None]) -> None:
        """Call ``take`` with each router and its message until cancelled. A frame that is no
        message is logged and dropped."""
        while True:
            self._take(take, await self._socket.recv_multipart())

    def send(self, router: bytes, message: Any) -> bool:
        """Send one message. Returns False if its router can't be reached: it is gone, or its queue
        is full."""
        is_sent = send_nowait(self._socket, router, encode(message))
        if not is_sent:
            log.warning("router.unreachable", router=router.hex())
        return is_sent

    def close(self) -> None:
        """Close the socket and remove its file; messages that were sent get a moment to leave."""
        self._socket.close(linger=_LINGER_MS)
        self._path.unlink(missing_ok=True)

    def _take(self, take: Callable[[bytes, RouterMessage], None], frames: list[bytes]) -> None:
        try:
            if len(frames) < 2:
                raise ProtocolError("a message has an identity and a payload")
            message = decode(frames[1]).message
        except ProtocolError as error:
            log.warning("data.bad_frame", reason=error.message)
            return
        if isinstance(message, Generate | Task | Credit | Cancel):
            take(frames[0], message)
        else:
            log.warning("data.unexpected", kind=type(message).__name__)
