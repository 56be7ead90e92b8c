"""Decides whether a spare worker is kept: a process that has imported its libraries and waits for
the model that it is to serve. This module is pure."""

from dataclasses import dataclass
from typing import Final

from lmx.protocol.states import MemoryPressure

SPARE_BYTES: Final = 160 * 1024**2
"""What a spare worker takes of the budget, until it is known to hold more."""

AGAIN_S: Final = 60.0
"""The wait for another one after one has ended by itself: twice as long each time."""
_MOST_AGAIN_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class SpareView:
    """What is known when it is decided."""

    allowed: bool
    """Whether the configuration wants it, and lmx serves and is not being stopped."""
    needed: bool
    """Whether a model that could take it is not loaded, and may be at any time."""
    pressure: MemoryPressure
    free_bytes: int
    """What no model has of the budget."""
    held_bytes: int
    """What the spare worker was last measured to hold, or 0."""
    settled: bool
    """Whether nothing is loaded now that imports would slow down."""
    ended: int = 0
    """How many spare workers in a row ended by themselves."""
    since_end_s: float = 0.0
    """The time since the last of them did."""


def keeps_spare(view: SpareView) -> bool:
    """Return whether a spare worker that runs may stay."""
    return (
        view.allowed
        and view.needed
        and view.pressure is MemoryPressure.NONE
        and view.free_bytes >= max(SPARE_BYTES, view.held_bytes)
    )


def begins_spare(view: SpareView) -> bool:
    """Return whether one is begun, where none runs."""
    if not keeps_spare(view) or not view.settled:
        return False
    return not view.ended or view.since_end_s >= min(
        _MOST_AGAIN_S, AGAIN_S * 2 ** min(view.ended - 1, 10)
    )
