"""How the markers around a model's thinking can be written with its tokens. Pure.

A marker may be one token, or text whose tokens also have parts of the text before and behind it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lmx.worker.constraints.grammar import Mask, pack

LINE_BREAKS: Final = b"\r\n"
_SPACE: Final = b" \r\n"


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker, as the bytes of its text; a special token in it has bytes that no text has."""

    data: bytes
    onward: Sequence[Mask]
    """The tokens that continue the marker, by how many of its bytes are written. The last of them
    may have more text behind the marker, the first has at most white space before it."""
    spilling: Sequence[Mask]
    """The tokens that end the marker with more than line breaks behind it, by the bytes written."""

    def begun_by(self, data: bytes) -> int:
        """Return how many bytes of the marker the end of ``data`` has, if not all of them."""
        longest = min(len(data), len(self.data) - 1)
        lengths = range(longest, 0, -1)
        return next((one for one in lengths if data.endswith(self.data[:one])), 0)


def leading(data: bytes) -> bytes:
    """Return the bytes of a token without the white space that may come before a marker."""
    return data.lstrip(_SPACE)


def marker_tokens(data: bytes, listed: Sequence[tuple[bytes, int]], width: int) -> Marker:
    """Return a marker, given all tokens that have bytes, in the order of these, and the width of
    the masks. It takes 0.2 s for 150,000 tokens."""
    texts = [text for text, _ in listed]

    def beginning(text: bytes) -> Iterable[tuple[bytes, int]]:
        for index in range(bisect_left(texts, text), len(texts)):
            if not texts[index].startswith(text):
                return
            yield listed[index]

    def onward(rest: bytes) -> set[int]:
        found = {token for _, token in beginning(rest)}
        for length in range(1, len(rest)):
            index = bisect_left(texts, rest[:length])
            while index < len(texts) and texts[index] == rest[:length]:
                found.add(listed[index][1])
                index += 1
        return found

    inside = {token for text, token in listed if _spills(text, data)}
    onwards, spilling = [], []
    spaced = {
        token
        for text, token in listed
        if text[:1] in (b" ", b"\n", b"\r") and (rest := leading(text)) and _continues(rest, data)
    }
    for read in range(len(data)):
        onwards.append(pack(onward(data[read:]) | (set() if read else spaced), width))
        # The beginning of the marker may be written more than once, one inside the other.
        found = set(inside)
        for length in range(1, read + 1):
            if data[:read].endswith(data[:length]):
                ending = beginning(data[length:])
                found |= {token for text, token in ending if _spills(data[:length] + text, data)}
        spilling.append(pack(found, width))
    return Marker(data, onwards, spilling)


def _continues(text: bytes, data: bytes) -> bool:
    return data.startswith(text) or text.startswith(data)


def _spills(text: bytes, data: bytes) -> bool:
    """Return whether there is more than line breaks behind the marker in ``text``."""
    _, found, behind = text.partition(data)
    return bool(found and behind.strip(LINE_BREAKS))
