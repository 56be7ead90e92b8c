"""The messages between a worker and its renderer: one request, one reply, over a socket.

A request is JSON as the standard library writes it, because a template's variables are any values
that clients send: halves of surrogate pairs, whole numbers beyond 64 bits, NaN. MessagePack has
none of them. A reply is plain text, so that the worker parses nothing that a template may have
made.
"""

import json
import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple

REQUEST_HEAD: Final = struct.Struct("<Q")
"""The length of the rest."""

REPLY_HEAD: Final = struct.Struct("<BQ")
"""An :class:`Outcome` and the length of the rest."""


class RenderRequest(NamedTuple):
    """A template's source and its variables."""

    source: str
    variables: dict[str, Any]
    max_bytes: int
    """A text with more bytes in UTF-8 is not sent."""
    timeout_s: float
    """After this time the renderer ends, if nobody has ended it before."""

    def encode(self) -> bytes:
        """Return the request's bytes. Raises ``RecursionError`` for variables that are nested too
        deeply, and ``ValueError`` for a number of more than 4,300 digits."""
        return json.dumps(self, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_request(payload: bytes | bytearray) -> RenderRequest:
    """Return the request of :meth:`RenderRequest.encode`; tuples come back as lists."""
    return RenderRequest(*json.loads(payload.decode("utf-8", "surrogatepass")))


class Outcome(IntEnum):
    """The meaning of a reply's bytes."""

    TEXT = 0
    """The text, as UTF-8."""
    REFUSED = 1
    """The template's own words for an error that it raised."""
    TOO_LONG = 2
    """The number of the text's bytes, in digits."""
    OUT_OF_MEMORY = 3
    """Nothing."""
