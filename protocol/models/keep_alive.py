"""Reads and writes how long an idle model stays loaded, as people write it. This module is pure."""

import math
import re
from typing import Any, Final

FOREVER_S: Final = -1.0

_TOO_LARGE: Final = 2**63

_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_LONGEST_TEXT: Final = 64
"""A longer text is not read: for endless digits the search for units would take the square of their
number."""

_NEGATIVE: Final = re.compile(r"-\d+(?:\.\d+)?")


def parse_keep_alive(value: Any) -> Any:
    """Return seconds from what people write: ``300``, ``"5m"``, ``"1h30m"``, ``"-1"``,
    ``"forever"``. A negative value means forever. A value that can't be read is returned as it is.

    The forms are those of Ollama (Go's durations), so that its users need not learn others.
    """
    if isinstance(value, bool):
        return str(value)  # it is not a number here, although it is one for Python
    if isinstance(value, int | float):
        # An integer may be too large for a float, and is not a duration then.
        return FOREVER_S if value < 0 else float(value) if value < _TOO_LARGE else math.inf
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        return value
    text = value.strip().lower()
    if text == "forever" or _NEGATIVE.fullmatch(text):
        return FOREVER_S
    parts = text.removeprefix("-")
    if parts and _PART.sub("", parts) == "":
        seconds = sum(float(count) * _UNITS_S[unit] for count, unit in _PART.findall(parts))
        return seconds if parts == text else FOREVER_S
    return text


def keep_alive_text(seconds: float) -> str:
    """Return what :func:`parse_keep_alive` reads as these seconds, to the millisecond:
    ``1h30m``, ``forever``."""
    if seconds < 0:
        return "forever"
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (milliseconds / 1000, "s"))
    return "".join(f"{count:g}{unit}" for count, unit in parts if count) or "0s"
