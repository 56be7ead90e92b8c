"""Decoded media: their digests stand for what the model sees, and for nothing else."""

from collections.abc import Callable

import numpy as np
import pytest

from lmx.worker.media.values import Picture, Sound, Video


def _pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def test_the_digest_of_a_picture_is_that_of_its_size_and_pixels() -> None:
    pixels = _pixels(6, 4, 3)
    first = Picture(pixels)
    assert first.digest == Picture(pixels.copy()).digest
    assert first.digest == Picture(pixels[:, ::-1].copy()[:, ::-1]).digest, "another layout"
    other = pixels.copy()
    other[5, 3, 2] ^= 1
    assert first.digest != Picture(other).digest
    assert first.digest != Picture(pixels.reshape(4, 6, 3)).digest
    assert len(first.digest) == 32


def test_the_digest_of_a_sound_knows_its_rate() -> None:
    samples = np.linspace(-1, 1, 100, dtype=np.float32)
    first = Sound(samples, 16_000)
    assert first.digest == Sound(samples.copy(), 16_000).digest
    assert first.digest != Sound(samples, 8_000).digest
    assert first.digest != Sound(-samples, 16_000).digest
    assert first.duration_s == 100 / 16_000


def test_the_digest_of_a_video_knows_its_times_and_its_sound() -> None:
    frames, sound = _pixels(2, 6, 4, 3), Sound(np.ones(10, np.float32), 16_000)
    videos = [
        Video(frames, (0.0, 1.0), 2.0),
        Video(frames, (0.0, 0.5), 2.0),
        Video(frames, (0.0, 1.0), 2.0, sound),
        Video(frames[::-1], (0.0, 1.0), 2.0),
    ]
    assert len({video.digest for video in videos}) == len(videos)
    assert videos[0].digest == Video(frames.copy(), (0.0, 1.0), 2.0).digest


def test_the_digest_distinguishes_a_picture_from_a_video_of_it() -> None:
    frames = _pixels(1, 6, 4, 3)
    assert Picture(frames[0]).digest != Video(frames, (0.0,), 1.0).digest


def test_decoded_media_do_not_change() -> None:
    pixels = _pixels(6, 4, 3)
    picture = Picture(pixels)
    with pytest.raises(ValueError, match="read-only"):
        picture.pixels[0, 0, 0] = 1
    pixels[0, 0, 0] ^= 1  # The array of the caller stays writable.


@pytest.mark.parametrize(
    "make",
    [
        lambda: Picture(np.zeros((6, 4), np.uint8)),
        lambda: Picture(np.zeros((6, 4, 4), np.uint8)),
        lambda: Picture(np.zeros((0, 4, 3), np.uint8)),
        lambda: Picture(np.zeros((6, 4, 3), np.float32)),
        lambda: Sound(np.zeros(0, np.float32), 16_000),
        lambda: Sound(np.zeros(10, np.float64), 16_000),
        lambda: Sound(np.zeros(10, np.float32), 0),
        lambda: Video(np.zeros((2, 6, 4, 3), np.uint8), (0.0,), 1.0),
    ],
)
def test_arrays_of_another_form_are_no_media(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        make()
