"""Videos: the frames that are shown at even times, and the sound."""

from __future__ import annotations

import itertools
import math
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.worker.media.decoding.container import VIDEO_CODECS, opened, prepare_stream
from lmx.worker.media.decoding.result import (
    Decoded,
    RefusedError,
    TooLargeError,
    check_shape,
    fitted_size,
)
from lmx.worker.media.decoding.sounds import decoded, limited, read_sound
from lmx.worker.media.wire import DecodeOrder

_MATRIX: Final = "DISPLAYMATRIX"

_ROUNDING_S: Final = 1e-3
"""Containers round the times of frames to milliseconds: this little is not late."""


def decode_video(data: bytes | bytearray, order: DecodeOrder, limits: DecodeLimits) -> Decoded:
    """Return the frames that are shown at every ``1 / order.fps`` seconds, or as many as are
    wanted, evenly spread; and the sound, if it is wanted and there is one."""
    with opened(data, order.form) as container:
        picture = _picture_track(container)
        sound = container.streams.best("audio") if order.rate_hz else None
        of_picture, of_sound = _packets(container, picture, sound, limits)
        timeline = _timeline(picture, of_picture)
        if not timeline.duration_s <= limits.video_s:
            raise TooLargeError(
                f"takes {timeline.duration_s:.0f} s, and at most {limits.video_s:g} s of a video "
                "are taken"
            )
        prepare_stream(picture, VIDEO_CODECS, {"max_pixels": str(limits.frame_pixels)})
        times_s = sample_times(timeline.duration_s, order.fps, order.max_frames)
        frames = _Frames(picture, order, limits, len(times_s))
        for place, frame in _shown(picture, of_picture, timeline, times_s):
            frames.put(place, frame)
        samples = None
        if isinstance(sound, AudioStream) and order.rate_hz and of_sound:
            samples = read_sound(sound, of_sound, order.rate_hz, limits, timeline.start_s)
    return Decoded(
        frames.pixels(),
        np.array(times_s),
        timeline.duration_s,
        samples,
        order.rate_hz if samples is not None and order.rate_hz else 0,
    )


def sample_times(duration_s: float, fps: float, max_frames: int) -> list[float]:
    """Return when frames are taken: from the beginning on, in even steps."""
    # A video of exactly two seconds has two frames at one a second, whatever its clock rounds.
    count = max(1, math.ceil(duration_s * fps - _ROUNDING_S))
    if count <= max_frames:
        return [place / fps for place in range(count)]
    return [place * duration_s / max_frames for place in range(max_frames)]


class _Timeline(NamedTuple):
    """When which frames are shown."""

    start_s: float
    """The time of the first frame, on the clock of the file."""
    duration_s: float
    shown_s: Sequence[float]
    """When each frame is shown, after ``start_s``; in order."""
    pts: Sequence[int] | None
    """The same on the track's clock; None: it has none, and frames at even times."""


def _picture_track(container: InputContainer) -> VideoStream:
    # The cover of an album is a track of pictures too, of one.
    tracks = [
        stream
        for stream in container.streams.video
        if not stream.disposition & Disposition.attached_pic
    ]
    if not tracks:
        raise RefusedError("has no pictures")
    best = container.streams.best("video")
    return best if isinstance(best, VideoStream) and best in tracks else tracks[0]


def _packets(
    container: InputContainer, picture: VideoStream, sound: object, limits: DecodeLimits
) -> tuple[list[Packet[Any]], list[Packet[Any]]]:
    """Return all packets of both tracks."""
    tracks = [picture, sound] if isinstance(sound, AudioStream) else [picture]
    of_picture: list[Packet[Any]] = []
    of_sound: list[Packet[Any]] = []
    for packet in limited(container.demux(*tracks), limits.packets):
        (of_picture if packet.stream_index == picture.index else of_sound).append(packet)
    return of_picture, of_sound


def _timeline(stream: VideoStream, packets: Sequence[Packet[Any]]) -> _Timeline:
    shown = [packet for packet in packets if not packet.is_discard]
    if not shown:
        raise RefusedError("has no pictures")
    pts = sorted({packet.pts for packet in shown if packet.pts is not None})
    clock = stream.time_base
    if clock and pts and all(packet.pts is not None for packet in shown):
        times_s = [float((value - pts[0]) * clock) for value in pts]
        last = max((packet.pts, packet.duration or 0) for packet in shown if packet.pts is not None)
        usual_s = times_s[-1] / (len(times_s) - 1) if len(times_s) > 1 else 1.0
        last_s = float(last[1] * clock) or usual_s
        return _Timeline(float(pts[0] * clock), times_s[-1] + last_s, times_s, pts)
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    if not 0 < rate <= 1000:
        raise RefusedError("does not have the times of its frames")
    times_s = [place / rate for place in range(len(shown))]
    return _Timeline(0.0, len(shown) / rate, times_s, None)


