"""Detects by its first bytes what an image, a sound or a video is. Pure.

Neither a header of HTTP nor the name in a URL is asked: both come from a stranger. What the bytes
claim is checked by decoding them, which happens in a process of its own.
"""

import re
from typing import Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import MediaForm, MediaKind


def _forms(names: str) -> frozenset[MediaForm]:
    return frozenset(map(MediaForm, names.split()))


_FORMS: Final[dict[MediaKind, frozenset[MediaForm]]] = {
    MediaKind.IMAGE: _forms("png jpeg webp gif bmp tiff heic avif"),
    # Browsers and phones record sound into the containers of videos.
    MediaKind.AUDIO: _forms("wav mp3 flac ogg m4a aac mp4 webm mkv mov"),
    MediaKind.VIDEO: _forms("mp4 webm mkv avi mov"),
}
"""The forms that each kind may have."""

_BEGINNINGS: Final = (
    (b"\x89PNG\r\n\x1a\n", MediaForm.PNG),
    (b"\xff\xd8\xff", MediaForm.JPEG),
    (b"GIF87a", MediaForm.GIF),
    (b"GIF89a", MediaForm.GIF),
    (b"II*\0", MediaForm.TIFF),
    (b"MM\0*", MediaForm.TIFF),
    (b"fLaC", MediaForm.FLAC),
    (b"OggS", MediaForm.OGG),
    (b"ID3", MediaForm.MP3),
    (b"ADIF", MediaForm.AAC),
)

_RIFF: Final = {b"WEBP": MediaForm.WEBP, b"WAVE": MediaForm.WAV, b"AVI ": MediaForm.AVI}

_BRANDS: Final = {
    b"avif": MediaForm.AVIF,
    b"avis": MediaForm.AVIF,
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), MediaForm.HEIC),
    **dict.fromkeys((b"M4A ", b"M4B ", b"M4P "), MediaForm.M4A),
    b"qt  ": MediaForm.MOV,
}
"""Main brands of ISO media files; any other is a video's."""

_STILL_BRANDS: Final = frozenset({b"mif1", b"msf1", b"mif2", b"miaf"})
"""Main brands of still pictures whose coding only a further brand shows."""

_MOST_BRANDS: Final = 32
_ATOMS: Final = frozenset({b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})
"""What old QuickTime files begin with."""
_MOST_ATOM_BYTES: Final = 1 << 29

_EBML: Final = b"\x1aE\xdf\xa3"
_EBML_HEAD_BYTES: Final = 64
HEAD_BYTES: Final = 64 * 1024
"""So much of a file's beginning names its tracks, unless its end does, as in many MP4 files."""

_EBML_CODEC: Final = re.compile(rb"\x86[\x81-\xff]([AV])_")
_ISO_HANDLER: Final = re.compile(rb"hdlr.{8}(soun|vide)", re.DOTALL)
"""What is said of each track: whether it is of sound or of pictures."""

_BMP_HEADS: Final = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
"""The sizes of the second header, one for each release of the format."""

_TEXT_BYTES: Final = 256


def form_of(content: bytes) -> MediaForm | None:
    """Return the container that ``content`` begins as; None if it is of no known one."""
    for beginning, form in _BEGINNINGS:
        if content.startswith(beginning):
            return form
    head = content[:4]
    if head in (b"RIFF", b"RF64"):
        return _RIFF.get(content[8:12])
    if content[4:8] == b"ftyp":
        return _iso_form(content)
    # Their size is before them; in a text that begins with "The free", say, it is larger.
    if content[4:8] in _ATOMS and int.from_bytes(head, "big") < _MOST_ATOM_BYTES:
        return MediaForm.MOV
    if head == _EBML:
        return MediaForm.WEBM if b"webm" in content[:_EBML_HEAD_BYTES] else MediaForm.MKV
    if head[:2] == b"BM":
        known = int.from_bytes(content[14:18], "little") in _BMP_HEADS
        return MediaForm.BMP if known else None
    return _frame_form(content)


def kind_of(content: bytes) -> MediaKind | None:
    """Return what a file is by its content, or by :data:`HEAD_BYTES` of it; None if it is no image,
    sound or video. Whatever may have pictures is a video."""
    form = form_of(content)
    if form is not None and _has_sound_alone(content, form):
        return MediaKind.AUDIO
    order = (MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO)
    return next((kind for kind in order if form in _FORMS[kind]), None)


def detected_form(content: bytes, kind: MediaKind, param: str) -> MediaForm:
    """Return the container of what ``param`` has. Raises INVALID_MEDIA (400) if it is not of its
    kind."""
    form = form_of(content)
    if form is None:
        raise RequestError(
            ErrorCode.INVALID_MEDIA, f"`{param}` {_foreign(content, kind)}.", param=param
        )
    if form not in _FORMS[kind]:
        raise RequestError(
            ErrorCode.INVALID_MEDIA,
            f"`{param}` must be {kind.one} ({_listed(kind)}), and its content is {form}.",
            param=param,
        )
    return form


def _has_sound_alone(content: bytes, form: MediaForm) -> bool:
    """Return whether a container names its tracks here, and none of them has pictures."""
    if form in (MediaForm.WEBM, MediaForm.MKV):
        return set(_EBML_CODEC.findall(content[:HEAD_BYTES])) == {b"A"}
    if form not in (MediaForm.MP4, MediaForm.MOV):
        return False
    begin = content.find(b"moov") - 4
    end = begin + int.from_bytes(content[begin : begin + 4], "big")
    return (
        begin >= 0
        and end <= len(content)
        and (set(_ISO_HANDLER.findall(content[begin:end])) == {b"soun"})
    )


def _iso_form(content: bytes) -> MediaForm:
    brand = content[8:12]
    if brand in _STILL_BRANDS:
        size = min(int.from_bytes(content[:4], "big"), 16 + 4 * _MOST_BRANDS)
        further = [content[at : at + 4] for at in range(16, size, 4)]
        stills = [_BRANDS[one] for one in further if one in (b"avif", b"avis")]
        return stills[0] if stills else MediaForm.HEIC
    return _BRANDS.get(brand, MediaForm.MP4)


def _frame_form(content: bytes) -> MediaForm | None:
    """Return the form of sound that has no header of a file, but begins with a frame."""
    if len(content) < 4 or content[0] != 0xFF or content[1] & 0xE0 != 0xE0:
        return None
    if content[1] & 0xF6 == 0xF0:
        return MediaForm.AAC
    # MPEG's layer III, of a bit rate and a sample rate that there are.
    is_mp3 = content[1] & 0x06 == 0x02 and content[2] >> 4 not in (0, 15) and content[2] & 12 != 12
    return MediaForm.MP3 if is_mp3 else None


def _foreign(content: bytes, kind: MediaKind) -> str:
    """Return what content of no known form is, in words that follow its name."""
    if not content:
        return "is empty"
    head = content[:_TEXT_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(b"data:"):
        return "is a data URL inside of another one: send its content once"
    if head.startswith(b"<"):
        return "is markup (SVG, HTML or XML) and no picture of pixels: send it as PNG, say"
    if head.startswith(b"%pdf"):
        return "is a PDF: send its pages as images"
    if head.startswith((b"\x1f\x8b", b"pk\3\4")):
        return "is compressed: send what is in it"
    return f"has content of no known form: {kind.one} may be {_listed(kind)}"


def _listed(kind: MediaKind) -> str:
    return ", ".join(form.value for form in MediaForm if form in _FORMS[kind])
