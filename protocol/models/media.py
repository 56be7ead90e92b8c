"""What a model takes besides text, by the weights that are in its folder. This module is pure.

The type of a model does not say it: text-only conversions of models with eyes have their type.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lmx.protocol.models.checkpoint import CheckpointConfig
from lmx.protocol.states import MediaKind

_EYES: Final = re.compile(r"vision|visual|image|video|\bvpm\.")
_EARS: Final = re.compile(r"audio|speech|sound|\bapm\.")
_BETWEEN: Final = re.compile(r"multi_modal|mm_projector|perceiver")
"""What turns the one or the other into what a language model reads."""

_VIDEO_TOKENS: Final = ("video_token_id", "video_token_index")
"""Models that take videos name the token that stands for one."""

_THINKER: Final = "thinker_config"
"""Where models that also speak describe the part of them that reads and writes."""


def media_kinds(config: CheckpointConfig, tensors: Iterable[str]) -> frozenset[MediaKind]:
    """Return what a model takes besides text. ``tensors``: the names of its weights."""
    names = tuple(tensors)
    kinds = set()
    if any(map(_EYES.search, names)):
        kinds.add(MediaKind.IMAGE)
        if _names_video(config.whole) or _names_video(config.whole.get(_THINKER)):
            kinds.add(MediaKind.VIDEO)
    if any(map(_EARS.search, names)):
        kinds.add(MediaKind.AUDIO)
    return frozenset(kinds)


def of_media(tensor: str) -> bool:
    """Return whether a weight is one of a model's eyes or ears, by its name."""
    return any(part.search(tensor) for part in (_EYES, _EARS, _BETWEEN))


def _names_video(section: Any) -> bool:
    if not isinstance(section, Mapping):
        return False
    return any(isinstance(section.get(name), int) for name in _VIDEO_TOKENS)
