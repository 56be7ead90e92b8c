"""Which beginnings of conversations a machine has computed, as hashes of their text. Pure.

A request's text is cut into blocks, and each block's hash follows from all before it: two requests
have the same hash at a place only if they are the same up to there. It needs no tokenizer, and a
peer learns no text (docs/decisions/prefixes-by-text.md).
"""

import base64
import struct
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

import orjson

BLOCK_BYTES: Final = 512
_MOST_BYTES: Final = 1024 * BLOCK_BYTES
"""What comes after them does not count: they are some 130,000 tokens."""

_FIELDS: Final = ("tools", "functions", "system", "instructions", "messages", "input", "prompt")
"""What a model reads of a request, in the order in which it stands in prompts."""

_MOST_CONVERSATIONS: Final = 256
_HASH_BYTES: Final = 8


def chain(seed: str, text: bytes) -> tuple[int, ...]:
    """Return the hash of each whole block of a request's text, the first one first. ``seed`` tells
    apart what is never shared: models, and clients that share no prefixes."""
    hashes: list[int] = []
    before = blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()
    for begin in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        block = text[begin : begin + BLOCK_BYTES]
        before = blake2b(before + block, digest_size=_HASH_BYTES).digest()
        hashes.append(int.from_bytes(before, "big"))
    return tuple(hashes)


def beginning(body: Mapping[str, Any]) -> bytes:
    """Return the text of a request, as far as it counts. That of a conversation that has grown
    begins with that of the conversation before."""
    text = bytearray()
    for piece in _pieces(body):
        text += piece
        if len(text) >= _MOST_BYTES:
            break
    return bytes(text[:_MOST_BYTES])


def _pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    for name in _FIELDS:
        value = body.get(name)
        if value is None:
            continue
        yield name.encode()
        for entry in value if isinstance(value, list) else (value,):
            yield _text(_without_marks(entry))


def _without_marks(entry: Any) -> Any:
    """Return a message without the marks with which Anthropic's clients say what to cache: they
    move from one request to the next."""
    content = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(content, list):
        return entry
    return {**entry, "content": [_unmarked(part) for part in content]}


def _unmarked(part: Any) -> Any:
    if isinstance(part, dict) and "cache_control" in part:
        return {name: value for name, value in part.items() if name != "cache_control"}
    return part


def _text(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # A number of more than 64 bits.
        return repr(value).encode("utf-8", "surrogatepass")


def longest(hashes: Sequence[int], held: Collection[int]) -> int:
    """Return how many blocks of a request are held."""
    for count in range(len(hashes), 0, -1):
        if hashes[count - 1] in held:
            return count
    return 0


def _kept(hashes: Sequence[int]) -> tuple[int, ...]:
    """Return the hashes by which a conversation is found again: the last one, by which it is found
    when it has grown, and those at growing distances, by which others are found that begin as it
    does. Of a common beginning at least two thirds are found."""
    places, place = {len(hashes)}, 1.0
    while place < len(hashes):
        places.add(int(place))
        place = max(place * 1.4, place + 1)
    return tuple(hashes[place - 1] for place in sorted(places))


class PrefixBook:
    """The latest conversations that one worker has computed. Used from one event loop only."""

    def __init__(self) -> None:
        self._conversations: OrderedDict[int, tuple[tuple[int, ...], float]] = OrderedDict()
        self._held: dict[int, None] = {}
        self._texts: dict[int, str] = {}

    def add(self, hashes: Sequence[int], now_s: float) -> None:
        """Note that a request was computed. It takes the place of one that it continues."""
        if not hashes:
            return
        for one in reversed(hashes):
            if self._conversations.pop(one, None) is not None:
                break
        self._conversations[hashes[-1]] = _kept(hashes), now_s
        if len(self._conversations) > _MOST_CONVERSATIONS:
            self._conversations.popitem(last=False)
        self._held, self._texts = {}, {}

    @property
    def held(self) -> Collection[int]:
        """All hashes by which they are found: each conversation's last one first, then the others,
        of the newest first."""
        if not self._held:
            newest = [kept for kept, _ in reversed(self._conversations.values())]
            last = (kept[-1] for kept in newest)
            self._held = dict.fromkeys((*last, *(one for kept in newest for one in kept[:-1])))
        return self._held.keys()

    def text(self, most: int) -> str:
        """Return the first of them in Base64, ``most`` at most, as peers get them."""
        if most not in self._texts:
            some = list(islice(self.held, most))
            raw = struct.pack(f">{len(some)}Q", *some)
            self._texts = {most: base64.b64encode(raw).decode()}
        return self._texts[most]

    def since(self, at_s: float) -> frozenset[int]:
        """Return the hashes of those that came at that time or later."""
        return frozenset(
            one for kept, added_s in self._conversations.values() if added_s >= at_s for one in kept
        )
