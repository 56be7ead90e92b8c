"""When a spare worker is kept, and when one is begun."""

from dataclasses import replace
from typing import Any

import pytest

from lmx.protocol.states import MemoryPressure
from lmx.supervisor.decisions.spare import (
    AGAIN_S,
    SPARE_BYTES,
    SpareView,
    begins_spare,
    keeps_spare,
)

GOOD = SpareView(
    allowed=True,
    needed=True,
    pressure=MemoryPressure.NONE,
    free_bytes=SPARE_BYTES,
    held_bytes=0,
    settled=True,
)


@pytest.mark.parametrize(
    ("change", "keeps", "begins"),
    [
        ({}, True, True),
        ({"allowed": False}, False, False),
        ({"needed": False}, False, False),
        ({"pressure": MemoryPressure.SOFT}, False, False),
        ({"pressure": MemoryPressure.HARD}, False, False),
        ({"free_bytes": SPARE_BYTES - 1}, False, False),
        ({"held_bytes": SPARE_BYTES + 1}, False, False),
        # While something loads, one that is there stays, and none is begun.
        ({"settled": False}, True, False),
        # Each end makes the next one wait longer, an hour at most.
        ({"ended": 1, "since_end_s": AGAIN_S - 1}, True, False),
        ({"ended": 1, "since_end_s": AGAIN_S}, True, True),
        ({"ended": 2, "since_end_s": AGAIN_S}, True, False),
        ({"ended": 2, "since_end_s": 2 * AGAIN_S}, True, True),
        ({"ended": 10_000, "since_end_s": 3599.0}, True, False),
        ({"ended": 10_000, "since_end_s": 3600.0}, True, True),
    ],
)
def test_when_there_is_a_spare_worker(change: dict[str, Any], keeps: bool, begins: bool) -> None:
    view = replace(GOOD, **change)
    assert (keeps_spare(view), begins_spare(view)) == (keeps, begins)
