"""Lets a load hear of each forward pass that it makes, whoever makes it: a load that computes makes
progress. Engine thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_hear: Callable[[], None] | None = None


@contextmanager
def passes_heard_by(hear: Callable[[], None]) -> Iterator[None]:
    """Call ``hear`` with each forward pass of any model until the end of the block."""
    global _hear
    _hear = hear
    try:
        yield
    finally:
        _hear = None


def note_pass() -> None:
    """Note that a forward pass begins, so that what was computed before it is done; or that weights
    were read."""
    if _hear is not None:
        _hear()
