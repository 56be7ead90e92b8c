"""GET /ui/{file}: the files of the page, as they stand in the folder ``assets``; and the headers of
all pages."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from aiohttp import ETag, web

from lmx.protocol.errors import ErrorCode, RequestError

_FOLDER: Final = files(__package__) / "assets"
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "json": "application/json"}
_HEADERS: Final = {
    # A browser asks each time whether it has the newest: that costs a 304.
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}

ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<rect width="32" height="32" rx="8" fill="#2f6f5e"/>'
    '<path d="M8 8v16h6M16.5 24V14l4 5 4-5v10" fill="none" stroke="#fff" stroke-width="2.8" '
    'stroke-linecap="round" stroke-linejoin="round"/></svg>'
)


class _File(NamedTuple):
    content: bytes
    content_type: str
    etag: str


def page_headers(*sources: str) -> dict[str, str]:
    """Return the headers of a page that may load and run only what ``sources`` allow, each a
    directive of the Content Security Policy, and what this server answers to its scripts."""
    policy = (
        "default-src 'none'",
        "base-uri 'none'",
        "connect-src 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        *sources,
    )
    return {
        **_HEADERS,
        "Content-Security-Policy": "; ".join(policy),
        "Referrer-Policy": "no-referrer",
    }


@cache
def text_of(name: str) -> str:
    """Return a file of the page as text. Raises ``OSError`` if it does not exist."""
    return (_FOLDER / name).read_text("utf-8")


async def page_file(request: web.Request) -> web.Response:
    """Return a file of the page; nothing where the browser has it already."""
    found = _files().get(request.match_info["file"])
    if found is None:
        raise RequestError(ErrorCode.NOT_FOUND, "The page has no file of this name.")
    known = request.if_none_match or ()
    is_known = any(tag.value == found.etag for tag in known)
    response = web.Response(
        status=304 if is_known else 200,
        body=None if is_known else found.content,
        content_type=found.content_type,
        charset="utf-8",
        headers=_HEADERS,
    )
    response.etag = ETag(found.etag)
    return response


async def icon(request: web.Request) -> web.Response:
    """Return the picture of the page and of the browser's tab."""
    return web.Response(text=ICON, content_type="image/svg+xml", headers=_HEADERS)


@cache
def _files() -> dict[str, _File]:
    """Read the files that may be requested by name, once: nobody can name any other."""
    found = {}
    for file in _FOLDER.iterdir():
        content_type = _TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            content = file.read_bytes()
            etag = hashlib.sha256(content).hexdigest()[:16]
            found[file.name] = _File(content, content_type, etag)
    return found
