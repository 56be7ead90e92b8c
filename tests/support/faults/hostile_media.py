"""Files that are made to hang, crash, fill or fool whoever decodes them. All are made in memory."""

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Final, NamedTuple

import pillow_heif
from PIL import Image

from lmx.protocol.states import MediaKind
from tests.support.fakes.media_files import (
    changed,
    grey_frames,
    sine,
    sound_file,
    video_file,
    wav_file,
)
from tests.support.fakes.media_pieces import (
    PNG_HEAD,
    avi_of,
    bmp,
    box,
    element,
    flac_silence,
    gif,
    gif_frame,
    jpeg_of_scans,
    matroska,
    png,
    png_chunk,
    riff,
    tiff,
    tiff_of,
    wav_of,
)

pillow_heif.register_heif_opener()

REFUSED: Final = 400
TOO_LARGE: Final = 413
HARMLESS: Final = 200
"""What is bad in the file is not looked at: it is decoded like any other."""

HOUR_S: Final = 3600
RATE_HZ: Final = 16_000


class Hostile(NamedTuple):
    """One such file."""

    name: str
    kind: MediaKind
    form: str
    """What its first bytes, or nothing but a claim, say that it is."""
    make: Callable[[], bytes]
    ends: tuple[int, ...]
    """The status of the answer to a request with it; one of them, where libraries may differ."""


def _image(name: str, form: str, make: Callable[[], bytes], *ends: int) -> Hostile:
    return Hostile(name, MediaKind.IMAGE, form, make, ends or (REFUSED,))


def _sound(name: str, form: str, make: Callable[[], bytes], *ends: int) -> Hostile:
    return Hostile(name, MediaKind.AUDIO, form, make, ends or (REFUSED,))


def _video(name: str, form: str, make: Callable[[], bytes], *ends: int) -> Hostile:
    return Hostile(name, MediaKind.VIDEO, form, make, ends or (REFUSED,))


# --- Honest files, which are then changed ---------------------------------------------------------


@cache
def picture(form: str, side: int = 64) -> bytes:
    """Return an honest picture."""
    image = Image.effect_noise((side, side), 60).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, {"heic": "HEIF"}.get(form, form.upper()))
    return buffer.getvalue()


@cache
def clip(form: str) -> bytes:
    """Return an honest video."""
    container = {"mkv": "matroska"}.get(form, form)
    codec = {"webm": "libvpx", "avi": "mpeg4"}.get(form, "libx264")
    return video_file(grey_frames(10), 10, container=container, codec=codec)


@cache
def music(form: str) -> bytes:
    """Return an honest sound."""
    container, codec, rate = {
        "mp3": ("mp3", "libmp3lame", 44_100),
        "flac": ("flac", "flac", 44_100),
        "ogg": ("ogg", "libopus", 48_000),
        "m4a": ("ipod", "aac", 44_100),
        "aac": ("adts", "aac", 44_100),
    }[form]
    return sound_file(sine(440, 0.5, rate), rate, container, codec)


# --- Hostile ones ---------------------------------------------------------------------------------


def _noise(count: int) -> bytes:
    return random.Random(count).randbytes(count)


def _cut(file: bytes, share: float) -> bytes:
    return file[: int(len(file) * share)]


def _filled(file: bytes, start: float, end: float, value: int | None = None) -> bytes:
    first, last = int(len(file) * start), int(len(file) * end)
    middle = _noise(last - first) if value is None else bytes([value]) * (last - first)
    return file[:first] + middle + file[last:]


def _u32(value: int, offset: int = 0) -> Callable[[bytearray, int], None]:
    def change(data: bytearray, place: int) -> None:
        struct.pack_into(">I", data, place + offset, value)

    return change


def _nested(name: bytes, depth: int) -> bytes:
    return b"".join(struct.pack(">I", 8 * (depth - place)) + name for place in range(depth))


def _apng(frames: int) -> bytes:
    control = png_chunk(b"acTL", struct.pack(">II", frames, 0))
    one = struct.pack(">IIIIIHHBB", 0, 8, 8, 0, 0, 1, 10, 0, 0)
    return png(8, 8, control, *[png_chunk(b"fcTL", one)] * 2000)


def _mp4_of(*moov: bytes) -> bytes:
    return box(b"ftyp", b"isom\0\0\0\0isom") + box(b"moov", *moov) + box(b"mdat", b"\0" * 64)


