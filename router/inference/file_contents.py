"""Puts the contents of files that a request names in the place of their ids: the machine that
answers it has not the files."""

import asyncio
import base64

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import MediaKind
from lmx.router.byte_budget import ByteShare
from lmx.router.inference.named_files import file_for_request
from lmx.router.media.sniff import form_of, kind_of
from lmx.router.peers.named_files import NamedPart
from lmx.router.schema.requests.conversation.documents import text_of
from lmx.router.schema.requests.conversation.media import KINDS
from lmx.router.services import SERVICES

_BY_KIND = {
    MediaKind.IMAGE: "image_url",
    MediaKind.AUDIO: "audio_url",
    MediaKind.VIDEO: "video_url",
}


async def give_contents(
    request: web.Request, parts: list[NamedPart], machine: str, held: ByteShare
) -> None:
    """Change these parts of a request's body, which is for another machine. The files have as many
    bytes as a body may, as the text that they are then, which is counted in ``held``.

    Raises :class:`RequestError` that names the part: as :func:`file_for_request`, for too many
    bytes, for too many files, and for a part that is no known place for a file; and QUEUE_FULL.
    """
    services = request.app[SERVICES]
    most_bytes, most = services.spec.body_limit_bytes, services.spec.media.max_items
    wanted = [part for part in parts if not part.has_content]
    left_bytes = most_bytes
    for number, named in enumerate(wanted):
        row, stored = await file_for_request(request, str(named.holder["file_id"]), named.param)
        size_bytes = (row.bytes + 2) // 3 * 4
        left_bytes -= size_bytes
        if left_bytes < 0 or number >= most:
            raise RequestError(
                ErrorCode.REQUEST_TOO_LARGE,
                f"`{named.param}` is too much: the model is on the machine {machine}, to which "
                f"files go in the body of the request, {most} (media.max_items) and "
                f"{most_bytes} bytes at most (server.body_limit_bytes). Send less, or ask that "
                "machine.",
                param=named.param,
            )
        held.grow(size_bytes)
        if not await asyncio.to_thread(_given, named, await stored.read(), row.filename):
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"`{named.param}` names a file of this machine, and the model is on the machine "
                f"{machine}: send the content of the file.",
                param=named.param,
            )


def _given(named: NamedPart, content: bytes, filename: str) -> bool:
    """Put the content of the file in the place of its id. False: nobody knows how, for a part
    of this type. Raises :class:`lmx.protocol.errors.RequestError` for a document that is no
    text."""
    part, holder, kind = named.part, named.holder, named.part.get("type")
    if holder is part.get("source"):
        return _source_given(named, content)
    if holder is part and kind == "input_image":
        holder["image_url"] = _data_url(content)
    elif kind == "file" and holder is part.get("file") and (media := kind_of(content)):
        name = _BY_KIND[media]
        part.clear()
        part.update({"type": name, name: {"url": _data_url(content)}})
        return True
    elif holder is (part if kind == "input_file" else part.get("file")):
        holder["file_data"] = _data_url(content)
        holder["filename"] = holder.get("filename") or filename
    elif kind in KINDS and holder is part.get(kind):
        name = "data" if kind == "input_audio" else "url"
        holder[name] = _base64(content) if name == "data" else _data_url(content)
    else:
        return False
    del holder["file_id"]
    return True


def _source_given(named: NamedPart, content: bytes) -> bool:
    match named.part.get("type"):
        case "image":
            form = form_of(content)
            media_type = f"image/{form.value if form else 'png'}"
            given = {"type": "base64", "media_type": media_type, "data": _base64(content)}
        case "document":
            text = text_of(content, named.param)
            given = {"type": "text", "media_type": "text/plain", "data": text}
        case _:
            return False
    named.holder.clear()
    named.holder.update(given)
    return True


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _data_url(content: bytes) -> str:
    form, kind = form_of(content), kind_of(content)
    media_type = "text/plain" if form is None or kind is None else f"{kind.value}/{form.value}"
    return f"data:{media_type};base64,{_base64(content)}"
