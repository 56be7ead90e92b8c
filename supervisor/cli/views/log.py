"""Reads log files for the CLI; follows them over a rotation."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.log_files import rotated

_POLL_S: Final = 0.2


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log file; none if there is no such file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=count)]
    except FileNotFoundError:
        return []


def show_log(path: Path, count: int, *, follow: bool) -> None:
    """Print the end of a log; with ``follow``, go on until interrupted.

    Raises :class:`OperationError` when there is no log yet.
    """
    if not path.exists():
        raise OperationError(
            ErrorCode.NOT_FOUND,
            f"there is no log at {path}: the process has not run in this LMX_HOME",
        )
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=count):
            sys.stdout.write(line)
        position = file.tell()
    sys.stdout.flush()
    inode = path.stat().st_ino
    while follow:
        time.sleep(_POLL_S)
        try:
            info = path.stat()
        except FileNotFoundError:
            continue
        if info.st_ino != inode or info.st_size < position:
            if info.st_ino == inode:
                # It was full: what is not shown yet was copied to the first older file.
                _show(rotated(path, 1), position)
            inode, position = info.st_ino, 0
        if info.st_size > position:
            position = _show(path, position)


def _show(path: Path, position: int) -> int:
    """Print what a file has after a position; returns its end."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            file.seek(position)
            sys.stdout.write(file.read())
            position = file.tell()
    except FileNotFoundError:
        return 0
    sys.stdout.flush()
    return position
