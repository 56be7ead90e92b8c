"""Containers of sounds and videos, by PyAV, which is FFmpeg."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, Final

# PyAV would import the last ones when they are needed, and then no file can be opened any more.
import av
import av.audio.codeccontext
import av.audio.stream
import av.logging
import av.subtitles.codeccontext
import av.subtitles.stream
import av.video.codeccontext
import av.video.stream
from av.container import InputContainer
from av.stream import Stream

from lmx.protocol.states import MediaForm
from lmx.worker.media.decoding.result import RefusedError

DEMUXERS: Final[Mapping[MediaForm, str]] = {
    MediaForm.WAV: "wav",
    MediaForm.MP3: "mp3",
    MediaForm.FLAC: "flac",
    MediaForm.OGG: "ogg",
    MediaForm.AAC: "aac",
    MediaForm.M4A: "mov",
    MediaForm.MP4: "mov",
    MediaForm.MOV: "mov",
    MediaForm.WEBM: "matroska",
    MediaForm.MKV: "matroska",
    MediaForm.AVI: "avi",
}
"""The one demuxer that reads a form. FFmpeg has some that open other files, by lists of names
(playlists, concatenations): none of them is here, and none is chosen by the content."""

SOUND_CODECS: Final = frozenset(
    {
        *("aac", "alac", "flac", "mp2", "mp2float", "mp3", "mp3float", "opus", "vorbis"),
        *("libopus", "ac3", "eac3", "pcm_u8", "pcm_alaw", "pcm_mulaw", "adpcm_ms"),
        *("adpcm_ima_wav", "adpcm_ima_qt", "amrnb", "amrwb", "gsm_ms"),
        *(
            f"pcm_{kind}{end}"
            for kind in ("s16", "s24", "s32", "s64", "f32", "f64")
            for end in ("le", "be")
        ),
        "pcm_s8",
    }
)
VIDEO_CODECS: Final = frozenset(
    {
        *("h264", "hevc", "av1", "libdav1d", "vp8", "vp9", "libvpx", "libvpx-vp9"),
        *("mpeg1video", "mpeg2video", "mpeg4", "msmpeg4v2", "msmpeg4v3", "msmpeg4"),
        *("h263", "mjpeg", "theora", "prores", "wmv1", "wmv2", "ffv1", "rawvideo"),
    }
)
"""What cameras and programs of today make. FFmpeg reads four hundred more, most of which nobody
has looked at for years."""

_MAX_THREADS: Final = 4


def prepare() -> None:
    """Set up the library, once for the process. It is to write no words of a file into the log."""
    av.logging.set_level(None)


@contextmanager
def opened(data: bytes | bytearray, form: MediaForm) -> Iterator[InputContainer]:
    """Open a file that is in memory, and close it at the end."""
    container = av.open(
        BytesIO(data),
        mode="r",
        format=DEMUXERS[form],
        container_options={
            "protocol_whitelist": "none",
            "format_whitelist": DEMUXERS[form],
            "codec_whitelist": ",".join(sorted(SOUND_CODECS | VIDEO_CODECS)),
            "max_streams": "64",
        },
        metadata_errors="replace",
        io_open=_open_nothing,
    )
    with container:
        yield container


def prepare_stream(stream: Stream, codecs: frozenset[str], options: Mapping[str, str]) -> None:
    """Refuse a track whose codec is not one of ``codecs``; otherwise decode it with ``options``."""
    context = stream.codec_context
    if context is None or context.codec.name not in codecs:
        name = context.codec.name if context is not None else "unknown"
        raise RefusedError(f"has a track of the codec {name}, which is not taken")
    context.options = dict(options)
    # The worker computes on most processors, or on none that this could take.
    context.thread_count = max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2))


def _open_nothing(*_: Any, **__: Any) -> Any:
    raise PermissionError("a file may not open others")
