"""The worker's control socket: it sends facts and beats, and receives orders."""

import time
from typing import Any, Final, Protocol

import structlog
import zmq.asyncio

from lmx.protocol.errors import ProtocolError
from lmx.protocol.messages.control import BeatSeen, Drain, Identify, Pressure, Welcome
from lmx.protocol.messages.ranks import FollowersRefused, FollowersStarted
from lmx.protocol.states import MemoryPressure
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.protocol.wire.sockets import Role, open_socket, send_nowait

log = structlog.get_logger()

# This is for the last fact (LoadFailed, Drained) of a process that ends.
_LINGER_MS: Final = 200


class ControlOrders(Protocol):
    """The orders that a supervisor can give a worker."""

    def welcome(self) -> None:
        """The supervisor has accepted Hello: load the model, unless that has begun."""

    def identify(self) -> None:
        """This supervisor is new: send Hello."""

    def drain(self, if_idle: bool) -> None:
        """Accept no new stream. With ``if_idle`` only if nothing is in flight."""

    def pressure(self, level: MemoryPressure) -> None:
        """The machine's memory runs short, or no longer does."""

    def seen(self, computing_watts: float | None) -> None:
        """A beat has arrived; the power is that of :class:`BeatSeen`."""

    def followers(self, answer: FollowersStarted | FollowersRefused) -> None:
        """Other machines have started their ranks of the model, or one has not."""


class ControlLink:
    """A DEALER socket that outlives supervisors: it reconnects by itself. Event loop only.

    ``last_received_s`` is when a supervisor last sent anything (monotonic clock).
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        directory: RunDirectory,
        instance: str,
        orders: ControlOrders,
    ) -> None:
        self._orders = orders
        self.last_received_s = time.monotonic()
        self._socket = open_socket(context, Role.CONTROL_CLIENT, f"w:{instance}".encode())
        self._socket.connect(directory.control)

    def send(self, message: Any) -> bool:
        """Send if a supervisor is connected; return whether the message was sent.

        A message that can't be sent is not kept: beats repeat themselves, and a new supervisor
        learns the rest from the Hello that it asks for. Nothing is sent after :meth:`close`,
        because a load may outlast the link.
        """
        return not self._socket.closed and send_nowait(self._socket, encode(message))

    async def listen(self) -> None:
        """Carry out orders until cancelled. A frame that is no message is logged and dropped."""
        while True:
            self._handle(await self._socket.recv())

    def close(self) -> None:
        """Close the socket; messages that were sent get a moment to leave."""
        self._socket.close(linger=_LINGER_MS)

    def _handle(self, payload: bytes) -> None:
        try:
            message = decode(payload).message
        except ProtocolError as error:
            log.warning("control.bad_frame", reason=error.message)
            return
        self.last_received_s = time.monotonic()
        match message:
            case Welcome():
                self._orders.welcome()
            case Identify():
                self._orders.identify()
            case Drain(if_idle):
                self._orders.drain(if_idle)
            case Pressure(level):
                self._orders.pressure(level)
            case BeatSeen(computing_watts=watts):
                self._orders.seen(watts)
            case FollowersStarted() | FollowersRefused():
                self._orders.followers(message)
            case _:
                log.warning("control.unexpected", kind=type(message).__name__)