FOREIGN: Final[dict[str, bytes]] = {
    "empty": b"",
    "one byte": b"\x89",
    "zeros": bytes(4096),
    "noise": _noise(4096),
    "html": b"<!DOCTYPE html><script>alert(1)</script>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "svg of entities": b'<!DOCTYPE s [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><svg>&b;</svg>',
    "zip": b"PK\x03\x04" + bytes(26) + b"PK\x05\x06" + bytes(18),
    "font": b"\0\1\0\0\0\x0a\0\x80\0\3\0 GSUB" + bytes(200),
    "pdf": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj",
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd)(r) file\n",
    "psd": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 64, 64, 8, 3) + bytes(64),
    "xpm": b'/* XPM */\nstatic char *a[] = {\n"9999 9999 2 1",\n',
    "playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/passwd\n#EXT-X-ENDLIST",
    "concatenation": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n",
    "dash": b'<?xml version="1.0"?><MPD><BaseURL>file:///etc/passwd</BaseURL></MPD>',
    "subtitles": b"1\n00:00:00,000 --> 00:00:09,000\n<img src=file:///etc/passwd>\n",
}
"""What is no picture, no sound and no video, whatever it is called."""


# fmt: off
def _foreign() -> Iterable[Hostile]:
    pictures = ("png", "jpeg", "webp", "gif", "bmp", "tiff", "heic", "avif")
    tracks = ("mp4", "mp3", "wav", "mkv", "ogg", "avi", "flac", "aac")
    for place, (name, data) in enumerate(FOREIGN.items()):
        form, track = pictures[place % len(pictures)], tracks[place % len(tracks)]
        yield _image(f"{name} as {form}", form, partial(lambda data: data, data))
        yield _sound(f"{name} as {track}", track, partial(lambda data: data, data))
        yield _video(
            f"{name} in a video", ("mp4", "mkv", "avi")[place % 3], partial(lambda data: data, data)
        )


def _truncated() -> Iterable[Hostile]:
    for form in ("png", "jpeg", "webp", "gif", "bmp", "tiff", "heic", "avif"):
        for share in (0.02, 0.3, 0.7):
            yield _image(
                f"{form} cut at {share:.0%}", form,
                partial(lambda form, share: _cut(picture(form), share), form, share))
        yield _image(
            f"{form} overwritten", form,
            partial(lambda form: _filled(picture(form), 0.05, 0.9), form), REFUSED, HARMLESS,
            TOO_LARGE)
    for form in ("mp4", "mkv", "webm", "avi", "mov"):
        for share in (0.01, 0.1, 0.6):
            yield _video(
                f"{form} cut at {share:.0%}", form,
                partial(lambda form, share: _cut(clip(form), share), form, share),
                *((REFUSED,) if share < 0.1 else (REFUSED, HARMLESS)))
        yield _video(
            f"{form} overwritten", form, partial(lambda form: _filled(clip(form), 0.03, 0.9), form),
            REFUSED, HARMLESS)
    for form in ("mp3", "flac", "ogg", "m4a", "aac"):
        yield _sound(f"{form} cut at its head", form, partial(lambda form: music(form)[:10], form))
        yield _sound(
            f"{form} overwritten", form,
            partial(lambda form: _filled(music(form), 0.02, 0.95), form), REFUSED, HARMLESS)


