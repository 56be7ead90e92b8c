"""The worker's data socket: it receives the routers' messages, and sends outputs and pulses."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
import zmq.asyncio

from lmx.protocol.errors import ProtocolError
from lmx.protocol.messages.data import Cancel, Credit, Generate, Refused
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.messages.tasks import Task
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.protocol.wire.sockets import Role, open_socket, send_nowait
from lmx.worker.service.serving import RouterMessage

log = structlog.get_logger()

Handler = Callable[[bytes, RouterMessage, Sequence[bytes]], None]
"""Takes a router, its message and the bytes of the message's media."""

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
        self._path.chmod(0o700)

    async def listen(self, handle: Handler) -> None:
        """Call ``handle`` with each router, its message and the bytes of the message's media until
        cancelled. A frame that is no message is logged and dropped; so is a message whose media are
        not those that it announces, and its router gets a refusal."""
        while True:
            self._receive(handle, await self._socket.recv_multipart())

    def send(self, router: bytes, message: Any) -> bool:
        """Send one message. Returns False if its router is gone, or has a full queue."""
        is_sent = send_nowait(self._socket, router, encode(message))
        if not is_sent:
            log.warning("router.unreachable", router=router.hex())
        return is_sent

    def close(self) -> None:
        """Close the socket and remove its file; messages that were sent get a moment to leave."""
        self._socket.close(linger=_LINGER_MS)
        self._path.unlink(missing_ok=True)

    def _receive(self, handle: Handler, frames: list[bytes]) -> None:
        try:
            if len(frames) < 2:
                raise ProtocolError("a message has an identity and a payload")
            message = decode(frames[1]).message
        except ProtocolError as error:
            log.warning("data.bad_frame", reason=error.message)
            return
        if not isinstance(message, Generate | Task | Credit | Cancel):
            log.warning("data.unexpected", kind=type(message).__name__)
            return
        router, blobs = frames[0], frames[2:]
        try:
            check_media(message, blobs)
        except ProtocolError as error:
            log.warning("data.bad_media", reason=error.message)
            if isinstance(message, Generate | Task):
                self.send(router, Refused(message.stream_id, error.code, error.message))
            return
        handle(router, message, blobs)


def check_media(message: RouterMessage, blobs: Sequence[bytes]) -> None:
    """Raise :class:`ProtocolError` if the frames behind a message are not what it announces."""
    # Most messages have no media, and no such field.
    items: Sequence[MediaItem] = getattr(message, "media", ())
    kind = type(message).__name__
    if len(blobs) != len(items):
        raise ProtocolError(f"{kind} announces {len(items)} media, and {len(blobs)} frames came")
    for index, (item, blob) in enumerate(zip(items, blobs, strict=True)):
        if len(blob) != item.size_bytes:
            raise ProtocolError(
                f"{kind}.media[{index}] announces {item.size_bytes} bytes, and {len(blob)} came"
            )
