"""Which machine answers a request. Pure: one table, the best first.

Of the machines that have the model, the request goes to the one that

1. has computed the longest part of its text already, if that is at least a quarter of it and the
   machine is not full twice over: so a conversation stays where it is;
2. has the model loaded, and a row free;
3. has it loaded, and fewer requests in line than it computes at a time;
4. has room to load it now, or loads it already;
5. has it loaded, however many are in line;
6. must evict other models to load it: the least bytes first.

Among equals the least busy one is first, then this machine, which needs no hop.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Rank(IntEnum):
    """Why a machine is taken, the best reason first."""

    PREFIX = 0
    IDLE = 1
    BUSY = 2
    FITS = 3
    FULL = 4
    EVICTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A machine that has a model which may answer."""

    machine: str
    model_id: str
    own: bool = False
    """Whether it is this machine."""
    place: int = 0
    """The model's place among those that may answer, 0 for the first one: as a route lists them."""
    loaded: bool = False
    loads: bool = False
    """Whether the model is being loaded."""
    rows: int = 1
    running: int = 0
    """Requests for the model that are under way, those that wait among them."""
    free_bytes: int = 0
    needed_bytes: int | None = None
    can_load: bool = True
    held_blocks: int = 0
    """How many blocks of the request's text are computed there already."""
    tokens_per_s: float | None = None


_LEAST_SHARE: Final = 0.25
_STEPS: Final = 10
"""Prefixes that differ by less than a tenth of the request count as equal, so that the less busy
machine gets it."""


def ranked(candidates: Iterable[Candidate], blocks: int) -> tuple[tuple[Candidate, Rank], ...]:
    """Return the candidates that can answer, the best first. ``blocks`` is how many the request's
    text has."""
    found = [(one, rank) for one in candidates if (rank := _rank(one, blocks)) is not None]
    known = [one.tokens_per_s for one, _ in found if one.tokens_per_s]
    # One whose speed is not known yet counts as fast as the others are on average.
    usual = sum(known) / len(known) if known else 1.0
    return tuple(sorted(found, key=lambda each: _order(each[0], each[1], blocks, usual)))


def _rank(one: Candidate, blocks: int) -> Rank | None:
    if one.loaded:
        share = one.held_blocks / blocks if blocks else 0.0
        if share >= _LEAST_SHARE and one.running < 2 * one.rows:
            return Rank.PREFIX
        if one.running < one.rows:
            return Rank.IDLE
        return Rank.BUSY if one.running < 2 * one.rows else Rank.FULL
    if one.loads:
        return Rank.FITS
    if not one.can_load:
        return None
    fits = one.needed_bytes is None or one.needed_bytes <= one.free_bytes
    return Rank.FITS if fits else Rank.EVICTS


def _order(
    one: Candidate, rank: Rank, blocks: int, usual_tokens_per_s: float
) -> tuple[float | str, ...]:
    prefix = one.held_blocks * _STEPS // blocks if rank is Rank.PREFIX and blocks else 0
    evicted = (one.needed_bytes or 0) - one.free_bytes if rank is Rank.EVICTS else 0
    # A faster machine with as many requests is less busy.
    busy = one.running / one.rows / (one.tokens_per_s or usual_tokens_per_s)
    return (rank, one.place, -prefix, evicted, busy, not one.own, one.machine)
