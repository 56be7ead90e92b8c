"""How much of a queue one owner may take, so that others always find room in it. Pure."""

from __future__ import annotations

from typing import Final

_TIMES_FREE: Final = 8


def has_room(places: int, held: int, own: int) -> bool:
    """Return whether an owner that has ``own`` of the ``held`` places of a queue may have another.

    One may have at most eight times what is free, so that one alone gets eight ninths of a large
    queue and all of a small one (below nine places); two get eight seventeenths each; ``n`` that
    take all they can leave one part of ``8 n + 1`` free for who comes next. That is the dynamic
    threshold of shared buffers in network switches (Choudhury and Hahne, 1998): it needs no list
    of who might come.
    """
    free = places - held
    return free > 0 and own < _TIMES_FREE * free
