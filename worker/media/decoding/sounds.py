"""Sounds, of sound files and of videos: one channel, at the rate that the model takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.worker.media.decoding.container import SOUND_CODECS, opened, prepare_stream
from lmx.worker.media.decoding.result import Decoded, RefusedError, TooLargeError
from lmx.worker.media.wire import DecodeOrder

_RATES_HZ: Final = (1_000, 768_000)
"""A rate that is no rate of a sound would make a long one of a few bytes."""

_GAP_S: Final = 0.05
"""A shorter time without samples is how containers round times; a longer one is silence."""

_FRAME_SAMPLES: Final = 1 << 20
"""The most samples of one frame. Codecs have some thousands, FLAC has 65,535 at most."""

_SPARE_PACKETS: Final = 16
"""How many more packets may be damaged than not while others follow: a file may begin with such
ones."""

_BLOCK_SAMPLES: Final = 65_536
"""How many samples are resampled at a time."""


def decode_sound(data: bytes | bytearray, order: DecodeOrder, limits: DecodeLimits) -> Decoded:
    """Return the sound of a file, which may also be a video."""
    assert order.rate_hz is not None
    with opened(data, order.form) as container:
        stream = container.streams.best("audio")
        if not isinstance(stream, AudioStream):
            raise RefusedError("has no sound")
        packets = limited(container.demux(stream), limits.packets)
        samples = read_sound(stream, packets, order.rate_hz, limits)
    if samples is None:
        raise RefusedError("has no sound")
    return Decoded(samples=samples, rate_hz=order.rate_hz)


def limited(packets: Iterable[Packet[Any]], most: int) -> Iterator[Packet[Any]]:
    """Relay the packets that have data, at most that many."""
    for count, packet in enumerate(packets):
        if count >= most:
            raise TooLargeError(f"has more than {most} packets")
        if packet.size:
            yield packet


def read_sound(
    stream: AudioStream,
    packets: Iterable[Packet[Any]],
    rate_hz: int,
    limits: DecodeLimits,
    start_s: float | None = None,
) -> npt.NDArray[np.float32] | None:
    """Return the samples of a track from ``start_s`` on; None: from its own beginning. Where the
    track has no sound for a while, there is silence. Returns None if there are no samples.

    Packets that are damaged are left out, as long as most are not.
    """
    prepare_stream(stream, SOUND_CODECS, {"max_samples": str(_FRAME_SAMPLES)})
    track = _Track(rate_hz, limits.sound_s, start_s)
    for frame in decoded(stream, packets):
        if isinstance(frame, AudioFrame):
            track.add(frame)
    return track.end()


def decoded(
    stream: AudioStream | VideoStream, packets: Iterable[Packet[Any] | None]
) -> Iterator[AudioFrame | VideoFrame]:
    """Decode packets; for None and at the end, the decoder gives what it still holds. Packets that
    are damaged are left out, as long as most are not."""
    good = bad = 0
    for packet in itertools.chain(packets, [None]):
        try:
            frames = stream.decode(packet)
        except MemoryError:
            raise
        except FFmpegError as error:
            bad += 1
            if bad > good + _SPARE_PACKETS:
                raise RefusedError("is damaged") from error
            continue
        good += packet is not None
        yield from frames
    if bad > good + 1:
        raise RefusedError("is damaged")


class _Track:
    """Collects frames as one channel at one rate."""

    def __init__(self, rate_hz: int, max_s: float, start_s: float | None) -> None:
        self._rate_hz = rate_hz
        self._max_s = max_s
        self._next_s = start_s
        """When the next sample is played; None: whenever the first frame begins."""
        self._floats: AudioResampler | None = None
        self._source_hz = 0
        self._waiting: list[npt.NDArray[np.float32]] = []
        """Samples at the rate of the track, as [samples, channels]."""
        self._waiting_count = 0
        self._mono = AudioResampler(format="flt", layout="mono", rate=rate_hz)
        self._parts: list[npt.NDArray[np.float32]] = []
        self._count = 0

    def add(self, frame: AudioFrame) -> None:
        """Append a frame in its place."""
        if self._floats is None:
            if not _RATES_HZ[0] <= frame.sample_rate <= _RATES_HZ[1]:
                raise RefusedError(f"has a sample rate of {frame.sample_rate} Hz")
            self._source_hz = frame.sample_rate
            # One plane has all channels: PyAV 18.1 crashes where eight of them have a plane each.
            # A track whose form changes is refused here.
            self._floats = AudioResampler(format="flt", layout=frame.layout)
        skipped = self._place(frame)
        for floats in self._floats.resample(frame):
            samples = floats.to_ndarray().astype(np.float32, copy=False)
            self._wait(samples.reshape(floats.samples, -1)[skipped:])

    def end(self) -> npt.NDArray[np.float32] | None:
        """Return all of it; None if that is nothing."""
        self._resample()
        if self._count:
            self._append(self._mono.resample(None))
        return np.concatenate(self._parts) if self._count else None

    def _place(self, frame: AudioFrame) -> int:
        """Make silence up to the frame's time; return how many samples come too early for it."""
        skipped = 0
        time_s: float | None = frame.time
        if time_s is not None:
            gap_s = time_s - (self._next_s if self._next_s is not None else time_s)
            if gap_s < 0 and not self._waiting_count and not self._count:
                skipped = min(frame.samples, round(-gap_s * self._source_hz))
            elif gap_s > _GAP_S or self._next_s is None:
                self._silence(gap_s)
                self._next_s = time_s
        if self._next_s is not None:
            self._next_s += (frame.samples - skipped) / self._source_hz
        return skipped

    def _silence(self, length_s: float) -> None:
        if length_s > self._max_s:
            raise self._too_long()
        left = round(length_s * self._source_hz)
        while left:
            count = min(left, _BLOCK_SAMPLES)
            self._resample()
            self._wait(np.zeros((count, 1), np.float32))
            self._resample()
            left -= count

    def _wait(self, samples: npt.NDArray[np.float32]) -> None:
        if samples.size:
            self._waiting.append(samples)
            self._waiting_count += len(samples)
        if self._waiting_count >= _BLOCK_SAMPLES:
            self._resample()

    def _resample(self) -> None:
        """Resample what waits. One by one, the short frames of an hour took a minute."""
        if not self._waiting_count:
            return
        # Channels become one by their mean, for which their places in a room don't matter.
        samples = np.concatenate(self._waiting).mean(axis=1, dtype=np.float32)
        self._waiting, self._waiting_count = [], 0
        # What is no number would make all that the model computes no number.
        np.nan_to_num(samples, copy=False)
        np.clip(samples, -1, 1, out=samples)
        frame = AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = self._source_hz
        self._append(self._mono.resample(frame))

    def _append(self, frames: list[AudioFrame]) -> None:
        for frame in frames:
            part = frame.to_ndarray()[0]
            self._parts.append(part)
            self._count += part.size
            if self._count > self._max_s * self._rate_hz:
                raise self._too_long()

    def _too_long(self) -> TooLargeError:
        return TooLargeError(f"takes longer than the {self._max_s:g} s that are taken of a sound")
