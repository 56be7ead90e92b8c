"""Documents in a conversation: the text of a file, and how a model reads it. Pure."""

import codecs
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.media.inline import decoded
from lmx.router.schema.validation import unsupported

MOST_FILE_BYTES: Final = 9 * 2**20
_MOST_CHARACTERS: Final = MOST_FILE_BYTES // 3 * 4
"""How long a file may be as base64. It is decoded on the event loop, and hardly any model's context
holds a tenth of such a text."""

_MOST_HEAD: Final = 256
"""How long the media type of a data URL may be."""

_PDF: Final = b"%PDF-"
_ENCODINGS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""What a text may begin with, and its encoding then. Any other text is UTF-8."""


def document_text(text: str, named: Sequence[tuple[str, str | None]]) -> str:
    """Return a document as a model reads it. ``named`` is the notes on it, each with its name."""
    beginning, end = document_ends(named)
    return f"{beginning}\n{text}\n{end}"


def document_ends(named: Sequence[tuple[str, str | None]]) -> tuple[str, str]:
    """Return the lines before and after what is in such a document."""
    notes = [f"<{name}>{value}</{name}>" for name, value in named if value]
    return "\n".join(["<document>", *notes]), "</document>"


def file_text(data: str, param: str) -> str:
    """Return the text of a file that is in the request, as a data URL or in base64.

    The type of a file is detected from its content, not its name or its media type. Raises
    :class:`RequestError` for a PDF, for what is no text, and for a file that is too large.
    """
    if len(data) > _MOST_CHARACTERS:
        raise RequestError(
            ErrorCode.REQUEST_TOO_LARGE,
            f"`{param}` has {len(data)} characters, and a file may have at most "
            f"{_MOST_CHARACTERS}: send the part of it that matters.",
            param=param,
        )
    return text_of(_content(data, param), param)


def text_of(content: bytes, param: str) -> str:
    """Return the text that a file has. Raises :class:`RequestError` for a PDF, and for what is no
    text."""
    if content.lstrip()[: len(_PDF)] == _PDF:
        raise unsupported(
            param,
            "is a PDF, which is not read here: send its text as `input_text`, or its pages as "
            "images, to a model that takes images.",
        )
    encoding = next((name for mark, name in _ENCODINGS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise unsupported(
            param,
            "is no text in UTF-8 or UTF-16: of files, only texts are read here (source code, "
            "Markdown, JSON, CSV and others).",
        )
    return text


def _content(data: str, param: str) -> bytes:
    head, comma, rest = data[:_MOST_HEAD].partition(",")
    if comma and head[:5].lower() == "data:" and not head.lower().rstrip().endswith(";base64"):
        return unquote_to_bytes(rest + data[_MOST_HEAD:])
    return b"".join(decoded(data, param, len(data)))
