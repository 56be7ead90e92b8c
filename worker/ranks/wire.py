"""Messages on the stream socket between two ranks: each after four bytes that hold its length."""

import socket
import struct
from collections.abc import Iterator
from typing import Any, Final

from lmx.protocol.errors import ProtocolError
from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES, decode, encode

_LENGTH: Final = struct.Struct(">I")

READ_BYTES: Final = 1 << 16
"""How much is read from a socket at a time."""


def send(stream: socket.socket, message: Any) -> None:
    """Send a registered message. Blocks while the other side reads nothing. Raises ``OSError`` if
    it is gone."""
    payload = encode(message)
    stream.sendall(_LENGTH.pack(len(payload)) + payload)


class Incoming:
    """Puts the parts that a socket delivers together to messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def take(self, part: bytes) -> Iterator[Any]:
        """Yield the messages that are complete with this part. Raises :class:`ProtocolError` for
        what is no message."""
        self._data += part
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a rank announced a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            payload = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            yield decode(payload).message
