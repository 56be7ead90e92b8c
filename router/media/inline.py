"""Decodes media that stand in the request itself: data URLs and base64. Pure.

The text is part of a body, whose size is limited already. It is decoded in pieces, so that the
event loop has its turn between two of them.
"""

import binascii
from collections.abc import Iterator
from typing import Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.media.source import shown

_PIECE_CHARACTERS: Final = 2**20
"""How much is decoded at a time, a millisecond's work or two."""

_MOST_HEAD: Final = 256
"""How long the media type of a data URL may be."""

_REPLACED: Final = (
    *((blank, "") for blank in "\n\r \t"),
    # Base64 has characters that mean something else in a URL,
    *(("%2b", "+"), ("%2B", "+"), ("%2f", "/"), ("%2F", "/"), ("%3d", "="), ("%3D", "=")),
    # and RFC 4648 another alphabet for them.
    *(("-", "+"), ("_", "/")),
)
_LONGEST_REPLACED: Final = 3


def decoded(text: str, param: str, most_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a data URL or of base64, in pieces.

    White space, the alphabet for URLs and missing padding are accepted. Raises INVALID_MEDIA (400)
    for what is neither, and MEDIA_TOO_LARGE (413).
    """
    begin = 0
    if text[:5].lower() == "data:":
        head, comma, _ = text[:_MOST_HEAD].partition(",")
        if not comma:
            raise _invalid(param, "is a data URL without a comma before its content", text)
        if not head.lower().rstrip().endswith(";base64"):
            raise _invalid(param, "is a data URL that is not base64", text)
        begin = len(head) + 1
    size_bytes, rest = 0, ""
    while begin < len(text):
        end = begin + _PIECE_CHARACTERS
        piece, rest = _groups(rest + text[begin:end], is_last=end >= len(text))
        try:
            content = binascii.a2b_base64(piece, strict_mode=True)
        except ValueError as error:
            raise _invalid(param, f"is neither a URL nor base64 ({error})", text) from error
        size_bytes += len(content)
        if size_bytes > most_bytes:
            raise too_large(param, most_bytes)
        yield content
        begin = end


def _groups(text: str, *, is_last: bool) -> tuple[str, str]:
    """Return whole groups of base64 characters, and the text that belongs to the next ones."""
    late = 0
    if not is_last:
        # What is replaced may continue in the next piece.
        ends = range(1, _LONGEST_REPLACED)
        late = next((size for size in ends if text[-size:].startswith("%")), 0)
    piece, rest = (text[:-late], text[-late:]) if late else (text, "")
    for old, new in _REPLACED:
        if old in piece:
            piece = piece.replace(old, new)
    if is_last:
        # Padding only says how long the content is, and some writers leave it out.
        piece = piece.rstrip("=")
        return piece + "=" * (-len(piece) % 4), ""
    whole = len(piece) - len(piece) % 4
    return piece[:whole], piece[whole:] + rest


def too_large(param: str, most_bytes: int) -> RequestError:
    """Return the error for an image, a sound or a video that is too large."""
    return RequestError(
        ErrorCode.MEDIA_TOO_LARGE,
        f"`{param}` has more than {most_bytes} bytes, the limit for an image, a sound or a video "
        "(media.max_item_bytes): send a smaller one.",
        param=param,
    )


def _invalid(param: str, problem: str, text: str) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_MEDIA, f"`{param}` {problem}. Got {shown(text)}.", param=param
    )
