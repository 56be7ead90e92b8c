"""Files that a request names by their ids: those of its own key alone, and what they are."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate
from lmx.protocol.messages.tasks import Tokenize
from lmx.protocol.states import MediaKind
from lmx.router.files.stored_bytes import StoredBytes
from lmx.router.files.tables import FileRow
from lmx.router.http.outcome import CONTEXT
from lmx.router.media.inline import too_large
from lmx.router.media.sniff import HEAD_BYTES, kind_of
from lmx.router.media.source import MediaSource, NamedFile, PartSource
from lmx.router.schema.requests.conversation.documents import (
    MOST_FILE_BYTES,
    document_text,
    text_of,
)
from lmx.router.schema.requests.conversation.turns import content_of
from lmx.router.schema.validation import invalid, short
from lmx.router.services import SERVICES

FILE_ID: Final = re.compile(r"file-[0-9a-f]{24}")
_FOR_REQUESTS: Final = ("user_data", "vision", "assistants")

_Asked = TypeVar("_Asked", Generate, Tokenize)


def missing_file(file_id: str, param: str) -> RequestError:
    """Return the error (404) for a file that is not there, or is another key's. The words are
    OpenAI's."""
    shown = short(file_id)[1:-1]
    return RequestError(ErrorCode.NOT_FOUND, f"No such File object: {shown}", param=param)


async def named_file(request: web.Request, file_id: str, param: str) -> FileRow:
    """Return the record of a file of the request's key. Raises NOT_FOUND, which names ``param``."""
    row = None
    if FILE_ID.fullmatch(file_id):
        row = await request.app[SERVICES].files.get(file_id, request[CONTEXT].owner)
    if row is None:
        raise missing_file(file_id, param)
    return row


async def file_for_request(
    request: web.Request, file_id: str, param: str
) -> tuple[FileRow, StoredBytes]:
    """Return a file of the request's key that a model may read, and its bytes. Raises NOT_FOUND,
    and :class:`RequestError` for a file with another purpose; both name ``param``."""
    row = await named_file(request, file_id, param)
    if row.purpose not in _FOR_REQUESTS:
        raise invalid(
            param,
            f"names a file with the purpose {row.purpose!r}: upload it with the purpose "
            "'user_data'.",
        )
    held = await request.app[SERVICES].files.hold(row)
    if held is None:
        raise missing_file(file_id, param)
    return row, held


async def with_files(
    request: web.Request, asked: _Asked, sources: Sequence[PartSource]
) -> tuple[_Asked, tuple[MediaSource, ...]]:
    """Return what is asked of a worker, and where its media come from, with the files that
    ``sources`` name: a text stands in the messages then, anything else is one of the media. From
    here on the request has the files, though they are deleted.

    Raises :class:`RequestError` that names the part: NOT_FOUND, and what is said of inline content.
    """
    named = [one for one in sources if isinstance(one, NamedFile)]
    if not named:
        return asked, tuple(one for one in sources if isinstance(one, MediaSource))
    services = request.app[SERVICES]
    services.media.check_number(sources)
    most_text_bytes = services.spec.body_limit_bytes
    media: list[MediaSource] = []
    parts: list[dict[str, Any]] = []
    """What stands for each of the sources."""
    for source in sources:
        found = await _found(request, source) if isinstance(source, NamedFile) else source
        if isinstance(found, MediaSource):
            parts.append({"type": found.kind.value, "media": len(media)})
            media.append(found)
            continue
        most_text_bytes -= len(found.encode())
        if most_text_bytes < 0:
            raise _too_much_text(source.param, services.spec.body_limit_bytes)
        parts.append({"type": "text", "text": found})
    assert asked.messages is not None, "only messages have files"
    messages = tuple(_placed(message, parts) for message in asked.messages)
    return replace(asked, messages=messages), tuple(media)


async def _found(request: web.Request, named: NamedFile) -> MediaSource | str:
    """Return the media or the document that a file is."""
    services = request.app[SERVICES]
    row, held = await file_for_request(request, named.file_id, named.param)
    kind = await _kind(held, named)
    if kind is None:
        if row.bytes > MOST_FILE_BYTES:
            raise _too_much_text(named.param, MOST_FILE_BYTES)
        text = await asyncio.to_thread(text_of, await held.read(), named.param)
        return document_text(text, _notes(named, row.filename))
    if row.bytes > (most_bytes := services.spec.media.max_item_bytes):
        raise too_large(named.param, most_bytes)
    # A part that may be anything has fields for a video.
    seen = named.seen if len(named.kinds) == 1 or kind is MediaKind.VIDEO else {}
    return MediaSource(kind, named.param, "", file=held, **seen)


async def _kind(held: StoredBytes, named: NamedFile) -> MediaKind | None:
    """Return what a file is taken for. Whether it is that is checked where it is read."""
    if len(named.kinds) == 1:
        (kind,) = named.kinds
        return kind
    return kind_of(await asyncio.to_thread(held.head, HEAD_BYTES))


def _notes(named: NamedFile, filename: str) -> Sequence[tuple[str, str | None]]:
    if not named.shows_name:
        return named.notes
    return [(name, value or filename if name == "title" else value) for name, value in named.notes]


def _placed(message: dict[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return message
    placed = (dict(parts[part["media"]]) if "media" in part else part for part in content)
    return {**message, "content": content_of(placed)}


def _too_much_text(param: str, most_bytes: int) -> RequestError:
    return RequestError(
        ErrorCode.REQUEST_TOO_LARGE,
        f"`{param}` is too large: the texts in files of a request may have {most_bytes} bytes. "
        "Send the part of it that matters.",
        param=param,
    )
