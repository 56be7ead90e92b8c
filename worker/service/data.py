"""The worker's data socket: messages of routers in, outputs and pulses out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog
import zmq.asyncio

from lmx.protocol.errors import ProtocolError
from lmx.protocol.messages.data import Cancel, Credit, Generate
from lmx.protocol.messages.tasks import DescribeTokenizer, Detokenize, Embed, Rerank, Tokenize
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.protocol.wire.sockets import Role, open_socket, send_nowait
from lmx.worker.service.generations import Generations
from lmx.worker.service.tasks import Tasks

log = structlog.get_logger()

# For the last words of a stream when the process ends: a local peer takes them at once.
_LINGER_MS: Final = 200


class DataService:
    """Binds ``w-<instance>``; speaks for :class:`Generations` and :class:`Tasks`. Event loop only.

    ``unreachable`` is called with a router that can't be reached any more (it has gone, or its
    queue is full).
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        directory: RunDirectory,
        instance: str,
        unreachable: Callable[[bytes], None],
    ) -> None:
        self._unreachable = unreachable
        self._path: Path = directory.worker_socket(instance)
        self._socket = open_socket(context, Role.DATA_SERVER)
        self._socket.bind(directory.worker(instance))

    async def listen(self, generations: Generations, tasks: Tasks) -> None:
        """Take messages until cancelled. A frame that is no message is logged and dropped."""
        while True:
            self._take(generations, tasks, await self._socket.recv_multipart())

    def send(self, router: bytes, message: Any) -> None:
        """Send one message, or say that its router can't be reached."""
        if not send_nowait(self._socket, router, encode(message)):
            log.warning("router.unreachable", router=router.hex())
            self._unreachable(router)

    def close(self) -> None:
        """Close the socket and remove its file; what was sent has a moment to go."""
        self._socket.close(linger=_LINGER_MS)
        self._path.unlink(missing_ok=True)

    def _take(self, generations: Generations, tasks: Tasks, frames: list[bytes]) -> None:
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
                generations.generate(router, message)
            case Credit(stream_id, deltas):
                generations.credit(router, stream_id, deltas)
            case Cancel(stream_id):
                # One number is one or the other, or has ended.
                generations.cancel(router, stream_id)
                tasks.cancel(router, stream_id)
            case Embed() | Rerank() | Tokenize() | Detokenize() | DescribeTokenizer():
                tasks.take(router, message)
            case _:
                log.warning("data.unexpected", kind=type(message).__name__)