def _pictures() -> Iterable[Hostile]:
    text = b"Comment\0\0" + zlib.compress(bytes(50_000_000), 9)
    yield _image(
        "png of 900 million pixels", "png",
        lambda: png(30_000, 30_000, rows=bytes(30_000), depth=1), TOO_LARGE)
    yield _image(
        "png of 2^62 pixels", "png", lambda: png(2**31 - 1, 2**31 - 1, rows=b"\0" * 99), TOO_LARGE)
    yield _image("png of one row", "png", lambda: png(100_000, 1))
    yield _image("png of one column", "png", lambda: png(1, 100_000))
    yield _image("png of no width", "png", lambda: png(0, 10))
    yield _image(
        "png without a head", "png",
        lambda: PNG_HEAD + png_chunk(b"IDAT", zlib.compress(b"\0" * 99)))
    yield _image(
        "png with two heads", "png",
        lambda: png(64, 64, png_chunk(b"IHDR", struct.pack(">IIBBBBB", 9**9, 9**9, 8, 0, 0, 0, 0))),
        REFUSED, TOO_LARGE)
    yield _image("png without data", "png", lambda: png(64, 64, rows=b""))
    yield _image(
        "png whose data are not packed", "png",
        lambda: png(64, 64).replace(b"IDAT\x78", b"IDAT\x99"))
    yield _image("png of a text of 50 MB", "png", lambda: png(8, 8, png_chunk(b"zTXt", text)))
    yield _image(
        "png of many texts", "png",
        lambda: png(
            8, 8, *[png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000), 9))] * 100
        ))
    yield _image(
        "png of a profile of 50 MB", "png", lambda: png(8, 8, png_chunk(b"iCCP", text)), REFUSED,
        HARMLESS)
    yield _image(
        "png of remarks in XMP that expand", "png",
        lambda: png(8, 8, png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + text[9:])))
    yield _image(
        "png whose data are a bomb", "png", lambda: png(8, 8, rows=bytes(50_000_000)), HARMLESS)
    yield _image("png of 4 billion frames", "png", lambda: _apng(2**32 - 1), REFUSED, HARMLESS)
    yield _image(
        "gif of 200,000 frames", "gif", lambda: gif(8, 8, *[gif_frame(8, 8)] * 200_000), HARMLESS,
        REFUSED)
    yield _image(
        "gif of 4 billion pixels", "gif", lambda: gif(65_535, 65_535, gif_frame(9, 9)), TOO_LARGE)
    yield _image(
        "gif with a frame of 4 billion pixels", "gif", lambda: gif(8, 8, gif_frame(65_535, 65_535)),
        TOO_LARGE)
    yield _image("gif without frames", "gif", lambda: gif(8, 8))
    yield _image("gif that is a script", "gif", lambda: b"GIF89a=1;alert(1)//" + b"a" * 99)
    yield _image(
        "gif of endless remarks", "gif",
        lambda: gif(8, 8, b"!\xfe" + (b"\xff" + b"a" * 255) * 200_000 + b"\0"))
    yield _image(
        "jpeg of 4 billion pixels", "jpeg",
        lambda: changed(picture("jpeg"), b"\xff\xc0", _u32(0xFFDCFFDC, 3)), TOO_LARGE)
    yield _image(
        "jpeg of no height", "jpeg",
        lambda: changed(picture("jpeg"), b"\xff\xc0", _u32(0x00000040, 3)))
    yield _image("jpeg of thousands of scans", "jpeg", lambda: jpeg_of_scans(6_000, 2000))
    yield _image(
        "jpeg that is a page", "jpeg",
        lambda: b"\xff\xd8\xff\xe0<html><script>alert(1)</script></html>")
    yield _image(
        "jpeg of heads alone", "jpeg", lambda: b"\xff\xd8" + b"\xff\xe1\xff\xff" + bytes(65_533))
    yield _image(
        "jpeg with an archive behind it", "jpeg", lambda: picture("jpeg") + FOREIGN["zip"] * 100,
        HARMLESS)
    yield _image(
        "jpeg with remarks that go in circles", "jpeg",
        lambda: _with_exif(b"MM\0*\0\0\0\x08\0\x01\x87\x69\0\4\0\0\0\1\0\0\0\x08\0\0\0\x08"),
        HARMLESS)
    yield _image(
        "jpeg whose remarks have 65,535 entries", "jpeg",
        lambda: _with_exif(
            b"MM\0*\0\0\0\x08\xff\xff" + b"\1\x12\0\2\xff\xff\xff\xff\0\0\0\x08" * 5000
        ), HARMLESS)
    yield _image(
        "webp of 268 million pixels", "webp",
        lambda: riff(b"WEBP", (b"VP8L", b"\x2f" + struct.pack("<I", 0x0FFFFFFF) + bytes(99))),
        REFUSED, TOO_LARGE)
    yield _image(
        "webp of 2^48 pixels", "webp",
        lambda: riff(b"WEBP", (b"VP8X", b"\2\0\0\0" + b"\xff" * 6), (b"ANIM", bytes(6))), REFUSED,
        TOO_LARGE)
    yield _image(
        "webp whose length lies", "webp",
        lambda: changed(
            picture("webp"),
            b"RIFF",
            lambda data, place: struct.pack_into("<I", data, place, 0xFFFFFFF0),
        ), REFUSED, HARMLESS)
    yield _image("bmp of 4 billion pixels", "bmp", lambda: bmp(65_535, 65_535), TOO_LARGE)
    yield _image(
        "bmp of 2^62 pixels", "bmp", lambda: bmp(2**31 - 1, -(2**31) + 1), REFUSED, TOO_LARGE)
    yield _image("bmp of less than no width", "bmp", lambda: bmp(-9, 9), REFUSED, TOO_LARGE)
    yield _image("bmp of no bits", "bmp", lambda: bmp(9, 9, bits=0))
    yield _image("bmp in an unknown coding", "bmp", lambda: bmp(9, 9, coding=99))
    yield _image(
        "bmp of runs that never end", "bmp", lambda: bmp(6000, 6000, 8, 1, b"\xff\x01" * 100),
        REFUSED, HARMLESS, TOO_LARGE)
    yield _image("tiff of 2^64 pixels", "tiff", lambda: tiff_of(2**32 - 1, 2**32 - 1), TOO_LARGE)
    yield _image("tiff without tags", "tiff", lambda: tiff())
    yield _image(
        "tiff of tags of 4 billion values", "tiff", lambda: tiff_of(64, 64, (273, 4, 2**32 - 1, 8)))
    yield _image(
        "tiff whose strips are elsewhere", "tiff", lambda: tiff_of(64, 64, (273, 4, 1, 2**32 - 1)))
    yield _image(
        "tiff whose directories go in circles", "tiff", lambda: tiff_of(32, 32, next_ifd=8),
        HARMLESS)
    yield _image(
        "tiff of tiles of no size", "tiff",
        lambda: tiff_of(64, 64, (322, 4, 1, 0), (323, 4, 1, 0), (324, 4, 1, 8), (325, 4, 1, 64)),
        REFUSED, HARMLESS)
    yield _image("tiff of an unknown coding", "tiff", lambda: tiff_of(64, 64, (259, 3, 1, 34_925)))
    yield _image("tiff of 65,535 samples", "tiff", lambda: tiff_of(64, 64, (277, 3, 1, 65_535)))
    yield _image("heic of a name alone", "heic", lambda: box(b"ftyp", b"heic\0\0\0\0heicmif1"))
    yield _image(
        "heic of 2^62 pixels", "heic",
        lambda: changed(picture("heic"), b"ispe\0\0\0\0", _u32(0x7FFFFFFF)), REFUSED, TOO_LARGE,
        HARMLESS)
    yield _image(
        "heic of boxes in boxes", "heic",
        lambda: box(b"ftyp", b"heic\0\0\0\0heic") + _nested(b"iprp", 50_000))
    yield _image("avif of a name alone", "avif", lambda: box(b"ftyp", b"avif\0\0\0\0avifmif1"))
    yield _image(
        "avif whose items are elsewhere", "avif",
        lambda: changed(picture("avif"), b"iloc", _u32(0xFFFFFFFF, 12)), REFUSED, HARMLESS)
    for reported, real in (
        ("jpeg", "png"),
        ("png", "jpeg"),
        ("webp", "bmp"),
        ("gif", "tiff"),
        ("tiff", "gif"),
        ("bmp", "webp"),
        ("heic", "avif"),
    ):
        yield _image(
            f"{real} that is called {reported}",
            reported,
            partial(lambda real: picture(real), real),
        )


