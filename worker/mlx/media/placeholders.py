"""Which tokens of a model stand for what a picture, a sound or a video becomes."""

from __future__ import annotations

import itertools
from typing import Any, Final

_NAMES: Final = frozenset(
    f"{what}_{number}"
    for what, number in itertools.product(
        (
            *("image_token", "img_token", "image_context_token", "img_context_token"),
            *("media_placeholder_token", "video_token", "audio_token"),
        ),
        ("id", "index", "idx"),
    )
)
"""Their names in config.json, of all families."""

_SECTIONS: Final = ("thinker_config", "text_config")


def placeholder_ids(config: Any, processor: Any) -> frozenset[int]:
    """Return the placeholders of a model, of all kinds, by its configuration and its processor."""
    found = _named(config) | _named(processor)
    for section in _SECTIONS:
        found |= _named(getattr(config, section, None))
    return frozenset(found)


def image_token_id(config: Any) -> int | None:
    """Return the placeholder of pictures; None if the configuration does not name it."""
    for name in ("image_token_index", "image_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int):
            return token
    return None


def _named(owner: Any) -> set[int]:
    tokens = (getattr(owner, name, None) for name in _NAMES)
    return {token for token in tokens if isinstance(token, int) and token >= 0}
