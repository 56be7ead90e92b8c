"""Text for people that strangers may have written: a library's error, a hub's refusal, the name
that a client sent. It has no length that anybody promises, so it is cut where it enters lmx.

There are four such places, and each cuts by :func:`clamp` or :func:`clamp_values`: messages, whose
fields of the type :data:`FreeText` are cut when they are sent and when they arrive
(:mod:`lmx.protocol.wire.codec`); errors (:class:`lmx.protocol.errors.LmxError`); log lines
(:mod:`lmx.protocol.host.logs`); and the supervisor's events. Pure.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

LONGEST: Final = 4096
"""The most characters of a text for people: more than a screen of them."""

MOST_VALUES: Final = 32 * 1024
"""The most characters of all that an event or a log line says, about."""

_END_SHARE: Final = 4
_VALUE: Final = 8
"""What a value that is no text counts for."""


@dataclass(frozen=True, slots=True)
class Clamped:
    """Marks the type of a field whose text is cut: see :data:`FreeText`."""


FreeText = Annotated[str, Clamped()]
"""The type of a field of a message that holds a text for people."""


def clamp(text: str, longest: int = LONGEST) -> str:
    """Return a text of at most ``longest`` characters. A longer one loses its middle: errors begin
    with what failed, and end with why."""
    if len(text) <= longest:
        return text
    gap = f" [... {len(text) - longest} characters more ...] "
    end = longest // _END_SHARE
    begin = longest - end - len(gap)
    return text[:begin] + gap + text[-end:] if begin > 0 else text[: max(longest, 0)]


def clamp_values(value: Any, most: int = MOST_VALUES) -> Any:
    """Return plain values that can be written as JSON, with at most about ``most`` characters in
    all. What is no plain value is replaced by its text."""
    return _Allowance(most).filled(value)


def terminal_text(text: str) -> str:
    """Return a text that may be written to a terminal: without control characters, with which
    whoever wrote it could change the terminal, and without those that reverse the order of what
    follows. It may have several lines."""
    return _OBEYED.sub("?", text)


_OBEYED: Final = re.compile(
    # Controls and lone surrogates, then the embeddings, overrides and isolates of writing
    # directions.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)


def text_of(value: object) -> str:
    """Return ``str(value)``, cut. Never raises, whatever the value's own code does."""
    try:
        return clamp(str(value))
    except Exception as error:
        return f"{type(value).__name__} without a text ({type(error).__name__})"


class _Allowance:
    """How many characters are left for the values that come."""

    def __init__(self, most: int) -> None:
        self._left = most

    def filled(self, value: Any) -> Any:
        self._left -= _VALUE
        match value:
            case None | bool() | float():
                return value
            case int():
                return min(max(value, -(2**63)), 2**64 - 1)
            case str():
                return self._text(value)
            case dict():
                found = {}
                for name, inner in value.items():
                    if self._left <= 0:
                        break
                    found[self._text(text_of(name))] = self.filled(inner)
                return found
            case list() | tuple() | set() | frozenset():
                items = []
                for inner in value:
                    if self._left <= 0:
                        break
                    items.append(self.filled(inner))
                return items
            case _:
                return self._text(text_of(value))

    def _text(self, text: str) -> str:
        found = clamp(text, min(LONGEST, max(self._left, 0)))
        self._left -= len(found)
        return found