def _with_exif(exif: bytes) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG", exif=b"Exif\0\0" + exif)
    return buffer.getvalue()


def _sounds() -> Iterable[Hostile]:
    tone = wav_file(sine(440, 0.5, RATE_HZ), RATE_HZ)
    yield _sound("wav without samples", "wav", lambda: wav_of(1, 1, RATE_HZ, 16, b""))
    yield _sound("wav of no rate", "wav", lambda: wav_of(1, 1, 0, 16, bytes(999)))
    yield _sound("wav of one sample a second", "wav", lambda: wav_of(1, 1, 1, 8, bytes(999)))
    yield _sound(
        "wav of 4 billion samples a second", "wav", lambda: wav_of(1, 1, 2**32 - 1, 16, bytes(999)))
    yield _sound("wav of no channels", "wav", lambda: wav_of(1, 0, RATE_HZ, 16, bytes(999)))
    yield _sound(
        "wav of 65,535 channels", "wav", lambda: wav_of(1, 65_535, RATE_HZ, 8, bytes(65_535 * 4)))
    yield _sound("wav of no bits", "wav", lambda: wav_of(1, 1, RATE_HZ, 0, bytes(999)))
    yield _sound(
        "wav of an unknown codec", "wav", lambda: wav_of(0x1234, 1, RATE_HZ, 16, bytes(999)))
    yield _sound(
        "wav whose length is 4 GiB", "wav",
        lambda: wav_file(sine(440, 0.5, RATE_HZ), RATE_HZ, 0xFFFFFFFF), HARMLESS)
    yield _sound(
        "wav of no numbers", "wav", lambda: wav_of(3, 1, RATE_HZ, 32, b"\xff\xff\xff\x7f" * 999),
        HARMLESS)
    yield _sound(
        "wav of an hour", "wav", lambda: wav_of(1, 1, 1000, 8, bytes(HOUR_S * 1000)), REFUSED,
        TOO_LARGE)
    yield _sound(
        "flac of ten hours in 66 kB", "flac", lambda: flac_silence(10 * HOUR_S, 8000), TOO_LARGE)
    yield _sound(
        "flac that lies about its length", "flac",
        lambda: changed(
            music("flac"),
            b"fLaC",
            lambda data, place: struct.pack_into(">I", data, place + 18, 0xFFFFFFFF),
        ), REFUSED, HARMLESS)
    yield _sound(
        "flac of a picture that is not there", "flac", lambda: b"fLaC\x06\xff\xff\xff" + bytes(999))
    yield _sound(
        "mp3 of remarks of 256 MB", "mp3", lambda: b"ID3\4\0\0\x7f\x7f\x7f\x7f" + music("mp3"))
    yield _sound(
        "mp3 of signs of frames alone", "mp3", lambda: b"\xff\xfb\x90\x64" * 50_000, REFUSED,
        HARMLESS)
    yield _sound(
        "mp3 with a playlist in its remarks", "mp3",
        lambda: b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + FOREIGN["playlist"])
    yield _sound(
        "ogg of pages without an end", "ogg",
        lambda: (b"OggS\0\0" + bytes(20) + b"\xff" + b"\xff" * 255 + bytes(255 * 255)) * 20)
    yield _sound("ogg of a head alone", "ogg", lambda: music("ogg")[:60])
    yield _sound(
        "aac of noise", "aac", lambda: b"\xff\xf1\x50\x80\x43\xff\xfc" * 9 + _noise(9999), REFUSED,
        HARMLESS)
    yield _sound(
        "m4a whose samples are elsewhere", "m4a",
        lambda: changed(music("m4a"), b"stco", _u32(0xFFFFFF00, 8)))
    yield _sound(
        "wav within a wav within a wav", "wav",
        lambda: riff(b"WAVE", (b"LIST", riff(b"WAVE", (b"LIST", tone)))))
    yield _sound("a video without sound for a sound", "mp4", lambda: clip("mp4"))