def _shown(
    stream: VideoStream,
    packets: Sequence[Packet[Any]],
    timeline: _Timeline,
    times_s: Sequence[float],
) -> Iterator[tuple[int, VideoFrame]]:
    """Give for each of ``times_s`` its place and the frame that is shown then."""
    wanted = [
        max(0, bisect_right(timeline.shown_s, time_s + _ROUNDING_S) - 1) for time_s in times_s
    ]
    place = 0
    before: VideoFrame | None = None
    for number, frame in _numbered(stream, packets, timeline, wanted):
        while place < len(wanted) and number >= wanted[place]:
            # Where the very frame is missing, the one before it is still shown.
            yield place, frame if number == wanted[place] or before is None else before
            place += 1
        if place == len(wanted):
            return
        before = frame
    if before is None:
        raise RefusedError("has no picture that can be decoded")
    for rest in range(place, len(wanted)):
        yield rest, before


def _numbered(
    stream: VideoStream, packets: Sequence[Packet[Any]], timeline: _Timeline, wanted: Sequence[int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode what the frames ``wanted`` need; yield frames with their places in the timeline."""
    if timeline.pts is None:
        frames = decoded(stream, packets)
        yield from enumerate(frame for frame in frames if isinstance(frame, VideoFrame))
        return
    needed = _needed(stream, packets, [timeline.pts[number] for number in wanted])
    for frame in decoded(stream, needed):
        if isinstance(frame, VideoFrame) and frame.pts is not None:
            yield bisect_right(timeline.pts, frame.pts) - 1, frame


def _needed(
    stream: VideoStream, packets: Sequence[Packet[Any]], wanted: Sequence[int]
) -> Iterable[Packet[Any] | None]:
    """Leave out the packets between frames that are wanted which no wanted frame is made of.

    Decoding can begin at every key frame. From one to the next is a group; a group is needed if a
    wanted frame is in it, or in the next one, whose first frames in time may come from before it.
    """
    starts = [place for place, packet in enumerate(packets) if packet.is_keyframe]
    if not starts or starts[0] != 0:
        return packets
    groups = [packets[start:end] for start, end in itertools.pairwise([*starts, len(packets)])]
    asked = set(wanted)
    needs = [any(packet.pts in asked for packet in group) for group in groups]
    return _joined(stream, groups, needs)


def _joined(
    stream: VideoStream, groups: Sequence[Sequence[Packet[Any]]], needs: Sequence[bool]
) -> Iterator[Packet[Any] | None]:
    skipped = False
    for place, group in enumerate(groups):
        last = place == len(groups) - 1
        if needs[place] or (not last and needs[place + 1]):
            if skipped:
                stream.codec_context.flush_buffers()
                skipped = False
            yield from group
        else:
            skipped = True
            # The decoder still holds frames of the group before.
            if place and needs[place - 1]:
                yield None
            if last:
                return


class _Orientation(NamedTuple):
    """What makes a frame upright."""

    sideways: bool = False
    """Whether its rows are columns."""
    left_right: bool = False
    """Whether it is mirrored, after that."""
    upside_down: bool = False

    def upright(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the frame as it is to be seen."""
        if self.sideways:
            pixels = pixels.transpose(1, 0, 2)
        return pixels[:: -1 if self.upside_down else 1, :: -1 if self.left_right else 1]


def _orientation(frame: VideoFrame) -> _Orientation:
    """Return how a camera was held, from the matrix that takes the place of a pixel in the file to
    its place on the screen."""
    remarks: Any = frame.side_data  # Its type in PyAV's stubs lacks most of the names.
    try:
        matrix = bytes(remarks[_MATRIX])
    except (KeyError, ValueError):
        # There is no matrix; or PyAV does not know the kind of other side data of the frame.
        return _Orientation()
    a, b, _, c, d, *_ = struct.unpack("=9i", matrix[:36])
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return _Orientation(False, a < 0, d < 0)
    return _Orientation(True, c < 0, b < 0)


class _Frames:
    """Collects the frames, in their final size, upright."""

    def __init__(
        self, stream: VideoStream, order: DecodeOrder, limits: DecodeLimits, count: int
    ) -> None:
        self._order = order
        self._limits = limits
        self._count = count
        self._pixels: npt.NDArray[np.uint8] | None = None
        self._reformatter = VideoReformatter()
        check_shape(
            stream.codec_context.width,
            stream.codec_context.height,
            limits.frame_pixels,
            limits.side_ratio,
        )

    def put(self, place: int, frame: VideoFrame) -> None:
        """Keep a frame in its place."""
        check_shape(frame.width, frame.height, self._limits.frame_pixels, self._limits.side_ratio)
        orientation = _orientation(frame)
        if self._pixels is None:
            most = self._limits.video_bytes // (3 * self._count)
            if self._order.max_pixels is not None:
                most = min(most, self._order.max_pixels)
            width, height = fitted_size(frame.width, frame.height, self._order.min_pixels, most)
            size = (width, height) if orientation.sideways else (height, width)
            self._pixels = np.empty((self._count, *size, 3), np.uint8)
        height, width = self._pixels.shape[1:3]
        if orientation.sideways:
            height, width = width, height
        picture = self._reformatter.reformat(
            frame, width, height, "rgb24", interpolation="BICUBIC", threads=1
        )
        self._pixels[place] = orientation.upright(picture.to_ndarray().astype(np.uint8, copy=False))

    def pixels(self) -> npt.NDArray[np.uint8]:
        """Return all of them."""
        assert self._pixels is not None
        return self._pixels
