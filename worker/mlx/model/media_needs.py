"""What a model takes besides text, and in which form: by its weights, and by its processor."""

from __future__ import annotations

import inspect
from typing import Any, Final

from mlx_vlm.prompt_utils import SINGLE_IMAGE_ONLY_MODELS
from mlx_vlm.utils import processor_video_sampling

from lmx.protocol.states import MediaKind
from lmx.worker.media.values import MediaNeeds

_ARGUMENTS: Final = {
    MediaKind.IMAGE: ("images",),
    MediaKind.AUDIO: ("audio", "audios"),
    MediaKind.VIDEO: ("videos",),
}
"""By which names processors take them."""

_SAMPLE_RATE_HZ: Final = 16_000
"""That of a processor which doesn't say it."""


def media_needs(processor: Any, model_type: str, kinds: frozenset[MediaKind]) -> MediaNeeds | None:
    """Return what a model takes of the ``kinds`` that it has weights for. None: nothing, because
    its processor takes none of them."""
    taken = frozenset(kind for kind in kinds if _takes(processor, kind))
    if not taken:
        return None
    hears = MediaKind.AUDIO in taken
    return MediaNeeds(
        taken,
        sample_rate_hz=_sample_rate_hz(processor) if hears else None,
        max_items=_max_items(processor, model_type, taken),
        max_frames=_max_frames(processor) if MediaKind.VIDEO in taken else None,
        hears_video=hears and MediaKind.VIDEO in taken,
    )


def _takes(processor: Any, kind: MediaKind) -> bool:
    if kind is MediaKind.AUDIO and getattr(processor, "feature_extractor", processor) is None:
        return False
    parameters = inspect.signature(getattr(processor, "process", processor)).parameters
    return any(name in parameters for name in _ARGUMENTS[kind])


def _sample_rate_hz(processor: Any) -> int:
    extractor = getattr(processor, "feature_extractor", None)
    return int(getattr(extractor, "sampling_rate", _SAMPLE_RATE_HZ))


def _max_items(
    processor: Any, model_type: str, taken: frozenset[MediaKind]
) -> dict[MediaKind, int]:
    found = {}
    if MediaKind.IMAGE in taken and model_type in SINGLE_IMAGE_ONLY_MODELS:
        found[MediaKind.IMAGE] = 1
    if MediaKind.AUDIO in taken and not getattr(processor, "supports_multiple_audio", False):
        found[MediaKind.AUDIO] = 1
    return found


def _max_frames(processor: Any) -> int | None:
    most: int | None = processor_video_sampling(processor).max_frames
    return most
