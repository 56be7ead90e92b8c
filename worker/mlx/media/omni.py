"""Videos with sound as Qwen3-Omni takes them: each sound between the frames at its time.

Written as transformers 5.23 has it in ``Qwen3OmniMoeProcessor.replace_video_with_audio_token``: the
frames of a grid stand where it begins, and behind them what is heard until the next one begins.
mlx-vlm 0.7.10 takes all videos for such of one frame a second.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lmx.worker.media.values import Video
from lmx.worker.mlx.media.processor import Processed

_PROCESSOR: Final = "Qwen3OmniMoeProcessor"
_HEARD_A_SECOND: Final = 13.0
"""How many tokens stand for a second of sound."""
_SECONDS: Final = "video_second_per_grid"


def is_omni(processor: Any) -> bool:
    """Return whether a processor is Qwen3-Omni's."""
    return type(processor).__name__ == _PROCESSOR


def hear_all(processor: Any) -> None:
    """Let Qwen3-Omni's processor take sounds of any length. Of mlx-vlm's, Whisper's extractor cuts
    them at 30 seconds without a word; transformers tells it not to."""
    if is_omni(processor) and processor.feature_extractor is not None:
        processor.feature_extractor.n_samples = 2**62


def timed(processor: Any, video: Video, processed: Processed) -> Processed:
    """Return a video's frames with the time between two grids of them."""
    times_s = video.times_s
    between_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else 1.0
    frames = processor.video_processor.temporal_patch_size
    seconds = np.array([frames * between_s], np.float32)
    return processed._replace(inputs={**processed.inputs, _SECONDS: seconds})


def interleaved(
    video: Processed, sound: Processed, placeholders: Collection[int]
) -> npt.NDArray[np.int32]:
    """Return the tokens of a video and its sound: their beginnings, what is seen and what is heard
    in turns, and their ends. ``video`` is :func:`timed`."""
    ids = list(placeholders)
    seen, heard = (np.flatnonzero(np.isin(one.tokens, ids)) for one in (video, sound))
    grids = int(video.inputs["video_grid_thw"][0][0])
    grid_of_seen = np.repeat(np.arange(grids), len(seen) // grids)
    seen_at = grid_of_seen * float(video.inputs[_SECONDS][0]) * _HEARD_A_SECOND
    tokens = np.concatenate([video.tokens[seen], sound.tokens[heard]])
    # What is seen comes first where both are at one time.
    order = np.argsort(np.concatenate([seen_at, np.arange(len(heard))]), kind="stable")
    return np.concatenate(
        [
            *(video.tokens[: seen[0]], sound.tokens[: heard[0]]),
            tokens[order],
            *(sound.tokens[heard[-1] + 1 :], video.tokens[seen[-1] + 1 :]),
        ]
    )
