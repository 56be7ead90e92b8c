"""The pieces of which picture, sound and video files are made, each with whatever it is to say."""

import io
import struct
import zlib
from collections.abc import Iterable
from typing import Final

from PIL import Image, ImageDraw


def png_chunk(name: bytes, data: bytes) -> bytes:
    """Return one chunk of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


PNG_HEAD: Final = b"\x89PNG\r\n\x1a\n"


def png(width: int, height: int, *more: bytes, rows: bytes | None = None, depth: int = 8) -> bytes:
    """Return a grey PNG file; ``rows``: its data before they are compressed."""
    head = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    data = rows if rows is not None else b"\0" * ((width * depth + 7) // 8 + 1) * height
    chunks = [png_chunk(b"IHDR", head), *more]
    chunks += [png_chunk(b"IDAT", zlib.compress(data, 9)), png_chunk(b"IEND", b"")]
    return PNG_HEAD + b"".join(chunks)


def box(name: bytes, *parts: bytes) -> bytes:
    """Return one box of an MP4 file."""
    data = b"".join(parts)
    return struct.pack(">I", len(data) + 8) + name + data


def riff(form: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a RIFF file: WAV, AVI, WebP."""
    body = b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
        for name, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + form + body


def wav_of(tag: int, channels: int, rate_hz: int, bits: int, data: bytes) -> bytes:
    """Return a WAV file that says this of its samples."""
    step = max(1, channels * bits // 8) & 0xFFFF
    head = struct.pack("<HHIIHH", tag, channels, rate_hz, rate_hz, step, bits)
    return riff(b"WAVE", (b"fmt ", head), (b"data", data))


def avi_of(codec: bytes, width: int, height: int, frames: Iterable[bytes]) -> bytes:
    """Return an AVI file of 10 frames a second."""
    chunks = list(frames)
    main = struct.pack("<14I", 100_000, 0, 0, 0, len(chunks), 0, 1, 0, width, height, 0, 0, 0, 0)
    stream = (
        b"vids"
        + codec
        + struct.pack(
            "<IHHIIIIIIIIHHHH",
            0,
            0,
            0,
            0,
            1,
            10,
            0,
            len(chunks),
            0,
            0,
            0,
            0,
            0,
            width & 0xFFFF,
            height & 0xFFFF,
        )
    )
    form = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 24, codec, 0, 0, 0, 0, 0)
    strl = b"strl" + _riff_chunk(b"strh", stream) + _riff_chunk(b"strf", form)
    hdrl = b"hdrl" + _riff_chunk(b"avih", main) + _riff_chunk(b"LIST", strl)
    movi = b"movi" + b"".join(_riff_chunk(b"00dc", data) for data in chunks)
    return riff(b"AVI ", (b"LIST", hdrl), (b"LIST", movi))


def _riff_chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def element(number: str, data: bytes, reported: int | None = None) -> bytes:
    """Return one element of a Matroska file."""
    length = len(data) if reported is None else reported
    return bytes.fromhex(number) + struct.pack(">Q", length | 1 << 56) + data


def matroska(*elements: bytes) -> bytes:
    """Return a file with these elements in its segment."""
    head = element("1A45DFA3", element("4282", b"matroska"))
    return head + element("18538067", b"".join(elements))


def flac_silence(seconds: int, rate_hz: int) -> bytes:
    """Return a FLAC file of silence; 65,535 samples of it take 15 bytes."""
    samples, block = seconds * rate_hz, 65_535
    info = struct.pack(">HH", block, block) + b"\0" * 6
    info += struct.pack(">Q", rate_hz << 44 | 15 << 36 | samples) + b"\0" * 16
    parts = [b"fLaC", bytes([0x80]), struct.pack(">I", len(info))[1:], info]
    for number in range(-(-samples // block)):
        head = bytes([0xFF, 0xF8, 0x70, 0x08]) + chr(number).encode("utf-8", "surrogatepass")
        head += struct.pack(">H", block - 1)
        frame = head + bytes([_crc(head, 0x07, 8)]) + b"\0\0\0"
        parts.append(frame + struct.pack(">H", _crc(frame, 0x8005, 16)))
    return b"".join(parts)


def _crc(data: bytes, polynomial: int, bits: int) -> int:
    value, top = 0, 1 << (bits - 1)
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1 ^ polynomial if value & top else value << 1) & (1 << bits) - 1
    return value


def jpeg_of_scans(scans: int, side: int) -> bytes:
    """Return a progressive JPEG file whose last scan comes again and again."""
    buffer = io.BytesIO()
    image = Image.new("L", (side, side), 255)
    ImageDraw.Draw(image).ellipse((0, 0, side, side), fill=0)
    image.save(buffer, "JPEG", progressive=True, quality=1)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + b"\xff\xd9"


def tiff(*entries: tuple[int, int, int, int], next_ifd: int = 0, more: bytes = b"") -> bytes:
    """Return a TIFF file of one directory of (tag, type, count, value)."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return (
        b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + struct.pack("<I", next_ifd) + more
    )


def tiff_of(width: int, height: int, *more: tuple[int, int, int, int], next_ifd: int = 0) -> bytes:
    """Return a TIFF file of a grey picture whose pixels stand at the beginning of the file."""
    reported = {
        256: (256, 4, 1, width),
        257: (257, 4, 1, height),
        258: (258, 3, 1, 8),
        259: (259, 3, 1, 1),
        262: (262, 3, 1, 1),
        273: (273, 4, 1, 8),
        277: (277, 3, 1, 1),
        278: (278, 4, 1, height),
        279: (279, 4, 1, width * height & 0xFFFFFFFF),
    }
    reported |= {entry[0]: entry for entry in more}
    return tiff(*(reported[tag] for tag in sorted(reported)), next_ifd=next_ifd, more=b"\0" * 4096)


def bmp(width: int, height: int, bits: int = 24, coding: int = 0, data: bytes = b"") -> bytes:
    """Return a BMP file that says this of its pixels."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, coding, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(data), 0, 0, 54) + head + data


def gif(width: int, height: int, *blocks: bytes) -> bytes:
    """Return a GIF file of two colours."""
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", width, height, 0x80, 0, 0)
        + b"\0\0\0\xff\xff\xff"
        + (b"".join(blocks) + b";")
    )


def gif_frame(width: int, height: int, left: int = 0) -> bytes:
    """Return one frame of 1 pixel's data."""
    return b"," + struct.pack("<HHHHB", left, 0, width, height, 0) + b"\x02\x02\x44\x01\0"
