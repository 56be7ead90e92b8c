"""Decodes the bodies of requests that come compressed.

aiohttp would do it too: in steps that are as long as what comes of one piece that was received, up
to a hundred megabytes, and with error texts of its own about encodings that it has no library for.
"""

import zlib
from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import StreamReader, web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.event_loop import yield_to_loop

_DECODED: Final = ("deflate", "gzip", "x-gzip")
_PIECE_BYTES: Final = 2**18
"""How much is decoded at a time: a millisecond's work."""

_MOST_MEMBERS: Final = 10_000
"""How many streams of gzip one body may be joined of. Each is a step of its own, also one of which
nothing comes."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_ZLIB_METHOD: Final = 8
"""The low half of the first byte of a zlib stream. Some clients send `deflate` without its
header."""


def encoding_of(request: web.Request) -> str:
    """Return the encoding of a request's body. Raises UNSUPPORTED_MEDIA_TYPE for one that is not
    decoded here."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in _DECODED:
        raise RequestError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding {encoding[:40]!r} is not supported: send the body as it is, or "
            "with deflate, gzip.",
        )
    return encoding


async def decoded(content: StreamReader, encoding: str, limit_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body's bytes as they come, in pieces; others get their turn between the pieces of one
    that is compressed. ``limit_bytes`` is what the body may have when it is decoded, so that it may
    not have more before.

    Raises ``zlib.error`` for one that can't be decoded or is not whole.
    """
    if encoding == "identity":
        async for chunk in content.iter_any():
            yield chunk
        return
    decoder = None
    read_bytes = members = 0
    async for chunk in content.iter_any():
        read_bytes += len(chunk)
        left = chunk
        while left:
            if decoder is None or decoder.eof:
                members += 1
                if members > _MOST_MEMBERS:
                    raise zlib.error("too many members")
                decoder = _decoder(encoding, left[0])
            piece = decoder.decompress(left, _PIECE_BYTES)
            left = decoder.unused_data or decoder.unconsumed_tail
            yield piece
            while not left and len(piece) == _PIECE_BYTES:
                piece = decoder.decompress(b"", _PIECE_BYTES)
                yield piece
            await yield_to_loop()
        if read_bytes > limit_bytes:
            raise zlib.error("longer before it is decoded than it may be then")
    if decoder is not None and not decoder.eof:
        raise zlib.error("not whole")


def _decoder(encoding: str, first_byte: int) -> Any:
    """Return an object of :func:`zlib.decompressobj`, whose type has no public name."""
    if encoding != "deflate":
        return zlib.decompressobj(_GZIP)
    is_bare = first_byte & 0xF != _ZLIB_METHOD
    return zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS)
