"""A model's own processor, given decoded media in memory: never a path, never an address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, assert_never

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_vlm.utils import prepare_inputs
from PIL import Image

from lmx.protocol.states import MediaKind
from lmx.worker.media.values import Media, Picture, Sound, Video

_OF_TEXT: Final = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "num_image_tokens"}
)
"""What a processor says of the tokens and not of the media."""

_TICKS_HZ: Final = 1000
"""The moments of frames are given to processors as numbers of frames at this rate."""


class Processed(NamedTuple):
    """What a processor makes of one picture, sound or video."""

    tokens: npt.NDArray[np.int32]
    """What stands for it in a prompt."""
    inputs: Mapping[str, Any]
    """What the model's encoder takes."""


def process(processor: Any, media: Media, marker: str, image_token: int | None) -> Processed:
    """Return what the model gets for one picture, sound or video.

    ``marker`` is what the chat template writes for it, and ``image_token`` the number of the
    placeholder, which a few processors must be told. Prompt thread. Raises ``ValueError`` and what
    else a processor raises for something that it can't take.
    """
    # The device is the engine thread's; this is nothing but converting.
    with mx.stream(mx.cpu):
        made = prepare_inputs(
            processor,
            prompts=marker,
            image_token_index=image_token,
            add_special_tokens=False,
            **_arguments(media),
        )
        tokens = np.array(made["input_ids"]).reshape(-1).astype(np.int32)
        inputs = {
            name: _to_numpy(value)
            for name, value in made.items()
            if name not in _OF_TEXT and value is not None
        }
    return Processed(tokens, inputs)


def kind_of(media: Media) -> MediaKind:
    """Return the kind of a decoded part."""
    match media:
        case Picture():
            return MediaKind.IMAGE
        case Sound():
            return MediaKind.AUDIO
        case Video():
            return MediaKind.VIDEO
        case _:
            assert_never(media)


def _arguments(media: Media) -> dict[str, Any]:
    match media:
        case Picture():
            return {"images": [Image.fromarray(media.pixels)]}
        case Sound():
            return {"audio": [media.samples]}
        case Video():
            metadata = {
                "total_num_frames": max(1, round(media.duration_s * _TICKS_HZ)),
                "fps": float(_TICKS_HZ),
                "frames_indices": [round(time_s * _TICKS_HZ) for time_s in media.times_s],
                "height": media.frames.shape[1],
                "width": media.frames.shape[2],
                "duration": media.duration_s,
            }
            frames = np.ascontiguousarray(media.frames.transpose(0, 3, 1, 2))
            return {"videos": [frames], "video_metadata": [metadata]}
        case _:
            assert_never(media)


def _to_numpy(value: Any) -> Any:
    if isinstance(value, mx.array):
        if value.dtype == mx.bfloat16:
            value = value.astype(mx.float32)
        return np.array(value)
    if isinstance(value, list | tuple):
        return [_to_numpy(part) for part in value]
    return value


def to_mlx(value: Any) -> Any:
    """Return an input with MLX's arrays. Engine thread."""
    if isinstance(value, np.ndarray):
        return mx.array(value)
    if isinstance(value, list):
        return [to_mlx(part) for part in value]
    return value
