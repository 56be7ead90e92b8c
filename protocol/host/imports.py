"""Lets a process that has just started import its modules in less time."""

import functools
import gc
import os
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager

from lmx.protocol.host.dataclass_methods import methods_at_first_use

_RICH = "rich"
_NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import within the block what a long-lived process needs.

    What is imported stays as long as the process, so that no garbage collection visits it, neither
    now nor later. Methods of dataclasses are made when they are used, an annotation that occurs
    often is compiled once, structlog is imported without rich, and pydantic looks for no plugins:
    it would read the entry points of every package that is installed.
    """
    gc.disable()
    os.environ.setdefault(*_NO_PLUGINS)
    try:
        with methods_at_first_use(), _annotations_compiled_once():
            import_structlog()
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _annotations_compiled_once() -> Iterator[None]:
    """Within the block ``typing`` compiles each annotation that is a text once. It checks them by
    compiling them; pydantic alone has a thousand, and they are a hundred different ones."""
    parts = vars(typing)
    before = parts.get("compile", compile)
    setattr(typing, "compile", functools.cache(compile))  # noqa: B010  mypy allows no other
    try:
        yield
    finally:
        if before is compile:
            parts.pop("compile", None)
        else:
            setattr(typing, "compile", before)  # noqa: B010  mypy allows no other


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
