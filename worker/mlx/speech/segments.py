"""Cuts the tokens of a window into segments, and decides where the next window begins. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FRAMES_PER_SECOND: Final = 100
"""Frames of a spectrogram are 10 ms apart."""

FRAMES_PER_STAMP: Final = 2

WINDOW_FRAMES: Final = 3000
"""Whisper takes 30 s at a time."""

_LEAST_ADVANCE_FRAMES: Final = 10
"""A window begins at least this much after the one before, so that any sound comes to an end."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A segment of a window."""

    start: int
    """The stamp at which it begins, counted from the window's beginning."""
    end: int
    tokens: tuple[int, ...]
    """Its tokens, with its stamps."""


@dataclass(frozen=True, slots=True)
class CutWindow:
    """The segments of a window."""

    segments: tuple[Cut, ...]
    advance_frames: int
    """How far behind this window's beginning the next one begins."""
    whole: bool
    """Whether the model has encoded this window to its end: its last segment was complete, and
    nothing was said after it."""


def cut_window(tokens: Sequence[int], stamp_begin: int, window_frames: int) -> CutWindow:
    """Return the segments of a window of ``window_frames``, as OpenAI's Whisper cuts them.

    If the last segment is not complete, the next window begins with it. A window without complete
    segments is one segment.
    """
    is_stamp = [token >= stamp_begin for token in tokens]
    whole = is_stamp[-2:] == [False, True]
    ends = [index for index in range(1, len(tokens)) if is_stamp[index - 1] and is_stamp[index]]
    if not ends:
        stamps = [token - stamp_begin for token in tokens if token >= stamp_begin]
        end = stamps[-1] if stamps and stamps[-1] > 0 else window_frames // FRAMES_PER_STAMP
        return CutWindow((Cut(0, end, tuple(tokens)),), window_frames, whole)
    if whole:
        ends.append(len(tokens))
    segments = []
    begin = 0
    for end in ends:
        part = tuple(tokens[begin:end])
        segments.append(Cut(part[0] - stamp_begin, part[-1] - stamp_begin, part))
        begin = end
    heard_frames = (tokens[ends[-1] - 1] - stamp_begin) * FRAMES_PER_STAMP
    return CutWindow(tuple(segments), window_frames if whole else heard_frames, whole)


def next_seek(seek: int, advance_frames: int) -> int:
    """Return the frame at which the next window begins."""
    return seek + max(advance_frames, _LEAST_ADVANCE_FRAMES)
