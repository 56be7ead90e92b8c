"""Lets a process that has just started import its modules in less time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RICH = "rich"


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import within the block what a long-lived process needs.

    What is imported stays as long as the process, so that no garbage collection visits it, neither
    now nor later. And structlog is imported without rich, which it would import to draw tracebacks
    on a terminal: they are plain there.
    """
    gc.disable()
    try:
        _import_structlog()
        yield
    finally:
        gc.freeze()
        gc.enable()


def _import_structlog() -> None:
    if _RICH in sys.modules:
        return
    sys.modules[_RICH] = None  # type: ignore[assignment]  # to Python: there is no such module
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules[_RICH]
