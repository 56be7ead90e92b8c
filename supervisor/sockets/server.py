"""The supervisor's two sockets: messages come in and go out. Nothing is decided here."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, ProtocolError
from lmx.protocol.messages import control
from lmx.protocol.wire import codec
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.supervisor.sockets.connections import Connection, Door
from lmx.supervisor.sockets.zmtp import Message

log = structlog.get_logger()
_FAILED: Final = control.Denied(ErrorCode.INTERNAL, "the supervisor failed on this: see `lmx logs`")
_SUBSCRIBE: Final = b"\x01"
_UNSUBSCRIBE: Final = b"\x00"
_MOST_TOPICS: Final = 100
OnMessage = Callable[[bytes, Any, int], None]


class ControlServer:
    """Binds ``control``, a ROUTER, and ``events``, an XPUB, for peers that are ZeroMQ sockets. The
    caller must hold the supervisor lock, because it removes the sockets of an earlier
    supervisor."""

    def __init__(self, run: RunDirectory) -> None:
        self._control = Door(run.control_socket, b"ROUTER", self._take)
        self._events = Door(run.events_socket, b"XPUB", _subscribe)
        self._on_message: OnMessage | None = None

    async def serve(self, on_message: OnMessage) -> None:
        """Hand every message to ``on_message(identity, message, correlation)`` until cancelled. A
        frame that is not a message is logged and dropped. An exception of ``on_message`` is logged,
        and the question gets an error as its reply."""
        self._on_message = on_message
        try:
            await self._events.open()
            await self._control.open()
            await asyncio.get_running_loop().create_future()
        finally:
            self._on_message = None

    def send(self, identity: bytes, message: Any, correlation: int = 0) -> None:
        """Send to one peer. That a peer has gone is normal, and is logged at the level debug."""
        peer = self._control.find(identity)
        if peer is None or not peer.send(codec.encode_any(message, correlation)):
            log.debug("control.unreachable", peer=repr(identity), kind=type(message).__name__)

    def publish(self, message: Any) -> None:
        payload = codec.encode_any(message)
        for subscriber in self._events.subscribers(payload):
            subscriber.send(payload)

    async def close(self) -> None:
        """Close both sockets, after what was just sent has had a moment to leave. Nobody can
        connect meanwhile: their questions would be lost, and the next program's socket is there
        soon."""
        await self._control.close()
        await self._events.close()

    def _take(self, peer: Connection, frames: Message) -> None:
        if self._on_message is None:
            return
        try:
            envelope = codec.decode(frames[0])
        except ProtocolError as error:
            log.warning("control.bad_frame", error=error.message)
            return
        try:
            self._on_message(peer.identity, envelope.message, envelope.correlation)
        except Exception:
            # One message that trips over a bug must not end every model.
            log.exception("control.message_failed", kind=type(envelope.message).__name__)
            if envelope.correlation:
                self.send(peer.identity, _FAILED, envelope.correlation)


def _subscribe(peer: Connection, frames: Message) -> None:
    request, topic = frames[0][:1], frames[0][1:]
    if request == _SUBSCRIBE and len(peer.topics) < _MOST_TOPICS:
        peer.topics.add(topic)
        peer.named = True
    elif request == _UNSUBSCRIBE:
        peer.topics.discard(topic)
