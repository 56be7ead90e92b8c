"""The supervisor's two sockets: frames in and out, nothing decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
import zmq
import zmq.asyncio

from lmx.protocol import codec, control
from lmx.protocol.endpoints import RunDirectory
from lmx.protocol.errors import ErrorCode, ProtocolError
from lmx.protocol.sockets import Role, open_socket, send_nowait

log = structlog.get_logger()
_FAILED: Final = control.Denied(
    ErrorCode.INTERNAL, "the supervisor failed on this: see `lmx-supervisor logs`"
)
OnMessage = Callable[[bytes, Any, int], None]


class ControlServer:
    """Binds ``control`` and ``events``. The caller holds the supervisor lock already: zmq
    would take the paths of a running supervisor without an error."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._context = zmq.asyncio.Context()
        self._control = open_socket(self._context, Role.CONTROL_SERVER)
        self._events = open_socket(self._context, Role.EVENTS_SERVER)
        self._control.bind(run.control)
        self._events.bind(run.events)

    async def serve(self, on_message: OnMessage) -> None:
        """Hand every message to ``on_message(identity, message, correlation)`` until
        cancelled. A frame that is no message is logged and dropped, and so is what a bug
        makes of one that is."""
        while True:
            frames = await self._control.recv_multipart()
            if len(frames) < 2:
                continue
            try:
                envelope = codec.decode(frames[1])
            except ProtocolError as error:
                log.warning("control.bad_frame", error=error.message)
                continue
            try:
                on_message(frames[0], envelope.message, envelope.correlation)
            except Exception:
                # One message that trips over a bug must not end every model.
                log.exception("control.message_failed", kind=type(envelope.message).__name__)
                if envelope.correlation:
                    self.send(frames[0], _FAILED, envelope.correlation)

    def send(self, identity: bytes, message: Any, correlation: int = 0) -> None:
        """Send to one peer; a peer that has gone is a fact of life, logged at debug."""
        if not send_nowait(self._control, identity, codec.encode(message, correlation)):
            log.debug("control.unreachable", peer=repr(identity), kind=type(message).__name__)

    def publish(self, message: Any) -> None:
        """Send to every subscriber there is."""
        send_nowait(self._events, codec.encode(message))

    async def close(self) -> None:
        """Close both sockets, after giving what was just sent a moment to leave. Nobody connects
        meanwhile: what they ask would be lost, and the next program's socket is there soon."""
        self._control.unbind(self._run.control)
        await asyncio.sleep(0.05)
        self._context.destroy(linger=200)
