"""Sending on a zmq.asyncio socket without waiting."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import zmq
import zmq.asyncio


def send_now(socket: zmq.asyncio.Socket, payload: bytes) -> bool:
    """Send one frame; return False when the peer is not there or its queue is full.

    Never waits: with NOBLOCK the socket's future is done when it is returned, as long as
    nobody awaits a send, or polls for one, on the same socket. Goes through the asyncio socket
    and not its synchronous twin: that one would swallow the edge which tells the event loop of
    a readable socket.
    """
    sent = cast("asyncio.Future[Any]", socket.send(payload, zmq.NOBLOCK))
    error = sent.exception()
    if error is None:
        return True
    if isinstance(error, zmq.Again):
        return False
    raise error
