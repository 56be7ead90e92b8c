"""What a worker and its renderer say to each other: one request, one reply, over a socket.

A request is JSON as the standard library has it, because a template's variables are any values that
clients send: halves of surrogate pairs, whole numbers beyond 64 bits, NaN. MessagePack has none of
them. A reply is plain text: the worker parses nothing that a template may have made.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

REQUEST_HEAD: Final = struct.Struct("<Q")
"""The length of what follows."""

REPLY_HEAD: Final = struct.Struct("<BQ")
"""An :class:`Outcome` and the length of what follows."""


class RenderRequest(NamedTuple):
    """A template's source and its variables. Text of more than ``most_bytes`` in UTF-8 is not sent.
    After ``timeout_s`` the renderer ends, should nobody have ended it."""

    source: str
    variables: dict[str, Any]
    most_bytes: int
    timeout_s: float

    def encode(self) -> bytes:
        """Return what travels. Raises ``RecursionError`` for variables that are nested too deeply,
        and ``ValueError`` for a number of more than 4,300 digits."""
        return json.dumps(self, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_request(payload: bytes | bytearray) -> RenderRequest:
    """Return what :meth:`RenderRequest.encode` was given; tuples come back as lists."""
    return RenderRequest(*json.loads(payload.decode("utf-8", "surrogatepass")))


class Outcome(IntEnum):
    """What a reply's bytes are."""

    TEXT = 0
    """The text, as UTF-8."""
    REFUSED = 1
    """What the template raised, in its words."""
    TOO_LONG = 2
    """The text's bytes, as a number in digits."""
    OUT_OF_MEMORY = 3
    """Nothing."""
