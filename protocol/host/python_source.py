"""Python source as a tree, and its literals as values."""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def python_tree(source: str) -> ast.Module:
    """Return and raise what ``ast.parse`` does."""
    with _no_collection():
        return ast.parse(source)


def python_value(text: str) -> Any:
    """Return and raise what ``ast.literal_eval`` does."""
    with _no_collection():
        return ast.literal_eval(text)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile.

    Python before 3.11.8 counts the depth of all trees that it builds in one place, and may collect
    garbage as it builds one. If a finalizer then prints a traceback, which builds another tree, the
    first fails with a SystemError (CPython's issue 106905).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
