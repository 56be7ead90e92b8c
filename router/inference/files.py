"""POST and GET /v1/files, GET and DELETE /v1/files/{id}, GET /v1/files/{id}/content: files of
clients, each of them its own key's alone. Anthropic's clients ask on the same paths, and are
answered in their form."""

import asyncio
import mimetypes
import re
import time
from typing import Final, Literal

from aiohttp import web

from lmx.router.files.tables import FileRow, Page
from lmx.router.http.bodies.form import Upload, read_form
from lmx.router.http.endpoint import is_of_anthropic
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.responses import Answer, ListPage, json_page, json_value
from lmx.router.inference.named_files import FILE_ID, missing_file, named_file
from lmx.router.rendering.envelope import utc_text
from lmx.router.schema.requests.files import (
    AnthropicFilesQuery,
    FilesQuery,
    parse_anthropic_file,
    parse_file,
)
from lmx.router.schema.validation import invalid, short, validated
from lmx.router.services import SERVICES

_NAME_CHARACTERS: Final = 255
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, and those that turn the direction in which a name is read."""

_PIECE_BYTES: Final = 256 * 1024
_PAGE: Final = "page_"
_MOST_IDS: Final = 100


class FileObject(Answer):
    """A file, as OpenAI's API shows it. Times are seconds since 1970."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    """When it is removed. Null: never."""
    filename: str
    """What its client calls it."""
    purpose: Literal["assistants", "batch", "batch_output", "user_data", "vision"]
    status: Literal["processed"]
    status_details: None


class FileList(ListPage):
    """A page of files."""

    data: list[FileObject]


class DeletedFile(Answer):
    """A file that was removed."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class AnthropicFile(Answer):
    """A file, as Anthropic's API shows it."""

    id: str
    type: Literal["file"]
    filename: str
    mime_type: str
    """By its name."""
    size_bytes: int
    created_at: str
    """A time by RFC 3339."""
    expires_at: str | None
    """When it is removed. Null: never."""
    downloadable: Literal[True]


class AnthropicFileList(Answer):
    """A page of files, as Anthropic's API shows it, the newest first."""

    data: list[AnthropicFile]
    next_page: str | None
    """What the next page is requested by. Null: this is the last one."""


class AnthropicDeletedFile(Answer):
    """A file that was removed, as Anthropic's API shows it."""

    id: str
    type: Literal["file_deleted"]


async def upload_file(request: web.Request) -> web.Response:
    """Keep a file. Its bytes go to the disk as they come."""
    services, context = request.app[SERVICES], request[CONTEXT]
    files = services.files
    async with files.receive(context.requester) as (file_id, upload):
        await files.limit(upload, context.owner)
        form = await read_form(request, services.spec.files.max_file_bytes, upload)
        of_anthropic = is_of_anthropic(request)
        wanted = parse_anthropic_file(form) if of_anthropic else parse_file(form)
        now_s = int(time.time())
        lifetime_s = wanted.lifetime_s
        sent = wanted.file
        assert isinstance(sent, Upload)
        row = FileRow(
            file_id,
            context.owner,
            shown_name(_last_part(sent.filename) if of_anthropic else sent.filename),
            wanted.purpose,
            upload.size_bytes,
            now_s,
            None if lifetime_s is None else now_s + lifetime_s,
        )
        await files.add(row, upload)
    return _shown(request, row)


async def list_files(request: web.Request) -> web.Response:
    """List the files of the caller's key."""
    if is_of_anthropic(request):
        return await _list_for_anthropic(request)
    query = validated(FilesQuery, dict(request.query))
    page = None
    if query.after is None or FILE_ID.fullmatch(query.after):
        newest_first = query.order == "desc"
        page = await request.app[SERVICES].files.listed(
            Page(request[CONTEXT].owner, query.limit, query.after, newest_first, query.purpose)
        )
    if page is None:
        raise invalid("after", f"is not the id of one of the files: {short(query.after)}.")
    rows, has_more = page
    return json_page([(row.id, file_object(row)) for row in rows], has_more=has_more)


async def get_file(request: web.Request) -> web.Response:
    """Show a file, without its content."""
    return _shown(request, await _row(request))


