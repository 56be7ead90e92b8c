"""Whisper's rules around the network: which tokens may come next in a transcript with time stamps,
whether what was written for a window is taken or drawn again at a higher temperature, how the
tokens are cut into segments, and where the next window begins. Pure.

They are those of OpenAI's Whisper (``ApplyTimestampRules``; ``transcribe``), but for the second
rule of silence. A segment is written as a stamp, text and a stamp; stamps never go back.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STAMPS_PER_SECOND: Final = 50
"""Stamps are 20 ms apart."""

_LATEST_BEGIN: Final = STAMPS_PER_SECOND
"""A window's first segment begins within its first second. Where there is silence, the window
says so by its end, and not by a late beginning."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that may come next."""

    text: bool
    """Whether any token of text may come."""
    end: bool
    """Whether the transcript may end."""
    first_stamp: int
    """The earliest stamp that may come, counted from the window's beginning."""
    last_stamp: int
    """The latest one. It is before ``first_stamp`` if none may come."""


def allowed_next(tokens: Sequence[int], stamp_begin: int, stamps: int) -> Allowed:
    """Return what may follow ``tokens``, which the model has written for this window.

    ``stamp_begin`` is the token of the first stamp, and ``stamps`` how many there are.
    """
    if not tokens:
        return Allowed(text=False, end=False, first_stamp=0, last_stamp=_LATEST_BEGIN)
    last_is_stamp = tokens[-1] >= stamp_begin
    opens = last_is_stamp and (len(tokens) < 2 or tokens[-2] >= stamp_begin)
    if opens:
        return Allowed(text=True, end=True, first_stamp=0, last_stamp=-1)
    latest = next((token for token in reversed(tokens) if token >= stamp_begin), stamp_begin)
    # The next segment may begin where this one has ended; but none has the length 0.
    first = latest - stamp_begin + (0 if last_is_stamp else 1)
    return Allowed(text=not last_is_stamp, end=True, first_stamp=first, last_stamp=stamps - 1)


TEMPERATURES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""They are tried in this order, unless the request has a temperature of its own."""

FORGET_ABOVE_TEMPERATURE: Final = 0.5
"""What was drawn at a higher temperature is no context for the next window."""

_MOST_COMPRESSION: Final = 2.4
_LEAST_LOGPROB: Final = -1.0
_MOST_NO_SPEECH: Final = 0.6

_SURELY_NO_SPEECH: Final = 0.9
_FEW_TOKENS: Final = 6
"""A word or two, with the stamps around it, where the model is almost sure that nobody speaks: what
Whisper writes for soft noise is "you" or "Thank you"."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the model wrote for a window at one temperature."""

    tokens: tuple[int, ...]
    """With the stamps, without the token that ends it."""
    text: str
    temperature: float
    avg_logprob: float
    """The mean of the tokens' logprobs, that of the end included."""
    no_speech_prob: float
    """How likely the model finds it that nobody speaks in the window."""

    @property
    def compression_ratio(self) -> float:
        """How much shorter the text gets by compression: text that repeats itself gets much
        shorter."""
        encoded = self.text.encode()
        return len(encoded) / len(zlib.compress(encoded))


def is_silence(attempt: Attempt) -> bool:
    """Return whether nothing is said in the window: the model thinks so, and is not sure of its
    text; or it is almost sure of that, and its text is a word or two."""
    if attempt.no_speech_prob > _SURELY_NO_SPEECH and len(attempt.tokens) < _FEW_TOKENS:
        return True
    return attempt.no_speech_prob > _MOST_NO_SPEECH and attempt.avg_logprob < _LEAST_LOGPROB


def is_poor(attempt: Attempt) -> bool:
    """Return whether the window is to be tried again: the text repeats itself, or is unlikely."""
    if is_silence(attempt):
        return False
    return attempt.compression_ratio > _MOST_COMPRESSION or attempt.avg_logprob < _LEAST_LOGPROB


def best_of(attempts: Sequence[Attempt]) -> Attempt:
    """Return the best of attempts none of which is good: the likeliest text that does not repeat
    itself, if there is one."""
    varied = [one for one in attempts if one.compression_ratio <= _MOST_COMPRESSION]
    return max(varied or attempts, key=lambda one: one.avg_logprob)


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
