"""The sounds of videos, for models that hear: each is an item of its own, right behind the frames
of its video. This module is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmx.protocol.states import MediaKind
from lmx.worker.media.values import Media, Video


def with_sound_tracks(
    messages: Sequence[Mapping[str, Any]], media: Sequence[Media]
) -> tuple[list[Mapping[str, Any]], list[Media]]:
    """Return the same conversation with a sound behind each video that has one. Its media are then
    in the order of their parts, each of which has one."""
    if not any(isinstance(item, Video) and item.sound is not None for item in media):
        return list(messages), list(media)
    shown: list[Media] = []
    return [_message(message, media, shown) for message in messages], shown


def _message(
    message: Mapping[str, Any], media: Sequence[Media], shown: list[Media]
) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        if "media" not in part:
            parts.append(part)
            continue
        item = media[part["media"]]
        parts.append({**part, "media": len(shown)})
        shown.append(item)
        if isinstance(item, Video) and item.sound is not None:
            parts.append({"type": MediaKind.AUDIO.value, "media": len(shown)})
            shown.append(item.sound)
    return {**message, "content": parts}