async def delete_file(request: web.Request) -> web.Response:
    """Remove a file. A batch that reads it is not disturbed."""
    row = await _row(request)
    await request.app[SERVICES].files.delete(row)
    if is_of_anthropic(request):
        return json_value(AnthropicDeletedFile(id=row.id, type="file_deleted"))
    return json_value(DeletedFile(id=row.id, object="file", deleted=True))


async def file_content(request: web.Request) -> web.StreamResponse:
    """Send the bytes of a file."""
    return await send_file(request, await _row(request), "application/octet-stream")


async def send_file(request: web.Request, row: FileRow, media: str) -> web.StreamResponse:
    """Send the bytes of a file as of a media type. Raises NOT_FOUND if they are gone."""
    services = request.app[SERVICES]
    opened = await services.files.open(row)
    if opened is None:
        raise missing_file(row.id, "id")
    response = web.StreamResponse()
    response.content_type = media
    response.content_length = row.bytes
    try:
        await response.prepare(request)
        if request.method != "HEAD":
            while piece := await asyncio.to_thread(opened.read, _PIECE_BYTES):
                async with asyncio.timeout(services.spec.stall_timeout_s):
                    await response.write(piece)
        async with asyncio.timeout(services.spec.stall_timeout_s):
            await response.write_eof()
    except TimeoutError as error:
        if request.transport is not None:
            # Not a close, which would wait for the very buffer that nobody reads.
            request.transport.abort()
        raise ConnectionResetError("the client took nothing for too long") from error
    finally:
        await asyncio.to_thread(opened.close)
    return response


def file_object(row: FileRow) -> FileObject:
    """Return a file as a client gets it."""
    return FileObject(
        id=row.id,
        object="file",
        bytes=row.bytes,
        created_at=row.created_s,
        expires_at=row.expires_s,
        filename=row.filename,
        purpose=row.purpose,  # type: ignore[typeddict-item]  # only these are stored
        status="processed",
        status_details=None,
    )


def anthropic_file(row: FileRow) -> AnthropicFile:
    """Return a file as one of Anthropic's clients gets it."""
    kind, _ = mimetypes.guess_type(_last_part(row.filename))
    return AnthropicFile(
        id=row.id,
        type="file",
        filename=row.filename,
        mime_type=kind or "application/octet-stream",
        size_bytes=row.bytes,
        created_at=utc_text(row.created_s),
        expires_at=None if row.expires_s is None else utc_text(row.expires_s),
        downloadable=True,
    )


def _shown(request: web.Request, row: FileRow) -> web.Response:
    if is_of_anthropic(request):
        return json_value(anthropic_file(row))
    return json_value(file_object(row))


async def _list_for_anthropic(request: web.Request) -> web.Response:
    files, owner = request.app[SERVICES].files, request[CONTEXT].owner
    listed = (request.query.getall(name, []) for name in ("ids[]", "ids"))
    wanted = list(dict.fromkeys(one for ids in listed for one in ids))
    if wanted:
        if len(wanted) > _MOST_IDS:
            raise invalid("ids", f"has {len(wanted)} ids: it may have {_MOST_IDS}.")
        found = [await files.get(one, owner) for one in wanted]
        shown = [anthropic_file(row) for row in found if row is not None]
        return json_value(AnthropicFileList(data=shown, next_page=None))
    query = validated(AnthropicFilesQuery, dict(request.query))
    after = None if query.page is None else query.page.removeprefix(_PAGE)
    page = None
    if after is None or FILE_ID.fullmatch(after):
        page = await files.listed(Page(owner, query.limit, after))
    if page is None:
        raise invalid("page", f"is not the `next_page` of a page of files: {short(query.page)}.")
    rows, has_more = page
    return json_value(
        AnthropicFileList(
            data=[anthropic_file(row) for row in rows],
            next_page=f"{_PAGE}{rows[-1].id}" if has_more else None,
        )
    )


def shown_name(sent: str) -> str:
    """Return a file's name as it is stored: data, which is no path here."""
    return _UNPRINTABLE.sub("_", sent)[:_NAME_CHARACTERS] or "file"


def _last_part(name: str) -> str:
    """Return what Anthropic's API keeps of a name."""
    return name.replace("\\", "/").rsplit("/", 1)[-1] or "unnamed"


async def _row(request: web.Request) -> FileRow:
    return await named_file(request, request.match_info["id"], "id")
