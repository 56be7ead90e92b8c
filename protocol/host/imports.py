"""Lets a process that has just started import its modules in less time."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lmx.protocol.host.dataclass_methods import methods_at_first_use

_RICH = "rich"
_NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import within the block what a long-lived process needs.

    What is imported stays as long as the process, so that no garbage collection visits it, neither
    now nor later. Methods of dataclasses are made when they are used, structlog is imported without
    rich, and pydantic looks for no plugins: it would read the entry points of every package that is
    installed.
    """
    gc.disable()
    os.environ.setdefault(*_NO_PLUGINS)
    try:
        with methods_at_first_use():
            import_structlog()
            yield
    finally:
        gc.freeze()
        gc.enable()


def users_environment() -> dict[str, str]:
    """Return the environment for a program of the user's, which may want pydantic's plugins."""
    return {name: value for name, value in os.environ.items() if (name, value) != _NO_PLUGINS}


def import_structlog() -> None:
    """Import structlog without rich, which it would import to draw tracebacks."""
    if _RICH in sys.modules:
        return
    sys.modules[_RICH] = None  # type: ignore[assignment]  # to Python: there is no such module
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules[_RICH]
