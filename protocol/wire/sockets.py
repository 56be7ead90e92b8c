"""Every zmq socket option that lmx sets, in one table, with the reason for each. What the
supervisor listens with is its own (``supervisor/sockets/connections.py``)."""

from __future__ import annotations

import errno
from enum import Enum
from typing import Any, Final

import zmq

from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES


class Role(Enum):
    """What a socket is for; picks its type and options."""

    CONTROL_CLIENT = "control client"
    CONTROL_ASKER = "control asker"
    EVENTS_CLIENT = "events client"
    DATA_SERVER = "data server"
    DATA_CLIENT = "data client"


_COMMON: Final[dict[int, int]] = {
    zmq.LINGER: 0,  # a process that ends must end: nobody waits for an unread message
    zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
}
_ROUTER: Final[dict[int, int]] = {
    # Without it a message to a peer that has gone is dropped in silence; with it the send
    # fails with EHOSTUNREACH (gone) or EAGAIN (its queue is full).
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
        # IMMEDIATE: queue nothing for a supervisor that is not there, a send then fails at
        # once (EAGAIN). Yesterday's beats are of no use to the next one.
        _RECONNECT | {zmq.IMMEDIATE: 1, zmq.SNDHWM: 1000, zmq.RCVHWM: 1000},
    ),
    # Without IMMEDIATE, as below: an answer may be the supervisor's last word, as to
    # `restart --supervisor`. Who asks looks at the supervisor's lock to know that it is there.
    Role.CONTROL_ASKER: (zmq.DEALER, _RECONNECT | {zmq.SNDHWM: 1000, zmq.RCVHWM: 1000}),
    Role.EVENTS_CLIENT: (zmq.SUB, _RECONNECT | {zmq.RCVHWM: 10_000}),
    # A step's output is one message per router: 10,000 is minutes of a reader that is gone
    # in all but name, and the pulse would have found it by then.
    Role.DATA_SERVER: (zmq.ROUTER, _ROUTER | {zmq.SNDHWM: 10_000, zmq.RCVHWM: 10_000}),
    # Without IMMEDIATE: a DEALER that has it forgets what it has received, but not yet read,
    # as soon as its peer closes, and a worker's last words are worth reading.
    Role.DATA_CLIENT: (zmq.DEALER, _RECONNECT | {zmq.SNDHWM: 10_000, zmq.RCVHWM: 10_000}),
}


def open_socket(context: zmq.Context[Any], role: Role, identity: bytes | None = None) -> Any:
    """Return a socket of the role's type with its options set, neither bound nor connected.

    Works for ``zmq.Context`` and ``zmq.asyncio.Context`` alike: the result is of the
    context's own socket class.
    """
    kind, options = _TABLE[role]
    socket = context.socket(kind)
    for option, value in (_COMMON | options).items():
        socket.setsockopt(option, value)
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    return socket


def send_nowait(socket: Any, *frames: bytes) -> bool:
    """Send one message on a ``zmq.asyncio`` socket; False if it was not taken.

    Not taken means: the peer has gone, is not there yet, or its queue is full. Any other
    failure raises ``zmq.ZMQError``. Never waits: with NOBLOCK the future is done when it is
    returned, as long as nobody awaits a send, or polls for one, on the same socket. Goes
    through the asyncio socket and not its synchronous twin, which would swallow the edge that
    tells the event loop of a readable socket.
    """
    error = socket.send_multipart(frames, flags=zmq.NOBLOCK).exception()
    if error is None:
        return True
    if isinstance(error, zmq.ZMQError) and error.errno in (zmq.EAGAIN, errno.EHOSTUNREACH):
        return False
    raise error
