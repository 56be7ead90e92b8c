"""ZMTP 3.0, the wire protocol of ZeroMQ sockets (https://rfc.zeromq.org/spec/23/), as far as a
server needs it whose peers use libzmq. It turns bytes into values and back, and uses no sockets.

The supervisor does not use libzmq for this, because libzmq ends the whole process when there is no
descriptor left for a connection that it accepts.
"""

from dataclasses import dataclass
from typing import Final

_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_MECHANISM: Final = b"NULL".ljust(20, b"\0")
GREETING: Final = _SIGNATURE + b"\x03\x00" + _MECHANISM + bytes(32)
_GREETING_BYTES: Final = 64

_MORE, _LONG, _COMMAND = 1, 2, 4
_HANDSHAKE_LIMIT_BYTES: Final = 1024
_MOST_FRAMES: Final = 16
_LONGEST_IDENTITY: Final = 255


class ZmtpError(Exception):
    """The peer does not speak the protocol, and its connection must be closed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A peer has introduced itself."""

    socket_type: bytes
    identity: bytes
    """Empty if the peer has no identity of its own."""


Message = tuple[bytes, ...]


def ready_command(socket_type: bytes) -> bytes:
    """Return the command that follows the greeting and says what kind of socket this is."""
    name = b"Socket-Type"
    properties = _short(name) + len(socket_type).to_bytes(4, "big") + socket_type
    return frame(_short(b"READY") + properties, _COMMAND)


def message_frames(parts: Message) -> bytes:
    """Return the bytes of a message of one or more parts."""
    last = len(parts) - 1
    return b"".join(frame(part, 0 if at == last else _MORE) for at, part in enumerate(parts))


def frame(body: bytes, flags: int = 0) -> bytes:
    """Return the bytes of one frame."""
    if len(body) > 255:
        return bytes([flags | _LONG]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


class Parser:
    """Parses the bytes of one peer. It holds at most one message that is not complete yet, and no
    more than ``most_bytes`` of it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        self._greeted = False
        self._ready = False
        self._parts: list[bytes] = []
        self._parts_bytes = 0

    def feed(self, data: bytes) -> list[Ready | Message]:
        """Take bytes that have arrived, and return what is complete now. Raises
        :class:`ZmtpError`."""
        self._buffer += data
        found: list[Ready | Message] = []
        if not self._greeted and not self._take_greeting():
            return found
        at = 0
        while (frame := self._frame_at(at)) is not None:
            flags, body, at = frame
            if (taken := self._take(flags, body)) is not None:
                found.append(taken)
        del self._buffer[:at]
        return found

    def _take_greeting(self) -> bool:
        greeting = bytes(self._buffer[:_GREETING_BYTES])
        if greeting[:1] not in (b"", b"\xff"):
            raise ZmtpError("no ZMTP greeting")
        if len(greeting) < _GREETING_BYTES:
            return False
        if greeting[9] != 0x7F or greeting[10] < 3 or greeting[12:32] != _MECHANISM:
            raise ZmtpError("another version or mechanism of ZMTP")
        del self._buffer[:_GREETING_BYTES]
        self._greeted = True
        return True

    def _frame_at(self, at: int) -> tuple[int, bytes, int] | None:
        """Return the flags and the body of the frame that begins there, and where the next frame
        begins. Returns None while the frame is not complete."""
        if len(self._buffer) < at + 2:
            return None
        flags = self._buffer[at]
        if flags > (_MORE | _LONG | _COMMAND) or (flags & _COMMAND and flags & _MORE):
            raise ZmtpError("a frame with unknown flags")
        size_bytes = 8 if flags & _LONG else 1
        begin = at + 1 + size_bytes
        if len(self._buffer) < begin:
            return None
        length = int.from_bytes(self._buffer[at + 1 : begin], "big")
        most_bytes = self._most_bytes if self._ready else _HANDSHAKE_LIMIT_BYTES
        if length + self._parts_bytes > most_bytes:
            raise ZmtpError(f"a message of more than {most_bytes} bytes")
        end = begin + length
        if len(self._buffer) < end:
            return None
        return flags, bytes(self._buffer[begin:end]), end

    def _take(self, flags: int, body: bytes) -> Ready | Message | None:
        if flags & _COMMAND:
            if self._ready:
                return None  # lmx asks for no ZMTP heartbeats, and knows no other command
            self._ready = True
            return _introduction(body)
        if not self._ready:
            raise ZmtpError("a message before the introduction")
        self._parts.append(body)
        self._parts_bytes += len(body)
        if flags & _MORE:
            if len(self._parts) >= _MOST_FRAMES:
                raise ZmtpError(f"a message of more than {_MOST_FRAMES} frames")
            return None
        message = tuple(self._parts)
        self._parts, self._parts_bytes = [], 0
        return message


def _introduction(body: bytes) -> Ready:
    if not body.startswith(_short(b"READY")):
        raise ZmtpError("no introduction")
    properties: dict[bytes, bytes] = {}
    at = len(_short(b"READY"))
    while at < len(body):
        name_end = at + 1 + body[at]
        value_at = name_end + 4
        value_end = value_at + int.from_bytes(body[name_end:value_at], "big")
        if value_end > len(body):
            raise ZmtpError("a broken introduction")
        properties[body[at + 1 : name_end].lower()] = body[value_at:value_end]
        at = value_end
    identity = properties.get(b"identity", b"")
    if identity.startswith(b"\0") or len(identity) > _LONGEST_IDENTITY:
        raise ZmtpError("an invalid identity")
    return Ready(properties.get(b"socket-type", b""), identity)


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text
