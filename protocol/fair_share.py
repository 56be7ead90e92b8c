"""How much of a queue one owner may take, so that others always find room in it. This module is
pure."""

from typing import Final

_TIMES_FREE: Final = 8


def has_capacity(places: int, held: int, own: int) -> bool:
    """Return whether an owner that has ``own`` of the ``held`` places of a queue may have another.

    An owner may have at most eight times as many places as are free. One owner alone gets eight
    ninths of a large queue, and all of a small one (below nine places). Two get eight seventeenths
    each. When ``n`` owners take all that they can, one part of ``8 n + 1`` stays free for the next
    owner. This is the dynamic threshold of shared buffers in network switches (Choudhury and
    Hahne, 1998). It needs no list of the owners that might come.
    """
    free = places - held
    return free > 0 and own < _TIMES_FREE * free
