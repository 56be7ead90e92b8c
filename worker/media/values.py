"""What a model is given for the pictures, sounds and videos of a request, after decoding.

The arrays are read-only, because a digest stands for them. The module itself does without numpy: a
worker starts before it is loaded.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.states import MediaKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_CHANNELS: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture, upright, without transparency. Raises ``ValueError`` for another array."""

    pixels: npt.NDArray[np.uint8]
    """Red, green and blue, as [height, width, 3]."""
    digest: bytes = field(init=False)
    """The SHA-256 of the size and the pixels, whatever file they came in."""

    def __post_init__(self) -> None:
        pixels = _fixed(self.pixels, "uint8", 3)
        _check_pixels(pixels)
        object.__setattr__(self, "pixels", pixels)
        object.__setattr__(self, "digest", _digest(b"picture", pixels))

    @property
    def size_bytes(self) -> int:
        """How much memory it takes."""
        return self.pixels.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A sound of one channel. Raises ``ValueError`` for an array of another form, for a rate that
    is not positive, and if there is not one sample."""

    samples: npt.NDArray[np.float32]
    """The amplitudes, mostly from -1 to 1."""
    rate_hz: int
    """How many samples make one second."""
    digest: bytes = field(init=False)
    """The SHA-256 of the rate and the samples."""

    def __post_init__(self) -> None:
        samples = _fixed(self.samples, "float32", 1)
        if not samples.size or self.rate_hz <= 0:
            raise ValueError(f"{samples.size} samples at {self.rate_hz} Hz are no sound")
        object.__setattr__(self, "samples", samples)
        object.__setattr__(
            self, "digest", _digest(b"sound", samples, struct.pack("<q", self.rate_hz))
        )

    @property
    def size_bytes(self) -> int:
        """How much memory it takes."""
        return self.samples.nbytes

    @property
    def duration_s(self) -> float:
        """How long the sound takes."""
        return self.samples.size / self.rate_hz


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """Frames of a video, and its sound where the model takes it. Raises ``ValueError`` for an array
    of another form, and if there is not one time for each frame."""

    frames: npt.NDArray[np.uint8]
    """The frames in order, all of one size, as [frames, height, width, 3]."""
    times_s: tuple[float, ...]
    """When each frame is shown, from the beginning of the video; never falling."""
    duration_s: float
    """How long the whole video takes, which is longer than the time of the last frame."""
    sound: Sound | None = None
    """Its sound from its beginning; None if it has none, or if the model doesn't take it."""
    digest: bytes = field(init=False)
    """The SHA-256 of the size, the frames, the times, the duration and the sound."""

    def __post_init__(self) -> None:
        frames = _fixed(self.frames, "uint8", 4)
        _check_pixels(frames)
        if len(self.times_s) != len(frames):
            raise ValueError(f"{len(self.times_s)} times do not fit {len(frames)} frames")
        times = struct.pack(f"<{len(frames)}dd", *self.times_s, self.duration_s)
        sound = self.sound.digest if self.sound is not None else b""
        object.__setattr__(self, "frames", frames)
        object.__setattr__(self, "digest", _digest(b"video", frames, times, sound))

    @property
    def size_bytes(self) -> int:
        """How much memory it takes."""
        return self.frames.nbytes + (self.sound.size_bytes if self.sound else 0)


Media = Picture | Sound | Video
"""One decoded part of a request."""


@dataclass(frozen=True, slots=True)
class MediaNeeds:
    """Which media a model takes, and in which form its processor wants them."""

    kinds: frozenset[MediaKind]
    """The kinds that it takes; the others are refused."""
    sample_rate_hz: int | None = None
    """The rate of the sounds that it takes; None for a model that takes none."""
    max_items: Mapping[MediaKind, int] = field(default_factory=dict)
    """How many items of a kind one request may have; others have no limit of the model's own."""
    max_frames: int | None = None
    """How many frames of a video it takes at most; None: no limit of the model's own."""
    audio_in_video: bool = False
    """Whether it takes the sound of a video together with its frames."""


def check_media(items: Sequence[MediaItem], needs: MediaNeeds | None) -> None:
    """Raise ``RequestError`` for the first item of a kind that the model does not take, or of which
    it takes fewer. ``needs``: what the model takes; None: text only."""
    found: Counter[MediaKind] = Counter()
    for item in items:
        if needs is None or item.kind not in needs.kinds:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"This model takes {_taken(needs)}, and no {item.kind.noun}s: leave the "
                f"{item.kind.noun} out, or name another model.",
                param=item.param,
            )
        found[item.kind] += 1
        most = needs.max_items.get(item.kind)
        if most is not None and found[item.kind] > most:
            noun = item.kind.noun + ("" if most == 1 else "s")
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"This model takes at most {most} {noun} in a request, earlier messages "
                "included: send fewer, or name another model.",
                param=item.param,
            )


def _taken(needs: MediaNeeds | None) -> str:
    if needs is None:
        return "text only"
    *names, last = ["text", *(f"{kind.noun}s" for kind in MediaKind if kind in needs.kinds)]
    return f"{', '.join(names)} and {last}"


def _fixed(array: npt.NDArray[Any], kind: str, dimensions: int) -> npt.NDArray[Any]:
    """Return a read-only view of ``array``, in one piece of memory."""
    if array.dtype.name != kind or array.ndim != dimensions:
        raise ValueError(
            f"an array of {dimensions} dimensions of {kind} is needed, not {array.ndim} of "
            f"{array.dtype}"
        )
    view = (array if array.flags.c_contiguous else array.copy(order="C")).view()
    view.flags.writeable = False
    return view


def _check_pixels(array: npt.NDArray[np.uint8]) -> None:
    if array.shape[-1] != _CHANNELS or not array.size:
        raise ValueError(f"an array of the shape {array.shape} has no pixels of three channels")


def _digest(kind: bytes, array: npt.NDArray[np.generic], *rest: bytes) -> bytes:
    # The GIL is not held while the array is hashed. The lengths keep apart what would be the same
    # bytes when joined.
    shape = struct.pack(f"<{array.ndim}q", *array.shape)
    total = hashlib.sha256(struct.pack("<qq", len(shape), len(kind)) + kind + shape)
    total.update(array.data.cast("B"))
    for part in rest:
        total.update(struct.pack("<q", len(part)))
        total.update(part)
    return total.digest()
