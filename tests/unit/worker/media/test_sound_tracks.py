"""A model that hears is given the sound of a video behind its frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmx.worker.media.sound_tracks import with_sound_tracks
from lmx.worker.media.values import Media, Picture, Sound, Video

FRAMES = np.zeros((1, 2, 2, 3), np.uint8)
TRACK = Sound(np.ones(4, np.float32), 8)
HEARD, SILENT = Video(FRAMES, (0.0,), 1.0, TRACK), Video(FRAMES, (0.0,), 1.0)
SEEN, SPOKEN = Picture(FRAMES[0]), Sound(np.ones(2, np.float32), 8)


def test_each_sound_is_behind_its_video() -> None:
    media: list[Media] = [HEARD, SEEN, SILENT, HEARD, SPOKEN]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "plain"},
        {"role": "user", "content": [
            {"type": "video", "media": 0}, {"type": "text", "text": "a"},
            {"type": "image", "media": 1}, {"type": "video", "media": 2}]},
        {"role": "user", "content": [{"type": "video", "media": 3}, {"type": "audio", "media": 4}]},
    ]  # fmt: skip
    told, shown = with_sound_tracks(messages, media)
    assert told == [
        {"role": "system", "content": "plain"},
        {"role": "user", "content": [
            {"type": "video", "media": 0}, {"type": "audio", "media": 1},
            {"type": "text", "text": "a"}, {"type": "image", "media": 2},
            {"type": "video", "media": 3}]},
        {"role": "user", "content": [
            {"type": "video", "media": 4}, {"type": "audio", "media": 5},
            {"type": "audio", "media": 6}]},
    ]  # fmt: skip
    assert shown == [HEARD, TRACK, SEEN, SILENT, HEARD, TRACK, SPOKEN]
    assert messages[1]["content"][0] == {"type": "video", "media": 0}, "the request is as it was"


def test_without_sounds_nothing_changes() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image", "media": 0}]},
        {"role": "assistant"},
    ]
    assert with_sound_tracks(messages, [SEEN]) == (messages, [SEEN])
