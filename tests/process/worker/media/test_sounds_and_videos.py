"""Sounds and videos, as a model hears and sees them."""

import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest

from lmx.protocol.errors import RequestError
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.states import MediaKind
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.media.values import MediaNeeds, Sound, Video
from tests.support.fakes.media_files import (
    COLOURS,
    grey_frames,
    pitch,
    plain_frames,
    sine,
    sound_file,
    turned,
    video_file,
    wav_file,
)
from tests.support.rigs.decoding import EVERYTHING, RATE_HZ, sound, video


@pytest.fixture(scope="module")
def decoder() -> Iterator[MediaDecoder]:
    made = MediaDecoder(DecodeLimits(sound_s=30.0, video_s=60.0))
    yield made
    made.close()


def _greys(found: Video) -> list[int]:
    """Return the places of the grey frames that a video has."""
    middle = found.frames[:, found.frames.shape[1] // 2, found.frames.shape[2] // 2, 0]
    return [round((int(value) - 10) / 4) for value in middle]


# --- Sounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("wanted_hz", [16_000, 24_000])
def test_another_rate_keeps_the_pitch(decoder: MediaDecoder, rate_hz: int, wanted_hz: int) -> None:
    needs = MediaNeeds(frozenset(MediaKind), sample_rate_hz=wanted_hz)
    found = sound(decoder, "wav", wav_file(sine(440, 1.0, rate_hz), rate_hz), needs)
    assert found.rate_hz == wanted_hz and found.samples.size == wanted_hz
    assert pitch(found.samples, wanted_hz) == pytest.approx(440, abs=1.5)
    middle = found.samples[wanted_hz // 4 : -wanted_hz // 4]
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("form", "container", "codec", "rate_hz"),
    [
        ("mp3", "mp3", "libmp3lame", 44_100),
        ("flac", "flac", "flac", 44_100),
        ("ogg", "ogg", "libopus", 48_000),
        ("aac", "adts", "aac", 44_100),
        ("m4a", "ipod", "aac", 44_100),
        ("webm", "webm", "libopus", 48_000),
        ("mkv", "matroska", "flac", 44_100),
    ],
)
def test_sounds_of_every_form(
    decoder: MediaDecoder, form: str, container: str, codec: str, rate_hz: int
) -> None:
    found = sound(decoder, form, sound_file(sine(440, 2.0, rate_hz), rate_hz, container, codec))
    assert found.duration_s == pytest.approx(2.0, abs=0.1)
    assert pitch(found.samples, RATE_HZ) == pytest.approx(440, abs=1.5)


def test_channels_become_one(decoder: MediaDecoder) -> None:
    left, right = sine(440, 1.0, RATE_HZ), np.zeros(RATE_HZ, np.float32)
    for others in (1, 5, 7):
        channels = np.stack([left, *[right] * others], axis=1)
        found = sound(decoder, "wav", wav_file(channels, RATE_HZ))
        assert np.allclose(found.samples, left / (others + 1), atol=2e-4)
    opposite = np.stack([left, -left], axis=1)
    assert np.abs(sound(decoder, "wav", wav_file(opposite, RATE_HZ)).samples).max() < 1e-4


def test_a_header_that_lies_about_the_length(decoder: MediaDecoder) -> None:
    tone = sine(440, 1.0, RATE_HZ)
    for reported in (0, 100, 0xFFFFFFFF, 0x7FFFFFFF):
        found = sound(decoder, "wav", wav_file(tone, RATE_HZ, reported)) if reported > 100 else None
        assert found is None or found.samples.size == tone.size, reported


def test_the_sound_of_a_video_is_a_sound(decoder: MediaDecoder) -> None:
    file = video_file(plain_frames(20), 10, sound=sine(440, 2.0, 44_100))
    assert pitch(sound(decoder, "mp4", file).samples, RATE_HZ) == pytest.approx(440, abs=1.5)
    with pytest.raises(RequestError, match="has no sound"):
        sound(decoder, "mp4", video_file(plain_frames(5)))


def test_the_samples_alone_make_the_digest(decoder: MediaDecoder) -> None:
    tone = sine(440, 1.0, RATE_HZ)
    first = sound(decoder, "wav", wav_file(tone, RATE_HZ))
    packed = sound(decoder, "flac", sound_file(first.samples, RATE_HZ, "flac", "flac"))
    assert np.abs(packed.samples - first.samples).max() < 1e-4
    assert sound(decoder, "wav", wav_file(tone, RATE_HZ, 0xFFFFFFFF)).digest == first.digest
    assert sound(decoder, "wav", wav_file(-tone, RATE_HZ)).digest != first.digest


# --- Videos ---------------------------------------------------------------------------------------


def test_frames_are_those_that_are_shown_at_even_times(decoder: MediaDecoder) -> None:
    file = video_file(grey_frames(35), 10)
    once = video(decoder, "mp4", file)
    assert once.times_s == (0, 1, 2, 3) and _greys(once) == [0, 10, 20, 30]
    assert once.duration_s == pytest.approx(3.5) and once.sound is None
    twice = video(decoder, "mp4", file, fps=2.0)
    assert _greys(twice) == [0, 5, 10, 15, 20, 25, 30]
    assert twice.times_s == (0, 0.5, 1, 1.5, 2, 2.5, 3)
    seldom = video(decoder, "mp4", file, fps=0.5)
    assert _greys(seldom) == [0, 20] and seldom.times_s == (0, 2)


@pytest.mark.parametrize("group", [1, 3, 5, 100])
def test_packets_that_are_left_out_change_no_frame(decoder: MediaDecoder, group: int) -> None:
    """Frames refer to earlier and to later ones; a key frame every ``group`` frames."""
    file = video_file(grey_frames(60), 10, group=group)
    assert _greys(video(decoder, "mp4", file, max_frames=4)) == [0, 15, 30, 45]
    assert _greys(video(decoder, "mp4", file, fps=10.0)) == list(range(60))
    assert _greys(video(decoder, "mp4", file, fps=0.4)) == [0, 25, 50]


def test_many_frames_are_spread_evenly(decoder: MediaDecoder) -> None:
    file = video_file(grey_frames(60), 10)
    found = video(decoder, "mp4", file, fps=10.0, max_frames=5)
    assert found.times_s == pytest.approx((0, 1.2, 2.4, 3.6, 4.8))
    assert _greys(found) == [0, 12, 24, 36, 48]
    few = video(decoder, "mp4", file, replace(EVERYTHING, max_frames=2), fps=10.0)
    assert few.times_s == (0, 3)


def test_a_rate_that_changes(decoder: MediaDecoder) -> None:
    """A picture stays until the next one, as on a screen."""
    times = [0.0, 0.1, 0.2, 3.5, 3.6, 5.0]
    file = video_file(grey_frames(6), 30, container="matroska", times_s=times)
    found = video(decoder, "mkv", file)
    assert _greys(found)[:5] == [0, 2, 2, 2, 4] and found.times_s[:5] == (0, 1, 2, 3, 4)
    assert found.duration_s >= 5.0


@pytest.mark.parametrize(
    ("form", "container", "codec"),
    [
        ("mov", "mov", "libx264"),
        ("mkv", "matroska", "libx264"),
        ("webm", "webm", "libvpx"),
        ("webm", "webm", "libvpx-vp9"),
        ("avi", "avi", "mpeg4"),
        ("avi", "avi", "libx264"),
    ],
)
def test_videos_of_every_form(decoder: MediaDecoder, form: str, container: str, codec: str) -> None:
    frames = [frame for colour in plain_frames(3) for frame in [colour] * 10]
    found = video(decoder, form, video_file(frames, 10, container=container, codec=codec))
    assert found.frames.shape == (3, 48, 64, 3)
    for place, frame in enumerate(found.frames):
        assert np.abs(frame[24, 32].astype(int) - COLOURS[place]).max() < 40, place


@pytest.mark.parametrize(
    ("matrix", "shape", "corner"),
    [
        ((1, 0, 0, 1), (48, 64), (0, 0)),
        ((0, 1, -1, 0), (64, 48), (0, 1)),
        ((-1, 0, 0, -1), (48, 64), (1, 1)),
        ((0, -1, 1, 0), (64, 48), (1, 0)),
        ((-1, 0, 0, 1), (48, 64), (0, 1)),
        ((1, 0, 0, -1), (48, 64), (1, 0)),
        ((0, 1, 1, 0), (64, 48), (0, 0)),
        ((0, -1, -1, 0), (64, 48), (1, 1)),
    ],
)
def test_videos_are_upright(
    decoder: MediaDecoder, matrix: tuple[int, ...], shape: tuple[int, int], corner: tuple[int, int]
) -> None:
    """The file has a white corner on the upper left; the matrix says where it is to be seen."""
    frames = [np.zeros((48, 64, 3), np.uint8) for _ in range(5)]
    for frame in frames:
        frame[:16, :16] = 255
    found = video(decoder, "mp4", turned(video_file(frames, 10), matrix)).frames[0]
    assert found.shape[:2] == shape
    light = {
        (row, column): int(found[-5 if row else 4, -5 if column else 4, 0]) > 128
        for row in (0, 1)
        for column in (0, 1)
    }
    assert light == {place: place == corner for place in light}


def test_frames_are_kept_within_what_is_asked(decoder: MediaDecoder) -> None:
    file = video_file(plain_frames(5, 160, 120), 10)
    assert video(decoder, "mp4", file, max_pixels=4800).frames.shape == (1, 60, 80, 3)
    assert video(decoder, "mp4", file, min_pixels=76800).frames.shape == (1, 240, 320, 3)
    on_its_side = turned(file, (0, 1, -1, 0))
    assert video(decoder, "mp4", on_its_side, max_pixels=4800).frames.shape == (1, 80, 60, 3)


def test_long_videos_are_seen_smaller() -> None:
    with closing(MediaDecoder(DecodeLimits(video_bytes=10 * 160 * 120 * 3 // 4))) as decoder:
        found = video(decoder, "mp4", video_file(plain_frames(10, 160, 120), 10), fps=10.0)
        assert found.frames.shape == (10, 60, 80, 3)


def test_the_sound_of_a_video_is_encoded_with_it(decoder: MediaDecoder) -> None:
    tone = sine(440, 2.0, 44_100)
    file = video_file(grey_frames(20), 10, sound=tone)
    found = video(decoder, "mp4", file)
    assert _greys(found) == [0, 10] and found.sound is not None
    assert found.sound.rate_hz == RATE_HZ
    assert pitch(found.sound.samples, RATE_HZ) == pytest.approx(440, abs=1.5)
    assert video(decoder, "mp4", file, use_audio_in_video=False).sound is None
    assert video(decoder, "mp4", file, replace(EVERYTHING, audio_in_video=False)).sound is None


def test_the_sound_is_as_late_as_it_is_in_the_video(decoder: MediaDecoder) -> None:
    tone = sine(440, 1.0, 48_000)
    file = video_file(
        grey_frames(30),
        10,
        container="matroska",
        sound=tone,
        rate_hz=48_000,
        sound_codec="flac",
        sound_start_s=1.5,
    )
    found = video(decoder, "mkv", file).sound
    assert found is not None
    assert found.duration_s == pytest.approx(2.5, abs=0.05)
    assert np.abs(found.samples[: int(1.4 * RATE_HZ)]).max() < 1e-3
    assert np.abs(found.samples[int(1.6 * RATE_HZ) :]).max() > 0.4


def test_what_is_heard_before_the_first_picture_is_left_out(decoder: MediaDecoder) -> None:
    samples = np.zeros(3 * RATE_HZ, np.float32)
    samples[2 * RATE_HZ :] = sine(440, 1.0, RATE_HZ)
    times_s = [1 + place / 10 for place in range(20)]

    def heard(sound: np.ndarray[Any, Any]) -> Sound | None:
        file = video_file(
            grey_frames(20),
            10,
            container="matroska",
            times_s=times_s,
            sound=sound,
            rate_hz=RATE_HZ,
            sound_codec="flac",
        )
        return video(decoder, "mkv", file).sound

    assert heard(samples[: RATE_HZ // 2]) is None
    found = heard(samples)
    assert found is not None
    assert np.argmax(np.abs(found.samples) > 0.2) == pytest.approx(RATE_HZ, abs=0.02 * RATE_HZ)
    assert found.duration_s == pytest.approx(2.0, abs=0.05)


def test_what_is_no_video_says_so(decoder: MediaDecoder) -> None:
    file = sound_file(sine(440, 1.0, 44_100), 44_100, "ipod", "aac")
    with pytest.raises(RequestError, match="has no pictures") as caught:
        video(decoder, "m4a", file)
    assert caught.value.param == "messages[0].content[1]"


def test_the_end_of_a_file_may_be_missing(decoder: MediaDecoder) -> None:
    """What is there is taken, as players do: recordings end so."""
    file = video_file(grey_frames(60), 10, container="matroska", group=5)
    found = video(decoder, "mkv", file[: len(file) * 2 // 3])
    assert 1 < len(found.times_s) < 6 and found.duration_s < 6
    tone = wav_file(sine(440, 2.0, RATE_HZ), RATE_HZ)
    assert sound(decoder, "wav", tone[: len(tone) // 2]).duration_s == pytest.approx(1, abs=0.01)


def test_damage_is_left_out_as_long_as_most_is_whole(decoder: MediaDecoder) -> None:
    file = sound_file(sine(440, 1.5, RATE_HZ), RATE_HZ, "ipod", "aac")
    with av.open(io.BytesIO(file), "r") as container:
        packets = [(one.pos, one.size) for one in container.demux(audio=0) if one.pos and one.size]

    def damaged(count: int) -> bytes:
        data = bytearray(file)
        for place, size in packets[:count]:
            data[place : place + size] = b"\xff" * size
        return bytes(data)

    assert 1 < sound(decoder, "m4a", damaged(5)).duration_s < 1.5
    for count in (16, len(packets)):
        with pytest.raises(RequestError, match="is damaged"):
            sound(decoder, "m4a", damaged(count))
