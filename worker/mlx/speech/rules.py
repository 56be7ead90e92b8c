"""Which tokens may come next in a transcript with time stamps. Pure.

A segment is written as a stamp, text and a stamp; stamps never go back. The rules are those of
OpenAI's Whisper (``ApplyTimestampRules``).
"""

from __future__ import annotations

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
