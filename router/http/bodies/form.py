"""Reads a request's form (``multipart/form-data``) within limits of size, time and amount. A file
stays in memory, unless the caller takes it piece by piece."""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import BodyPartReader, MultipartReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.byte_budget import ByteShare
from lmx.router.http.bodies.encoding import encoding_of
from lmx.router.http.bodies.json_body import BODY_BUDGET, arriving_in_time
from lmx.router.http.bodies.limits import ALWAYS_BYTES

_MOST_PARTS: Final = 64
_MOST_FIELD_BYTES: Final = 64 * 1024
"""The longest value of a field that is no file."""

_OVERHEAD_BYTES: Final = 64 * 1024
"""The allowance for names and boundaries in a body, besides the values."""

_MALFORMED: Final = (ValueError, AssertionError, HttpProcessingError)
"""What aiohttp raises for something that is no form. The headers of a part are read as a
request's."""

_PIECE_BYTES: Final = 256 * 1024
_SINK_S: Final = 3600.0
"""The time limit for a form whose file a sink takes; :data:`READ_DEADLINE_S` is that for each piece
of it."""

_TYPE: Final = "multipart/form-data"


@dataclass(frozen=True, slots=True, eq=False)
class Upload:
    """A file in a form."""

    content: bytes
    """Empty if a sink has taken it."""
    filename: str = ""
    """What its client calls it: never a path of this machine."""


FormField = str | Upload

READ_FORM: Final = web.RequestKey[dict[str, list[FormField]]]("read_form")
"""The form of a request that was read before its handler was called."""


class FileSink(Protocol):
    """What takes the file of a form as it comes."""

    async def write(self, piece: bytes) -> None:
        """Take more of it."""


async def read_form(
    request: web.Request, limit_bytes: int, sink: FileSink | None = None
) -> dict[str, list[FormField]]:
    """Return the fields of a form by name, each with its values in order. A list's name ends with
    ``[]``. A form has one file at most if there is a ``sink``, which takes it: it may then take up
    to an hour, as long as more of it comes.

    All files together may have ``limit_bytes``: ``media.max_item_bytes``, or for a sink
    ``files.max_file_bytes``. Raises :class:`RequestError`, and QUEUE_FULL while
    other bodies take too much memory.
    """
    if READ_FORM in request:
        found: dict[str, list[FormField]] = request.pop(READ_FORM)
        return found
    if request.content_type != _TYPE:
        raise RequestError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"The body must be a form: send it with Content-Type: {_TYPE}, not "
            f"{request.content_type[:80]!r}.",
        )
    if encoding_of(request) != "identity":
        raise RequestError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            "A form is not decoded: send it without a Content-Encoding.",
        )
    most_bytes = limit_bytes + _MOST_PARTS * _MOST_FIELD_BYTES + _OVERHEAD_BYTES
    if request.content_length is not None and request.content_length > most_bytes:
        raise _too_large("The form", limit_bytes, sink)
    try:
        with request.app[BODY_BUDGET].share(ALWAYS_BYTES) as share:
            async with asyncio.timeout(_SINK_S) if sink else arriving_in_time():
                return await _read(request, limit_bytes, share, sink)
    except TimeoutError as error:
        raise RequestError(
            ErrorCode.REQUEST_TIMEOUT, f"The form did not arrive within {_SINK_S:.0f} s."
        ) from error
    except (*_MALFORMED, web.PayloadAccessError, RequestPayloadError) as error:
        raise RequestError(
            ErrorCode.INVALID_JSON,
            "The request body is not a valid form: check its boundary, and that it is complete.",
        ) from error


async def _read(
    request: web.Request, limit_bytes: int, share: ByteShare, sink: FileSink | None
) -> dict[str, list[FormField]]:
    fields: dict[str, list[FormField]] = {}
    files = files_bytes = 0
    reader = await request.multipart()
    for _ in range(_MOST_PARTS + 1):
        try:
            async with _in_time(sink):
                part = await reader.next()
        except RuntimeError as error:
            raise ValueError("a first field `_charset_` names no character set") from error
        if part is None:
            return fields
        if isinstance(part, MultipartReader) or not part.name:
            raise ValueError("a part of a form has a name, and no further parts")
        files += part.filename is not None
        if sink is not None and files > 1:
            raise RequestError(
                ErrorCode.INVALID_VALUE, "The form has several files: send one in each request."
            )
        name = _utf8(part.name)
        value = await _value(name, part, limit_bytes, share, sink)
        if isinstance(value, Upload):
            # A form that comes in chunks does not say its size.
            files_bytes += len(value.content)
            if files_bytes > limit_bytes:
                raise _too_large("The form", limit_bytes, sink)
        fields.setdefault(name, []).append(value)
    raise RequestError(
        ErrorCode.INVALID_VALUE, f"A form may have at most {_MOST_PARTS} fields: send fewer."
    )


async def _value(
    name: str, part: BodyPartReader, limit_bytes: int, share: ByteShare, sink: FileSink | None
) -> FormField:
    is_file = part.filename is not None
    most_bytes = limit_bytes if is_file else _MOST_FIELD_BYTES
    if part.headers.get(hdrs.CONTENT_TRANSFER_ENCODING, "binary").lower() not in (
        "binary",
        "8bit",
        "7bit",
    ):
        raise RequestError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"`{name[:80]}` must be sent as it is, without a Content-Transfer-Encoding.",
            param=name[:80],
        )
    pieces: list[bytes] = []
    size_bytes = 0
    while piece := await _piece(part, sink):
        size_bytes += len(piece)
        if size_bytes > most_bytes:
            if is_file:
                raise _too_large(f"`{name[:80]}`", most_bytes, sink, name[:80])
            raise RequestError(
                ErrorCode.REQUEST_TOO_LARGE,
                f"`{name[:80]}` is larger than the limit of {most_bytes} bytes for a text.",
                param=name[:80],
            )
        if is_file and sink is not None:
            await sink.write(piece)
            continue
        share.grow(len(piece))
        pieces.append(piece)
    content = b"".join(pieces)
    if is_file:
        return Upload(content, _utf8(str(part.filename)))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            ErrorCode.INVALID_VALUE, f"`{name[:80]}` is not UTF-8.", param=name[:80]
        ) from error


def _utf8(name: str) -> str:
    """Return a name without the surrogates by which aiohttp keeps bytes that are no UTF-8: neither
    an answer nor another form can carry them."""
    return name.encode("utf-8", "replace").decode()


def _in_time(sink: FileSink | None) -> AbstractAsyncContextManager[None]:
    """Bound each wait for more of a form whose whole has an hour."""
    return nullcontext() if sink is None else arriving_in_time()


async def _piece(part: BodyPartReader, sink: FileSink | None) -> bytes:
    async with _in_time(sink):
        return await part.read_chunk(_PIECE_BYTES)


def _too_large(
    what: str, limit_bytes: int, sink: FileSink | None, param: str | None = None
) -> RequestError:
    setting = "media.max_item_bytes" if sink is None else "files.max_file_bytes"
    return RequestError(
        ErrorCode.REQUEST_TOO_LARGE,
        f"{what} is larger than the limit of {limit_bytes} bytes ({setting}).",
        param=param,
    )
