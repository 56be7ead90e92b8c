"""Ollama's ``context``: a conversation as numbers, which a client sends back to continue it. Pure.

At Ollama the numbers are the tokens of the prompt and the answer. Clients do not look into them, so
here they are the turns themselves: the model's template shows them as it shows any conversation,
which a list of tokens in front of a new prompt would not be, and any model can continue them.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

import orjson

Turn = tuple[str, str]
"""Who speaks, and the text."""

MOST_NUMBERS: Final = 1_000_000
"""The most that a context may have; as many as a body may hold."""

_MARK: Final = int.from_bytes(b"lmx1")
_NUMBER_BYTES: Final = 4
_MOST_BYTES: Final = 16 * 1024 * 1024
"""The longest conversation that is read."""

_ROLES: Final = frozenset({"system", "user", "assistant"})


def context_of(turns: Sequence[Turn]) -> list[int]:
    """Return a conversation as numbers from 0 to 2^32 - 1: about one for four tokens."""
    packed = zlib.compress(orjson.dumps(turns), 1)
    padded = packed + b"\0" * (-len(packed) % _NUMBER_BYTES)
    numbers = struct.unpack(f">{len(padded) // _NUMBER_BYTES}I", padded)
    return [_MARK, len(packed), *numbers]


def turns_of(context: Sequence[int]) -> list[Turn]:
    """Return the conversation. Raises :class:`ValueError` for other numbers."""
    if len(context) < 2 or context[0] != _MARK:
        raise ValueError("it begins otherwise")
    try:
        padded = struct.pack(f">{len(context) - 2}I", *context[2:])
        reader = zlib.decompressobj()
        turns = orjson.loads(reader.decompress(padded[: context[1]], _MOST_BYTES))
    except (struct.error, zlib.error, orjson.JSONDecodeError) as error:
        raise ValueError("it is damaged") from error
    if not reader.eof:
        raise ValueError("it is cut off")
    if not isinstance(turns, list) or not all(map(_is_turn, turns)):
        raise ValueError("it is no conversation")
    return [(role, text) for role, text in turns]


def _is_turn(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and value[0] in _ROLES
        and isinstance(value[1], str)
    )
