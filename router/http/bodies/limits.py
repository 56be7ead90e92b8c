"""Limits how much a body may hold. Bytes are counted before any object is made of them.

A value costs a hundred times its bytes once it is an object: 15 MiB of empty arrays took 1.5 GiB
and seconds of the event loop, in which no stream moved. Strings are cheap, however long they are.
What costs is their number, and the number of arrays, objects and numbers.
"""

from collections.abc import Iterator
from typing import Final

import jiter

from lmx.protocol.errors import ErrorCode, RequestError

MAX_VALUES: Final = 150_000
"""The most strings (names of fields included), arrays and objects in a whole body: 20,000 parts of
messages, or a thousand tools with twenty parameters each. Parsing this many takes some 20 ms."""

MAX_NUMBERS: Final = 2**20
"""The most listed values in a whole body, above all tokens. Parsing this many takes some 40 ms."""

SMALL_BYTES: Final = 2**15
"""A body of at most this size can't hold too much; it is parsed in a millisecond or two."""

_PIECE_BYTES: Final = 2**18
"""How much is counted at a time: a millisecond's work."""


def check_amounts(payload: bytes) -> Iterator[None]:
    """Count what a body holds. Each step is a millisecond's work and yields nothing.

    Raises :class:`RequestError` (400) that names the field which holds too much. Text that is not
    JSON is counted as if it was; the parser refuses it later.
    """
    quotes = containers = commas = begin = 0
    while begin < len(payload):
        end = _piece_end(payload, begin)
        # Without escapes, each quote that is left begins or ends a string.
        piece = payload[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        in_string = quotes % 2
        quotes += piece.count(b'"')
        strings = (quotes + 1) // 2
        if strings <= MAX_VALUES:  # else there may be too many pieces to cut it in
            outside = b"".join(piece.split(b'"')[in_string::2])
            containers += outside.count(b"[") + outside.count(b"{")
            commas += outside.count(b",")
        if strings + containers > MAX_VALUES:
            raise _too_many(payload[:end], MAX_VALUES, "strings, arrays and objects, names too")
        # Before a value, or between two: more of them are numbers, and the like.
        if commas > MAX_NUMBERS + MAX_VALUES:
            raise _too_many(payload[:end], MAX_NUMBERS, "numbers")
        begin = end
        yield


def _piece_end(payload: bytes, begin: int) -> int:
    """Return where a piece may end: never between a backslash and the character that it escapes."""
    end = begin + _PIECE_BYTES
    if end >= len(payload):
        return len(payload)
    start = end
    while start > begin and payload[start - 1] == 0x5C:
        start -= 1
    return end + (end - start) % 2


def _too_many(read: bytes, limit: int, what: str) -> RequestError:
    field = _last_field(read)
    where = "the body" if field is None else f"`{field}`"
    return RequestError(
        ErrorCode.INVALID_VALUE,
        f"A body may hold at most {limit} {what}, and {where} goes beyond it: send less in one "
        "request.",
        param=field,
    )


def _last_field(read: bytes) -> str | None:
    """Return the top-level field in which the beginning of a body ends; None if it ends in none."""
    try:
        value = jiter.from_json(read, partial_mode=True)
    except ValueError:
        return None
    return next(reversed(value), None) if isinstance(value, dict) else None


ALWAYS_BYTES: Final = 64 * 1024
"""The part of each body that is not counted. So a request of usual size is accepted even while
large ones have taken all the budget."""

MOST_BYTES: Final = 256 * 2**20
"""The limit for the rest of all bodies together."""
