"""Reads a small file that anybody may have put there: a regular one, up to a size, never waiting
for what is on the other end of a pipe. JSON in it has limits too."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

_MOST_LEVELS: Final = 64
"""Of arrays and objects within each other; a model's configuration has five."""


class IrregularFileError(OSError):
    """There is something of that name, and it is no regular file: a folder, a pipe, a device."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. A pipe without a writer is not waited for.

    Raises ``OSError``; :class:`IrregularFileError`, which is one, for what is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IrregularFileError(f"{path.name} is not a regular file")
        return open(descriptor, "rb")  # noqa: PTH123  of a descriptor
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return all of a file. Raises ``OSError`` as :func:`open_regular`, and ``ValueError`` for
    more than ``most_bytes``."""
    with open_regular(path) as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise ValueError(f"{path.name} has more than {most_bytes} bytes")
    return found


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text, also one with NaN or Infinity, which configurations of
    real models have. Raises ``ValueError`` for what is none and for more than 64 levels of nesting.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _refuse_depth(value)
    return value


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise ValueError("it is nested too deeply")
