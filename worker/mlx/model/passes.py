"""Reports each forward pass of a load, whichever model makes it: a load that computes makes
progress. Engine thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_report: Callable[[], None] | None = None


@contextmanager
def report_passes_to(report: Callable[[], None]) -> Iterator[None]:
    """Call ``report`` at each forward pass of any model until the end of the block."""
    global _report
    _report = report
    try:
        yield
    finally:
        _report = None


def note_pass() -> None:
    """Note that a forward pass begins, so that what was computed before it is done; or that weights
    were read."""
    if _report is not None:
        _report()
