"""Sounds that a model's processor would cut are given to it in parts, or refused."""

import functools
from collections.abc import Callable

import numpy as np
import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.worker.engine.values import PromptSource
from lmx.worker.media.values import Sound, Video
from lmx.worker.mlx.media.processor import AudioLimits, Processed
from lmx.worker.mlx.media.spans import MediaSpans
from tests.support.models.media_models import make_media_model
from tests.support.rigs.media_check import RATE_HZ, MediaModel, sound, video

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MediaModel]:
    @functools.cache
    def made(family: str) -> MediaModel:
        return MediaModel(make_media_model(tmp_path_factory.mktemp(family), family))

    return made


def cutting(most_s: float | None) -> tuple[list[float], AudioLimits, object]:
    """Return the lengths with which a processor that cuts sounds is called, and the others."""
    calls: list[float] = []

    def process(sound: Sound) -> Processed:
        calls.append(sound.duration_s)
        end = None if most_s is None else round(most_s * sound.rate_hz)
        return Processed(np.zeros(1, np.int32), {"features": sound.samples[:end]})

    return calls, AudioLimits(), process


@pytest.mark.parametrize(
    ("seconds", "parts"), [(1.0, 1), (30.0, 1), (30.2, 2), (70.0, 3), (600.0, 20)]
)
def test_a_sound_is_cut_into_parts_that_fit(seconds: float, parts: int) -> None:
    _, hearing, process = cutting(30.0)
    whole = sound(1, seconds)
    windows = hearing.windows(whole, process)  # type: ignore[arg-type]
    assert len(windows) == parts
    assert all(window.duration_s <= 30.0 for window in windows)
    assert np.array_equal(np.concatenate([each.samples for each in windows]), whole.samples)


def test_the_processor_is_tried_only_with_longer_sounds() -> None:
    calls, hearing, process = cutting(None)
    for seconds in (100.0, 100.0, 50.0, 120.0, 110.0):
        assert len(hearing.windows(sound(1, seconds), process)) == 1  # type: ignore[arg-type]
    assert max(calls) == 120.0
    assert calls == [100.0, 100.0, 120.0, 120.0]


@pytest.mark.parametrize(
    ("family", "seconds", "parts"),
    [("gemma3n", 31.0, 2), ("gemma4", 61.0, 3), ("qwen3_omni_moe", 61.0, 1)],
)
def test_no_family_leaves_out_the_end(
    model_of: Callable[[str], MediaModel], family: str, seconds: float, parts: int
) -> None:
    model = model_of(family)
    long = sound(1, seconds)
    media = model.encode("ab", long, "cd").media
    assert isinstance(media, MediaSpans)
    assert len(media.spans) == parts
    for begin_s in (0.0, seconds / 2, seconds - 0.5):
        samples = np.array(long.samples)
        samples[round(begin_s * RATE_HZ) :][: RATE_HZ // 2] = 0
        other = model.encode("ab", Sound(samples, RATE_HZ), "cd").media
        assert isinstance(other, MediaSpans)
        assert [one.digest for one in media.spans] != [one.digest for one in other.spans]


def test_a_model_that_hears_one_sound_refuses_one_that_is_too_long(
    model_of: Callable[[str], MediaModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("gemma3n")
    monkeypatch.setattr(model.prompts._media, "_takes_several_sounds", False)
    content = [{"type": "audio", "media": 0}, {"type": "text", "text": "a"}]
    source = PromptSource(
        messages=[{"role": "user", "content": content}],
        media=[sound(1, 31.0)],
        media_params=["messages[0].content[0].input_audio"],
    )
    with pytest.raises(RequestError, match=r"30 seconds.*31\.0") as caught:
        model.prompts.encode(source)
    assert caught.value.code is ErrorCode.INVALID_VALUE
    assert caught.value.param == "messages[0].content[0].input_audio"


def test_the_long_sound_of_a_video_is_given_in_parts(model_of: Callable[[str], MediaModel]) -> None:
    model = model_of("gemma4")
    frames = video(1)
    media = model.encode(
        "ab", Video(frames.frames, frames.times_s, 40.0, sound(1, 40.0)), "cd"
    ).media
    assert isinstance(media, MediaSpans)
    assert [span.kind for span in media.spans] == ["video", "audio", "audio"]
