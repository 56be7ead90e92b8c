"""The seeds of answers and of draws. Pure."""

from typing import Any, Final, TypeVar, cast

WORD: Final = 0xFFFF_FFFF_FFFF_FFFF

_Words = TypeVar("_Words")


def splitmix64(state: _Words) -> _Words:
    """Return the output of splitmix64 for a state: a number below 2^64, or an array of ``uint64``,
    which numpy multiplies modulo 2^64."""
    mixed: Any = state
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & WORD
    return cast("_Words", mixed ^ (mixed >> 31))


def answer_seed(seed: int, index: int) -> int:
    """Return the seed of one of several answers; the first has the request's own."""
    return splitmix64((seed + index * 0xD1B5_4A32_D192_ED03) & WORD) if index else seed
