"""Every zmq socket option that lmx sets, in one table, with the reason for each. The sockets on
which the supervisor listens are not zmq's (``supervisor/sockets/connections.py``)."""

import errno
from enum import Enum
from typing import Any, Final

import zmq

from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES


class Role(Enum):
    """What a socket is for. It decides the socket's type and options."""

    CONTROL_CLIENT = "control client"
    CONTROL_REQUESTER = "control requester"
    EVENTS_CLIENT = "events client"
    DATA_SERVER = "data server"
    DATA_CLIENT = "data client"


_COMMON: Final[dict[int, int]] = {
    zmq.LINGER: 0,  # the end of a process must not wait for messages that nobody reads
    zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
}
_ROUTER: Final[dict[int, int]] = {
    # Without it a message to a peer that has gone is dropped silently. With it the send fails
    # with EHOSTUNREACH (the peer has gone) or EAGAIN (its queue is full).
    zmq.ROUTER_MANDATORY: 1,
    # A peer that reconnects under its old identity takes over from its dead connection.
    zmq.ROUTER_HANDOVER: 1,
}
_RECONNECT: Final[dict[int, int]] = {
    zmq.RECONNECT_IVL: 50,  # ms; a restarted supervisor is found again within a beat
    zmq.RECONNECT_IVL_MAX: 500,  # ms
}

_TABLE: Final[dict[Role, tuple[int, dict[int, int]]]] = {
    Role.CONTROL_CLIENT: (
        zmq.DEALER,
        # IMMEDIATE: nothing is queued for a supervisor that is not there, so that a send fails at
        # once (EAGAIN). Old heartbeats are of no use to the next supervisor.
        _RECONNECT | {zmq.IMMEDIATE: 1, zmq.SNDHWM: 1000, zmq.RCVHWM: 1000},
    ),
    # Without IMMEDIATE, for the reason below: an answer may be the supervisor's last message, as
    # that to `restart --supervisor`. A client sees by the supervisor's lock that it is there.
    Role.CONTROL_REQUESTER: (zmq.DEALER, _RECONNECT | {zmq.SNDHWM: 1000, zmq.RCVHWM: 1000}),
    Role.EVENTS_CLIENT: (zmq.SUB, _RECONNECT | {zmq.RCVHWM: 10_000}),
    # The output of a step is one message for each router. 10,000 messages are minutes without a
    # reader, and the pulse would have noticed that by then.
    Role.DATA_SERVER: (zmq.ROUTER, _ROUTER | {zmq.SNDHWM: 10_000, zmq.RCVHWM: 10_000}),
    # Without IMMEDIATE: as soon as its peer closes, a DEALER with it drops what it has received
    # and not yet read, and the last messages of a worker are worth reading.
    Role.DATA_CLIENT: (zmq.DEALER, _RECONNECT | {zmq.SNDHWM: 10_000, zmq.RCVHWM: 10_000}),
}


def open_socket(context: zmq.Context[Any], role: Role, identity: bytes | None = None) -> Any:
    """Return a socket of the role's type with its options set, neither bound nor connected.

    It works for ``zmq.Context`` and for ``zmq.asyncio.Context``. The result is of the context's own
    socket class.
    """
    kind, options = _TABLE[role]
    socket = context.socket(kind)
    for option, value in (_COMMON | options).items():
        socket.setsockopt(option, value)
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    return socket


def send_nowait(socket: Any, *frames: bytes) -> bool:
    """Send one message on a ``zmq.asyncio`` socket, and return whether it was taken.

    It is not taken if the peer has gone, is not there yet, or has a full queue. Any other failure
    raises ``zmq.ZMQError``. This never waits: with NOBLOCK the future is done when it is returned,
    as long as nobody awaits a send, or polls for one, on the same socket. It uses the asyncio
    socket and not its synchronous twin, which would consume the edge that tells the event loop
    about a readable socket.
    """
    error = socket.send_multipart(frames, flags=zmq.NOBLOCK).exception()
    if error is None:
        return True
    if isinstance(error, zmq.ZMQError) and error.errno in (zmq.EAGAIN, errno.EHOSTUNREACH):
        return False
    raise error
