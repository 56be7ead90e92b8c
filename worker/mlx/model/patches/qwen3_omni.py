"""The positions of videos in Qwen3-Omni, of which mlx-vlm's class makes something else.

Written for mlx-vlm 0.7.10, which counts the frames of a video one by one, however much time is
between them, and takes a video with its sound in between for text. In transformers 5.23
``Qwen3OmniMoePreTrainedModelForConditionalGeneration.get_rope_index`` places both by their time.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from lmx.worker.mlx.module_calls import replace_methods

_SECONDS_A_GRID: Final = 2.0
"""The time between two grids of two frames each, of which there is one a second."""

Grid = tuple[int, int, int]


class OmniTokens(NamedTuple):
    """What the positions follow from, besides the tokens."""

    image: int
    video: int
    vision_start: int
    audio_start: int
    audio_end: int
    merged: int
    """So many patches become one token, in each direction."""
    positions_a_second: float


def patch_qwen3_omni(model: Any) -> None:
    """Make a Qwen3-Omni's positions right."""
    language_model = model.language_model
    plain = type(language_model)
    config = language_model.config
    known = OmniTokens(
        image=config.image_token_id,
        video=config.video_token_id,
        vision_start=config.vision_start_token_id,
        audio_start=config.audio_start_token_id,
        audio_end=config.audio_end_token_id,
        merged=config.vision_config.spatial_merge_size,
        positions_a_second=config.position_id_per_seconds,
    )

    def positions(
        patched: Any,
        input_ids: mx.array,
        image_grid_thw: mx.array | None = None,
        video_grid_thw: mx.array | None = None,
        attention_mask: mx.array | None = None,
        video_second_per_grid: mx.array | None = None,
    ) -> tuple[mx.array, mx.array]:
        if image_grid_thw is None and video_grid_thw is None:
            found: tuple[mx.array, mx.array] = plain.get_rope_index(
                patched, input_ids, None, None, attention_mask
            )
            return found
        images, videos = _grids(image_grid_thw), _grids(video_grid_thw)
        seconds = [_SECONDS_A_GRID] * len(videos)
        if video_second_per_grid is not None:
            seconds = np.array(video_second_per_grid).tolist()
        (tokens,) = np.array(input_ids).tolist()
        rows = omni_positions(tokens, images, videos, seconds, known)
        delta = float(rows.max()) + 1 - len(tokens)
        return mx.array(rows)[:, None], mx.array([[delta]])

    replace_methods(language_model, get_rope_index=positions)


def omni_positions(
    tokens: Sequence[int],
    images: Sequence[Grid],
    videos: Sequence[Grid],
    seconds: Sequence[float],
    known: OmniTokens,
) -> npt.NDArray[np.float32]:
    """Return the positions of the tokens of a prompt in time, height and width, [3, tokens].

    ``seconds`` are those between two grids of each video. Raises ``ValueError`` if there are more
    or fewer pictures or videos in the prompt.
    """
    found = np.zeros((3, len(tokens)), np.float32)
    left = iter(images), iter(zip(videos, seconds, strict=True))
    place, following = 0, 0.0
    while place < len(tokens):
        before = list(tokens[max(0, place - 2) : place])
        together = before == [known.vision_start, known.audio_start]
        if tokens[place] == known.image:
            grid, step = _next(left[0]), 0.0
        elif tokens[place] == known.video or together:
            grid, each_s = _next(left[1])
            step = each_s * known.positions_a_second
        else:
            found[:, place] = following
            place, following = place + 1, following + 1
            continue
        seen = following + _patches(grid, step, known.merged)
        end = place + seen.shape[1]
        if together:
            end = tokens.index(known.audio_end, place)
        kinds = np.asarray(tokens[place:end])
        is_seen = np.isin(kinds, (known.image, known.video))
        if is_seen.sum() != seen.shape[1]:
            raise ValueError("the prompt has another number of pictures than it has grids")
        here = found[:, place:end]
        here[:, is_seen] = seen
        here[:, ~is_seen] = following + np.arange(len(kinds) - seen.shape[1])
        place, following = end, float(here.max()) + 1
    if any(next(rest, None) is not None for rest in left):
        raise ValueError("the prompt has fewer pictures and videos than it has grids")
    return found


def _next(left: Any) -> Any:
    found = next(left, None)
    if found is None:
        raise ValueError("the prompt has more pictures and videos than it has grids")
    return found


def _patches(grid: Grid, step: float, merged: int) -> npt.NDArray[np.float32]:
    """Return the positions of the tokens of a picture or a video, from 0 on, [3, tokens]."""
    frames, height, width = grid
    places = np.indices((frames, height // merged, width // merged)).reshape(3, -1)
    return places.astype(np.float32) * np.array([[step], [1], [1]], np.float32)


def _grids(grids: mx.array | None) -> list[Grid]:
    return [] if grids is None else [tuple(grid) for grid in np.array(grids).tolist()]
