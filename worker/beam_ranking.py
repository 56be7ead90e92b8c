"""Which continuations a beam search goes on with, which it keeps as hypotheses, when it ends.

As Transformers does it, without early stopping. Pure: knows nothing of models and caches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from lmx.worker.engine import BeamSearch


class Continuation(NamedTuple):
    """A token after one of the running beams; ``total`` is the sum of all logprobs with it."""

    total: float
    beam: int
    token: int


class Choice(NamedTuple):
    """What becomes of a step's continuations, each part best first."""

    ended: Sequence[Continuation]
    running: Sequence[Continuation]


def considered(beam: BeamSearch) -> int:
    """Return how many continuations a step looks at: enough to go on by ``width`` of them
    though every beam should end in each possible way; twice the width for one end token."""
    return beam.width * (1 + max(1, len(beam.end_ids)))


def choose(continuations: Iterable[Continuation], beam: BeamSearch, last: bool) -> Choice:
    """Sort a step's continuations out. In the ``last`` step all come to their end.

    Only ends among the best ``width`` count. Of equal ones, the earlier beam's comes first,
    then the lower token.
    """
    ranked = sorted(continuations, key=lambda one: (-one.total, one.beam, one.token))
    ranked = ranked[: considered(beam)]
    ended = [one for one in ranked[: beam.width] if last or one.token in beam.end_ids]
    running = [one for one in ranked if one.token not in beam.end_ids]
    return Choice(ended, [] if last else running[: beam.width])


def score(total: float, length: int, length_penalty: float) -> float:
    """Return a hypothesis' score: ``total`` divided by its ``length`` (its tokens, the end
    token too) to the power of ``length_penalty``; above 0 it favours long ones."""
    # At most e^600, so that the product is a float too.
    return total * math.exp(min(600.0, -length_penalty * math.log(length)))


def is_settled(
    kept_scores: Collection[float], best_running: float, length: int, beam: BeamSearch
) -> bool:
    """Return whether a search can end: ``width`` hypotheses are kept, and the best running
    beam, were it to end at its present ``length``, would be none of them.

    A guess where length is rewarded: it might still have become one.
    """
    if len(kept_scores) < beam.width:
        return False
    return score(best_running, length, beam.length_penalty) <= min(kept_scores)