def _videos() -> Iterable[Hostile]:
    big = changed(picture("jpeg"), b"\xff\xc0", _u32(0xFFDCFFDC, 3))
    yield _video(
        "avi of frames of 4 billion pixels", "avi", lambda: avi_of(b"MJPG", 64, 48, [big] * 5),
        REFUSED, TOO_LARGE)
    yield _video(
        "avi that says 4 billion pixels", "avi",
        lambda: avi_of(b"MJPG", 65_000, 65_000, [picture("jpeg")] * 5), REFUSED, TOO_LARGE,
        HARMLESS)
    yield _video("avi of one row", "avi", lambda: avi_of(b"DIB ", 60_000, 1, [bytes(180_000)] * 3))
    yield _video(
        "avi of 100,000 frames", "avi", lambda: avi_of(b"DIB ", 2, 2, [bytes(16)] * 100_000),
        TOO_LARGE)
    for codec in (b"MPNG", b"SCPR", b"tscc", b"ZMBV", b"IV50", b"FFVH"):
        yield _video(
            f"avi of the codec {codec.decode()}", "avi",
            partial(lambda codec: avi_of(codec, 64, 48, [_noise(999)] * 5), codec))
    yield _video("avi without frames", "avi", lambda: avi_of(b"MJPG", 64, 48, []))
    yield _video("mp4 of a name alone", "mp4", lambda: box(b"ftyp", b"isom\0\0\0\0isom"))
    yield _video(
        "mp4 of boxes in boxes", "mp4",
        lambda: box(b"ftyp", b"isom\0\0\0\0isom") + _nested(b"moov", 100_000))
    yield _video("mp4 of tracks in tracks", "mp4", lambda: _mp4_of(_nested(b"trak", 100_000)))
    yield _video(
        "mp4 of thousands of tracks", "mp4",
        lambda: _mp4_of(
            *[box(b"trak", box(b"mdia", box(b"hdlr", bytes(8) + b"vide" + bytes(13))))] * 20_000
        ), REFUSED, TOO_LARGE)
    yield _video(
        "mp4 of a box of 2^63 bytes", "mp4",
        lambda: (
            box(b"ftyp", b"isom\0\0\0\0isom") + struct.pack(">I4sQ", 1, b"moov", 2**63) + bytes(99)
        ))
    yield _video(
        "mp4 of 4 billion samples", "mp4",
        lambda: changed(clip("mp4"), b"stsz", _u32(0xFFFFFFFF, 8)), REFUSED, HARMLESS)
    yield _video(
        "mp4 of 4 billion times", "mp4", lambda: changed(clip("mp4"), b"stts", _u32(0xFFFFFFFF, 4)),
        REFUSED, TOO_LARGE, HARMLESS)
    yield _video(
        "mp4 of frames that last for years", "mp4",
        lambda: changed(clip("mp4"), b"stts", _u32(0x7FFFFFFF, 12)), TOO_LARGE)
    yield _video(
        "mp4 whose head says years", "mp4",
        lambda: changed(clip("mp4"), b"mvhd", _u32(0xFFFFFFFF, 16)), HARMLESS)
    yield _video(
        "mp4 of a clock that stands", "mp4", lambda: changed(clip("mp4"), b"mdhd", _u32(0, 12)),
        REFUSED, HARMLESS, TOO_LARGE)
    yield _video(
        "mp4 whose frames are elsewhere", "mp4",
        lambda: changed(clip("mp4"), b"stco", _u32(0xFFFFFF00, 8)))
    yield _video(
        "mp4 whose pictures are in another file", "mp4",
        lambda: _with_reference(b"url \0\0\0\0file:///etc/passwd\0"), REFUSED, HARMLESS)
    yield _video(
        "mov whose pictures are in another file", "mov",
        lambda: _with_reference(b"alis\0\0\0\0" + bytes(10) + b"/etc/passwd".ljust(130, b"\0")),
        REFUSED, HARMLESS)
    yield _video("mp4 of sound for a video", "m4a", lambda: music("m4a"))
    yield _video(
        "mkv of elements in elements", "mkv",
        lambda: matroska(bytes.fromhex("1654AE6701FFFFFFFFFFFFFF") * 50_000))
    yield _video(
        "mkv of an element of 2^56 bytes", "mkv", lambda: matroska(element("1654AE67", b"", 2**55)))
    yield _video(
        "mkv of thousands of tracks", "mkv",
        lambda: matroska(
            element(
                "1654AE67",
                element("AE", element("D7", b"\1") + element("83", b"\1") + element("86", b"V_VP8"))
                * 20_000,
            )
        ))
    yield _video(
        "mkv of an unknown codec", "mkv",
        lambda: matroska(
            element(
                "1654AE67",
                element(
                    "AE",
                    element("D7", b"\1")
                    + element("73C5", b"\1")
                    + element("83", b"\1")
                    + element("86", b"V_EVIL/1"),
                ),
            )
        ))
    yield _video("webm of no tracks", "webm", lambda: matroska(element("1F43B675", b"")))
    yield _video("mkv with a playlist for a video", "mkv", lambda: matroska(FOREIGN["playlist"]))
# fmt: on


def _with_reference(reference: bytes) -> bytes:
    """Return a video whose track refers to another file."""
    file = clip("mp4")
    old = b"url \0\0\0\1"
    place = file.index(old)
    # Nothing behind it moves: what stood there becomes shorter by what is more.
    return file[:place] + reference[: len(old)] + file[place + len(old) :]


def hostile_media() -> list[Hostile]:
    """Return all of them."""
    return [*_pictures(), *_sounds(), *_videos(), *_truncated(), *_foreign()]
