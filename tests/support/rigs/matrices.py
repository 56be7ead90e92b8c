"""Tests that are to hold for every combination of several things. `make test-all` takes as many of
the combinations as show each thing once, and `make conformance` takes all."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def combinations(*axes: Sequence[Any]) -> list[Any]:
    """Return a parameter for each combination of one value of each axis. Those that are not on the
    diagonal, in which each value is at least once, have the mark ``conformance``."""
    steps = max(map(len, axes))
    shown = {tuple(step % len(axis) for axis in axes) for step in range(steps)}
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(axes, places, strict=True)),
            marks=() if places in shown else pytest.mark.conformance,
        )
        for places in product(*(range(len(axis)) for axis in axes))
    ]
