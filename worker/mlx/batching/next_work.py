"""What the engine does next for its rows: a step of the shortest ones, a step of longer ones, or a
chunk of a prompt. Pure.

The shortest rows wait for a chunk or for longer rows, never for both, and for each of these in
turn: neither holds up the other.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final, NamedTuple


class Shortest(StrEnum):
    """What the shortest rows have waited for last, and whether they have stepped since."""

    WAITED_FOR_CHUNK = "waited for a chunk"
    STEPPED_AFTER_CHUNK = "stepped after a chunk"
    WAITED_FOR_LONGER = "waited for longer rows, or nothing decoded"
    STEPPED_AFTER_LONGER = "stepped after longer rows"


class Work(Enum):
    """What one step of the engine is."""

    STEP = "step the shortest rows"
    """They may draw ahead."""
    STEP_AND_RETURN = "step the shortest rows, and return what they draw"
    """A chunk comes next or was before: their tokens don't wait for another step, which on a CPU
    is nearly done when its tokens are there."""
    STEP_LONGER = "step longer rows"
    READ = "read a chunk of a prompt"
    RETURN = "return what is drawn"
    """No token waits for a chunk."""


class Standing(NamedTuple):
    """What it is decided by."""

    shortest: Shortest
    decodes: bool
    """Whether any row or search decodes."""
    has_prompt: bool
    """Whether a chunk of a prompt can be read."""
    longer_due: bool
    """Whether longer rows have their turn."""
    is_ahead: bool
    """Whether a token is drawn and not returned; ignored without a prompt."""

    def after(self, work: Work) -> Shortest:
        """Return what the shortest rows have waited for, once the work is done."""
        if work is Work.STEP or work is Work.STEP_AND_RETURN:
            return _STEPPED.get(self.shortest, self.shortest)
        if work is Work.READ and self.decodes:
            return Shortest.WAITED_FOR_CHUNK
        return self.shortest if work is Work.RETURN else Shortest.WAITED_FOR_LONGER


_STEPPED: Final = {
    Shortest.WAITED_FOR_CHUNK: Shortest.STEPPED_AFTER_CHUNK,
    Shortest.WAITED_FOR_LONGER: Shortest.STEPPED_AFTER_LONGER,
}

_ALONE, _PROMPT, _LONGER, _BOTH = (False, False), (True, False), (False, True), (True, True)

_TABLE: Final[Mapping[tuple[bool, bool], Mapping[Shortest, Work]]] = {
    _ALONE: {
        Shortest.WAITED_FOR_CHUNK: Work.STEP_AND_RETURN,
        Shortest.STEPPED_AFTER_CHUNK: Work.STEP,
        Shortest.WAITED_FOR_LONGER: Work.STEP,
        Shortest.STEPPED_AFTER_LONGER: Work.STEP,
    },
    _LONGER: {
        Shortest.WAITED_FOR_CHUNK: Work.STEP_AND_RETURN,
        Shortest.STEPPED_AFTER_CHUNK: Work.STEP_LONGER,
        Shortest.WAITED_FOR_LONGER: Work.STEP_LONGER,
        Shortest.STEPPED_AFTER_LONGER: Work.STEP_LONGER,
    },
    _PROMPT: {
        Shortest.WAITED_FOR_CHUNK: Work.STEP_AND_RETURN,
        Shortest.STEPPED_AFTER_CHUNK: Work.READ,
        Shortest.WAITED_FOR_LONGER: Work.STEP_AND_RETURN,
        Shortest.STEPPED_AFTER_LONGER: Work.READ,
    },
    _BOTH: {
        Shortest.WAITED_FOR_CHUNK: Work.STEP_AND_RETURN,
        Shortest.STEPPED_AFTER_CHUNK: Work.STEP_LONGER,
        Shortest.WAITED_FOR_LONGER: Work.STEP_AND_RETURN,
        Shortest.STEPPED_AFTER_LONGER: Work.READ,
    },
}
"""While rows decode, or there is nothing to do: a row for what else could be done, a prompt or
longer rows."""


def next_work(standing: Standing) -> Work:
    """Return what to do."""
    if standing.has_prompt and not standing.decodes:
        return Work.READ
    work = _TABLE[standing.has_prompt, standing.longer_due][standing.shortest]
    return Work.RETURN if work is Work.READ and standing.is_ahead else work
