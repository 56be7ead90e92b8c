"""What a decoder makes of a file, and how it refuses one."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lmx.worker.media.wire import Outcome, ResultHead


class RefusedError(Exception):
    """The file can't be decoded. The message continues a sentence that begins with the file."""

    outcome = Outcome.REFUSED


class TooLargeError(RefusedError):
    """There is more in the file than is taken."""

    outcome = Outcome.TOO_LARGE


class Decoded(NamedTuple):
    """Frames, or one picture, or a sound, or frames with a sound."""

    frames: npt.NDArray[np.uint8] | None = None
    """[frames, height, width, 3]"""
    times_s: npt.NDArray[np.float64] | None = None
    """One for each frame of a video."""
    duration_s: float = 0.0
    samples: npt.NDArray[np.float32] | None = None
    rate_hz: int = 0

    @property
    def head(self) -> ResultHead:
        """The sizes of all of it."""
        count, height, width = self.frames.shape[:3] if self.frames is not None else (0, 0, 0)
        samples = self.samples.size if self.samples is not None else 0
        return ResultHead(count, height, width, self.rate_hz, samples, self.duration_s)


def fitted_size(
    width: int, height: int, min_pixels: int | None, max_pixels: int | None
) -> tuple[int, int]:
    """Return the size, of the same shape, that has no fewer and no more pixels than wanted. Where
    both can't be had, there are no more."""
    pixels = width * height
    wanted = max(pixels, min_pixels or 0)
    if max_pixels is not None:
        wanted = min(wanted, max_pixels)
    if wanted == pixels:
        return width, height
    scale = (wanted / pixels) ** 0.5
    sides = (width * scale, height * scale)
    if wanted < pixels:
        # A side of a pixel can't get shorter: the other one makes up for it.
        first = max(1, int(sides[0]))
        return first, max(1, min(int(sides[1]), wanted // first))
    return -int(-sides[0] // 1), -int(-sides[1] // 1)


def check_shape(width: int, height: int, max_pixels: int, side_ratio: int) -> None:
    """Refuse a picture or a frame of a size that is not taken."""
    if width <= 0 or height <= 0:
        raise RefusedError("has no pixels")
    if width * height > max_pixels:
        raise TooLargeError(
            f"has {width} x {height} pixels, and at most {max_pixels / 1e6:g} million are taken"
        )
    if max(width, height) > side_ratio * min(width, height):
        raise RefusedError(
            f"has {width} x {height} pixels: the longer side may be at most {side_ratio} times as "
            "long as the shorter one"
        )
