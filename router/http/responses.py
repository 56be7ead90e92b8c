"""Makes HTTP responses of JSON, above all of answers that are described by a class.

It also holds the base class of those answers and the units of their sizes.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from lmx.router.event_loop import yield_to_loop


@with_config(ConfigDict(strict=True, extra="forbid"))
class Answer(TypedDict):
    """An object in an answer, described where it is built. Tests see to it that an answer has these
    fields and no other; the documentation announces that more may be added."""


class Succeeded(Answer):
    """The answer of a command that is done."""

    success: bool
    message: str


class PageEnds(Answer):
    """Where a page of a list begins and ends."""

    first_id: str | None
    """The id of the page's first one; null if there is none."""
    last_id: str | None
    has_more: bool
    """Whether there are more after this page, or before it where the page before an id was
    requested."""


class ListPage(PageEnds):
    """A page of a list, as OpenAI's API shows it."""

    object: Literal["list"]


_GIB: Final = 1024**3
_MIB: Final = 1024**2


_PIECE_BYTES: Final = 256 * 1024
_NEVER_WAITS_BYTES: Final = 32 * 1024
"""This much is written into an empty buffer without waiting: asyncio's own limit is twice it."""


class _Pieces(Payload):
    """A large body, which is written in pieces: asyncio copies what the kernel does not take of a
    write, which would be most of a hundred megabytes at once."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces, content_type="application/json")
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def as_bytes(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"".join(self._value)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for whole in self._value:
            for piece in in_pieces(whole):
                await writer.write(piece)
                await yield_to_loop()


def in_pieces(whole: bytes) -> Iterator[memoryview]:
    """Yield pieces that can be written within a millisecond each."""
    view = memoryview(whole)
    for begin in range(0, len(view), _PIECE_BYTES):
        yield view[begin : begin + _PIECE_BYTES]


def takes_at_once(transport: asyncio.Transport, size_bytes: int) -> bool:
    """Return whether a write of this size does not wait, so that it needs no deadline: its client
    has taken what was written before."""
    return size_bytes < _NEVER_WAITS_BYTES and not transport.get_write_buffer_size()


def succeeded(message: str) -> web.Response:
    """Return the answer of a command that is done, with a sentence for people."""
    return json_value(Succeeded(success=True, message=message))


def page_ends(ids: Sequence[str], *, has_more: bool) -> PageEnds:
    """Return where a page with these ids begins and ends."""
    first_id, last_id = (ids[0], ids[-1]) if ids else (None, None)
    return {"first_id": first_id, "last_id": last_id, "has_more": has_more}


def json_page(shown: Sequence[tuple[str, Any]], *, has_more: bool) -> web.Response:
    """Return a page of a list as JSON: what is shown, each with its id."""
    ends = page_ends([shown_id for shown_id, _ in shown], has_more=has_more)
    return json_value({"object": "list", "data": [one for _, one in shown], **ends})


def json_pieces(pieces: Sequence[bytes]) -> web.Response:
    """Return JSON that consists of pieces, which are not joined if they are large."""
    if sum(map(len, pieces)) <= _PIECE_BYTES:
        return json_text(b"".join(pieces))
    return web.Response(body=_Pieces(pieces), content_type="application/json")


def json_value(value: Any, status: int = 200) -> web.Response:
    """Return a value as JSON."""
    return json_text(orjson.dumps(value), status)


def json_text(text: bytes, status: int = 200) -> web.Response:
    """Return text that is JSON already."""
    body = text if len(text) <= _PIECE_BYTES else _Pieces((text,))
    return web.Response(status=status, body=body, content_type="application/json")


def add_vary(response: web.StreamResponse, *names: str) -> None:
    """Declare that the response depends on headers of the request, besides those that it named
    before. A cache keeps one response for each of their values."""
    known = [name.strip() for name in response.headers.get("Vary", "").split(",") if name.strip()]
    taken = {name.lower() for name in known}
    known += [name for name in names if name.lower() not in taken]
    response.headers["Vary"] = ", ".join(known)


def to_gb(size_bytes: int) -> float:
    """Return bytes in the unit of the fields in ``_gb``. The unit is GiB: a Mac that is sold with
    128 GB of memory has 128 of them."""
    return round(size_bytes / _GIB, 4)


def to_mb(size_bytes: int) -> int:
    """Return bytes in the unit of the fields in ``_mb``: whole MiB, rounded up, so that a small
    size does not become 0."""
    return -(-size_bytes // _MIB)
