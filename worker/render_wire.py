"""What a worker and its renderer say to each other: one request, one reply, over a socket.

Down go pickles, because a template's variables are any values that JSON and MessagePack have:
halves of surrogate pairs, whole numbers of any size, NaN. Up come bytes alone: a template is a
stranger's code, and nothing that it may have got hold of is to be unpickled by the worker.
"""

from __future__ import annotations

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
