"""Reads images and sounds from files, for messages."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.regular_file import TooLargeError, read_regular

_MOST_BYTES: Final = 24 * 1000**2
"""A body of a request has 32 MiB by default, and base64 takes four bytes for three."""


def image_part(name: str) -> dict[str, Any]:
    """Return the part of a message that is an image. Raises :class:`OperationError`."""
    kind = mimetypes.guess_type(name)[0] or "image/png"  # lmx itself looks at the content
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{_content(name)}"}}


def audio_part(name: str) -> dict[str, Any]:
    """Return the part of a message that is a sound. Raises :class:`OperationError`."""
    form = Path(name).suffix.removeprefix(".").lower() or "wav"
    return {"type": "input_audio", "input_audio": {"data": _content(name), "format": form}}


def _content(name: str) -> str:
    if not name:
        raise OperationError(ErrorCode.MISSING_PARAMETER, "name a file")
    path = Path(name)
    try:
        return base64.b64encode(read_regular(path.expanduser(), _MOST_BYTES)).decode("ascii")
    except TooLargeError as error:
        raise OperationError(ErrorCode.MEDIA_TOO_LARGE, str(error)) from error
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise OperationError(ErrorCode.INVALID_MEDIA, f"can't read {path}: {why}") from error
