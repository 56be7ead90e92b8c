"""Whether what a model wrote for a window is taken, or drawn again at a higher temperature. Pure.

The limits are those of OpenAI's Whisper, but for the second rule of silence.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
