"""Sound and video files, made in memory by PyAV."""

import io
import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[np.uint8]

COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 0, 255))


def plain_frames(count: int, width: int = 64, height: int = 48) -> list[Frame]:
    """Return frames of one colour each, which change with every frame."""
    return [
        np.full((height, width, 3), COLOURS[place % len(COLOURS)], np.uint8)
        for place in range(count)
    ]


def grey_frames(count: int, width: int = 64, height: int = 48) -> list[Frame]:
    """Return frames of which each is brighter than the one before: 10, 14, 18, ..."""
    return [np.full((height, width, 3), 10 + 4 * place, np.uint8) for place in range(count)]


def sine(hertz: float, seconds: float, rate_hz: int) -> npt.NDArray[np.float32]:
    """Return a tone of half the full amplitude."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * math.pi * hertz * times)).astype(np.float32)


def pitch(samples: npt.NDArray[np.float32], rate_hz: int) -> float:
    """Return the frequency that is the strongest in a sound."""
    strengths = np.abs(np.fft.rfft(samples * np.hanning(samples.size)))
    return float(np.argmax(strengths) * rate_hz / samples.size)


def wav_file(
    samples: npt.NDArray[np.float32], rate_hz: int, data_bytes: int | None = None
) -> bytes:
    """Return a file of 16 bits for [samples] or [samples, channels]. ``data_bytes`` is the length
    that its header tells; None: the right one."""
    data = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    channels = samples.shape[1] if samples.ndim > 1 else 1
    reported = len(data) if data_bytes is None else data_bytes
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", min(reported + 36, 0xFFFFFFFF), b"WAVE", b"fmt ", 16, 1, channels, rate_hz),
        *(rate_hz * channels * 2, channels * 2, 16, b"data", reported),
    )
    return head + data


def sound_file(samples: npt.NDArray[np.float32], rate_hz: int, container: str, codec: str) -> bytes:
    """Return a file of one channel."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate_hz, layout="mono")
        assert isinstance(stream, av.AudioStream)
        _encode_sound(output, stream, samples, rate_hz)
    return buffer.getvalue()


def video_file(
    frames: Sequence[Frame],
    fps: int | Fraction = 10,
    *,
    container: str = "mp4",
    codec: str = "libx264",
    times_s: Sequence[float] | None = None,
    sound: npt.NDArray[np.float32] | None = None,
    rate_hz: int = 44_100,
    sound_codec: str = "aac",
    sound_start_s: float = 0.0,
    group: int = 12,
    options: dict[str, str] | None = None,
) -> bytes:
    """Return a file of the ``frames``, shown at an even rate or at ``times_s``. Every ``group``
    frames there is a key frame."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=options or {}) as output:
        stream = output.add_stream(codec, rate=fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = frames[0].shape[1], frames[0].shape[0]
        stream.pix_fmt = "yuv420p"
        stream.gop_size = group
        if codec == "libx264":
            stream.options = {"qp": "0", "sc_threshold": "0", "preset": "ultrafast", "bf": "2"}
        if times_s is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        track = (
            output.add_stream(sound_codec, rate=rate_hz, layout="mono")
            if sound is not None
            else None
        )
        for place, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if times_s is None:
                frame.pts, frame.time_base = place, 1 / Fraction(fps)
            else:
                frame.pts, frame.time_base = round(times_s[place] * 1000), Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if isinstance(track, av.AudioStream) and sound is not None:
            _encode_sound(output, track, sound, rate_hz, sound_start_s)
    return buffer.getvalue()


def turned(file: bytes, matrix: Sequence[int]) -> bytes:
    """Return an MP4 file whose track of pictures is shown through another matrix (a, b, c, d)."""
    at = file.index(b"tkhd")
    length = struct.unpack(">I", file[at - 4 : at])[0]
    place = at - 4 + length - 44
    a, b, c, d = (value << 16 for value in matrix)
    patched = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    return file[:place] + patched + file[place + 36 :]


def changed(file: bytes, mark: bytes, change: Callable[[bytearray, int], None]) -> bytes:
    """Return a file in which ``change`` has changed what stands behind its first ``mark``."""
    data = bytearray(file)
    change(data, file.index(mark) + len(mark))
    return bytes(data)


def _encode_sound(
    output: av.container.OutputContainer,
    stream: av.AudioStream,
    samples: npt.NDArray[np.float32],
    rate_hz: int,
    start_s: float = 0.0,
) -> None:
    resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate_hz)
    step = stream.codec_context.frame_size or 1024
    for place in range(0, samples.size, step):
        part = np.ascontiguousarray(samples[None, place : place + step])
        frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
        frame.sample_rate = rate_hz
        frame.pts = place + round(start_s * rate_hz)
        frame.time_base = Fraction(1, rate_hz)
        for converted in resampler.resample(frame):
            output.mux(stream.encode(converted))
    output.mux(stream.encode(None))
