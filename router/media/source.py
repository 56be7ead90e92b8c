"""Where an image, a sound or a video of a request comes from, before anything of it was fetched or
decoded, and what it is afterwards. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.states import MediaKind
from lmx.router.byte_budget import ByteShare

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}):")
_SHOWN: Final = 60
"""How many characters of a source an error repeats."""


class HeldFile(Protocol):
    """The bytes of a file, which stay readable though the file is deleted."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""

    async def read(self) -> bytes:
        """Return them; a second call returns the same object."""


@dataclass(frozen=True, slots=True)
class MediaSource:
    """One image, sound or video, as a part of a request names it. The fields after ``text`` are
    those of :class:`lmx.protocol.messages.media.MediaItem`."""

    kind: MediaKind

    param: str
    """The path of ``text`` in the request. Errors name it."""

    text: str = field(repr=False)
    """A URL, a data URL or base64; empty for a file."""

    detail: str = "auto"
    fps: float | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    max_frames: int | None = None
    use_audio_in_video: bool = True
    file: HeldFile | None = field(default=None, repr=False)
    """Has the bytes, in the place of ``text``."""


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a part names by its id, before anybody has looked whether it exists."""

    file_id: str
    param: str
    """The path of the id in the request. Errors name it."""

    kinds: frozenset[MediaKind | None]
    """What it may be; None is a text."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """The fields of :class:`MediaSource` after ``text``, for an image, a sound or a video."""
    notes: tuple[tuple[str, str | None], ...] = ()
    """What a model reads above a text, each note with its name."""
    shows_name: bool = False
    """Whether a text is shown with the name of its file, unless a note gives it a title."""


PartSource = MediaSource | NamedFile
"""Where the content of a part of a message comes from, as the request says it."""


@dataclass(slots=True, eq=False)
class HeldMedia:
    """The media of one request, in the order of the request. It is passed on as a whole: who kept
    ``blobs`` itself would hold the bytes after they are counted as released."""

    items: tuple[MediaItem, ...]
    blobs: tuple[bytes, ...]
    share: ByteShare

    def release(self) -> None:
        """Hold the bytes no longer: a worker has them."""
        self.blobs = ()
        self.share.release()


def is_url(source: MediaSource) -> bool:
    """Return whether a source is fetched. If not, its bytes are in it, or in a file.

    Raises :class:`RequestError` (400) for a URL of another scheme, ``file:`` above all. A path has
    no scheme: it counts as base64, and is refused where that is decoded.
    """
    # Base64 has no colon, so that a long one is not searched through.
    found = _SCHEME.match(source.text)
    scheme = found.group(1).lower() if found else "data"
    if scheme not in ("http", "https", "data"):
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`{source.param}` is a URL of the scheme '{scheme}': only http, https and data "
            f"URLs are taken, and base64. Got {shown(source.text)}.",
            param=source.param,
        )
    return scheme != "data"


def shown(text: str) -> str:
    """Return a source, cut so that an error stays readable."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."
