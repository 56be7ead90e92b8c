"""Videos with sound as Qwen3-Omni was taught to take them: frames and sound in turns by their time,
and at the positions of that time."""

from types import SimpleNamespace

import numpy as np
import pytest
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor

from lmx.worker.media.values import Video
from lmx.worker.mlx.media.media_prompt import interleaved
from lmx.worker.mlx.media.processor import Processed
from lmx.worker.mlx.media.spans import MediaSpans
from lmx.worker.mlx.model.patches.qwen3_omni import OmniTokens, omni_positions
from tests.support.models.media_models import make_media_model
from tests.support.rigs.media_check import (
    CHUNKS,
    TOLERANCE,
    MediaModel,
    check_cached,
    picture,
    sound,
    video,
)

IMAGE, SEEN, HEARD = 1, 2, 3
VISION_START, VISION_END, AUDIO_START, AUDIO_END = 4, 5, 6, 7
TEXT = 9
KNOWN = OmniTokens(IMAGE, SEEN, VISION_START, AUDIO_START, AUDIO_END, 2, 13.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MediaModel:
    return MediaModel(make_media_model(tmp_path_factory.mktemp("omni"), "qwen3_omni_moe"))


@pytest.mark.parametrize("seconds", [2.0, 1.0, 0.7])
@pytest.mark.parametrize(("grids", "heard"), [(1, 5), (3, 8), (3, 200), (5, 40), (2, 1)])
def test_the_tokens_are_those_of_the_reference(grids: int, heard: int, seconds: float) -> None:
    grid = np.array([[grids, 4, 6]])
    reference = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2),
        audio_bos_token="a", audio_eos_token="A", video_token="v", audio_token="s",
    )  # fmt: skip
    right = Qwen3OmniMoeProcessor.replace_video_with_audio_token(
        reference,
        {"video_grid_thw": grid, "video_second_per_grid": [seconds]}, 0,
        {"num_audio_tokens": [heard]}, 0, position_id_per_seconds=13.0,
    )  # fmt: skip
    seen = [VISION_START, *[SEEN] * (grids * 6), VISION_END]
    reported = [AUDIO_START, *[HEARD] * heard, AUDIO_END]
    found = interleaved(
        Processed(
            np.array(seen, np.int32),
            {"video_grid_thw": grid, "video_second_per_grid": np.array([seconds])},
        ),
        Processed(np.array(reported, np.int32), {}),
        {SEEN, HEARD},
    )
    letters = {SEEN: "v", HEARD: "s", AUDIO_START: "a", AUDIO_END: "A"}
    assert (found[0], found[-1]) == (VISION_START, VISION_END)
    assert "".join(letters[token] for token in found[1:-1]) == right


def test_a_picture_and_a_video_have_the_positions_of_their_places_and_times() -> None:
    tokens = [TEXT, VISION_START, *[IMAGE] * 4, VISION_END, VISION_START, *[SEEN] * 4, VISION_END]
    found = omni_positions(tokens, [(1, 4, 4)], [(2, 2, 4)], [1.0], KNOWN)
    assert found.tolist() == [
        [0, 1, 2, 2, 2, 2, 4, 5, 6, 6, 19, 19, 20],
        [0, 1, 2, 2, 3, 3, 4, 5, 6, 6, 6, 6, 20],
        [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 6, 7, 20],
    ]


def test_a_sound_between_the_frames_has_the_positions_of_its_time() -> None:
    tokens = [
        TEXT, VISION_START, AUDIO_START, SEEN, *[HEARD] * 13, SEEN, HEARD, AUDIO_END, VISION_END,
        TEXT, AUDIO_START, HEARD, AUDIO_END,
    ]  # fmt: skip
    found = omni_positions(tokens, [], [(2, 2, 2)], [1.0], KNOWN)
    assert found[0].tolist() == [*range(3), 3, *range(3, 16), 16, 16, 17, 18, 19, 20, 21, 22]
    # Height and width of what is seen begin where the video does.
    assert found[1, [3, 17]].tolist() == [3, 3]
    assert found[1, 4:17].tolist() == list(range(3, 16))


@pytest.mark.parametrize("videos", [0, 2])
def test_grids_that_do_not_fit_are_an_error(videos: int) -> None:
    with pytest.raises(ValueError, match="grids"):
        omni_positions([VISION_START, SEEN, TEXT], [], [(1, 2, 2)] * videos, [1.0] * videos, KNOWN)


def test_the_sound_of_a_video_is_between_its_frames(model: MediaModel) -> None:
    frames = video(1, 6)
    whole = Video(frames.frames, frames.times_s, 3.0, sound(1, 3.0))
    prompt = model.encode("ab", picture(1), whole, "cd", sound(2), "ef")
    media = prompt.media
    assert isinstance(media, MediaSpans)
    _, seen, heard, _ = media.spans
    assert seen.start < heard.start < seen.end < heard.end
    tokens = np.array(prompt.tokens)
    assert len(set(tokens[seen.places])) == len(set(tokens[heard.places])) == 1
    assert tokens[seen.places[0]] != tokens[heard.places[0]]
    right = model.logits(prompt)
    for chunk in CHUNKS[1:]:
        assert np.abs(model.logits(prompt, chunk) - right).max() < TOLERANCE * right.std()
    check_cached(model, prompt, right)
    for other in (
        Video(frames.frames, frames.times_s, 3.0, sound(3, 3.0)),
        Video(frames.frames, tuple(2 * time_s for time_s in frames.times_s), 6.0, sound(1, 3.0)),
    ):
        changed = model.logits(model.encode("ab", picture(1), other, "cd", sound(2), "ef"))
        assert np.abs(changed - right).max() > 10 * TOLERANCE * right.std()
