"""Reads a small file that anybody may have put there. It must be a regular file up to a size, and
reading never waits for the other end of a pipe. JSON in it has limits too."""

import codecs
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

_MOST_LEVELS: Final = 64
"""How deeply arrays and objects may be nested. A model's configuration has five levels."""


class IrregularFileError(OSError):
    """The name exists and is not a regular file: it is a folder, a pipe or a device."""


class TooLargeError(IrregularFileError):
    """The file has more bytes than a file of its purpose."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, without waiting for the writer of a pipe.

    Raises ``OSError``, and its subclass :class:`IrregularFileError` if it is not a regular file.
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
    """Return the whole content of a file. Raises ``OSError`` as :func:`open_regular` does, and its
    subclass :class:`TooLargeError` if the file has more than ``most_bytes``. Whoever reads a file
    expects an ``OSError``."""
    with open_regular(path) as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise TooLargeError(f"{path.name} has more than {most_bytes} bytes")
    return found


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text, with or without a byte order mark. NaN and Infinity are
    allowed, because configurations of real models have them. Raises ``ValueError`` if it is not
    JSON or has more than 64 levels of nesting.
    """
    try:
        value = json.loads(content.removeprefix(codecs.BOM_UTF8))
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
