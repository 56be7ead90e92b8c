"""Samples as the bytes of a file that grows. PyAV is imported by the formats that need it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lmx.protocol.messages.speech import SoundFormat

if TYPE_CHECKING:
    import numpy as np

_ENDLESS: Final = 0xFFFFFFFF
"""The length in a WAV header that is written before the end is known."""


class SoundFile(Protocol):
    """A file that is written from its beginning to its end. One thread at a time."""

    def add(self, samples: np.ndarray[Any, Any]) -> bytes:
        """Return the next bytes, with which nearly all samples (int16) are out."""

    def end(self) -> bytes:
        """Return the last bytes. Called once, and nothing else after it."""


def begin_file(format_: SoundFormat, rate_hz: int) -> SoundFile:
    """Return a file of one channel."""
    if format_ in (SoundFormat.WAV, SoundFormat.PCM):
        return _Plain(_wav_header(rate_hz) if format_ is SoundFormat.WAV else b"")
    return _Encoded(_CODECS[format_], rate_hz)


class _Plain:
    """The samples themselves."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def add(self, samples: np.ndarray[Any, Any]) -> bytes:
        header, self._header = self._header, b""
        return header + samples.astype("<i2").tobytes()

    def end(self) -> bytes:
        return self._header


class _Codec(NamedTuple):
    container: str
    codec: str
    bits_per_s: int | None
    options: dict[str, str]


_CODECS: Final = {
    SoundFormat.MP3: _Codec("mp3", "libmp3lame", 64_000, {"write_xing": "0"}),
    SoundFormat.OPUS: _Codec("ogg", "libopus", 32_000, {"page_duration": "200000"}),
    SoundFormat.AAC: _Codec("adts", "aac", 64_000, {}),
    SoundFormat.FLAC: _Codec("flac", "flac", None, {}),
}


class _Encoded:
    """What an encoder of FFmpeg makes of them. Its packets are written at once."""

    def __init__(self, codec: _Codec, rate_hz: int) -> None:
        import av

        self._sink = _Sink()
        options = {"flush_packets": "1", **codec.options}
        self._container: Any = av.open(self._sink, "w", format=codec.container, options=options)
        stream: Any = self._container.add_stream(codec.codec, rate=rate_hz, layout="mono")
        if codec.bits_per_s is not None:
            stream.bit_rate = codec.bits_per_s
        self._stream = stream
        self._frame: Callable[..., Any] = av.AudioFrame.from_ndarray
        self._rate_hz = rate_hz
        self._position = 0

    def add(self, samples: np.ndarray[Any, Any]) -> bytes:
        if samples.size:
            frame = self._frame(samples.reshape(1, -1), format="s16", layout="mono")
            frame.sample_rate, frame.pts = self._rate_hz, self._position
            self._position += samples.size
            self._container.mux(self._stream.encode(frame))
        return self._sink.taken()

    def end(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.taken()


class _Sink:
    """What FFmpeg writes to; it has no ``seek``, as a connection has none."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _wav_header(rate_hz: int) -> bytes:
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate_hz, 2 * rate_hz, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", _ENDLESS, b"WAVE")
        + form
        + struct.pack("<4sI", b"data", _ENDLESS)
    )
