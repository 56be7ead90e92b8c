"""Reads log files for the CLI; follows them over a rotation."""

import json
import sys
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.log_files import rotated

_POLL_S: Final = 0.2
_LONGEST: Final = 200
"""A value that is longer is cut on a terminal."""


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log file; none if there is no such file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=count)]
    except FileNotFoundError:
        return []


def pretty(line: str) -> str:
    """Return a line of a log for a person: the time here, what happened, to which model, and why.
    A line that is no event, as of a library, stays as it is."""
    try:
        event = json.loads(line)
        at = datetime.fromisoformat(event.pop("timestamp")).astimezone()
        name, level = str(event.pop("event")), str(event.pop("level", "info"))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return shown(line)
    for each in ("process", "pid", "home"):
        event.pop(each, None)
    parts = [at.strftime("%Y-%m-%d %H:%M:%S")]
    if level != "info":
        parts.append(click.style(shown(level), fg="red" if level == "error" else "yellow"))
    parts.append(click.style(shown(name), bold=True))
    details = [str(found) for each in ("model", "detail") if (found := event.pop(each, None))]
    error = _last_error(event.pop("exception", None))
    details += [error] if error else []
    details += [f"{each}={_short(value)}" for each, value in event.items() if value is not None]
    return "  ".join([*parts, *map(shown, details)])


def _last_error(traceback: Any) -> str | None:
    try:
        return f"{traceback[-1]['exc_type']}: {traceback[-1]['exc_value']}"
    except (TypeError, LookupError):
        return None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def shown(text: str) -> str:
    """Return a text of a log as it may be written to a terminal: on one line, and without what
    would change the terminal."""
    return "".join(
        letter if letter == "\t" or letter.isprintable() else " " for letter in text
    ).rstrip()


def show_log(path: Path, count: int, *, follow: bool, as_json: bool = True) -> None:
    """Print the end of a log; with ``follow``, continue until interrupted. Without ``as_json`` each
    line is made for a person.

    Raises :class:`OperationError` when there is no log yet.
    """
    if not path.exists():
        raise OperationError(
            ErrorCode.NOT_FOUND,
            f"there is no log at {path}: the process has not run in this LMX_HOME",
        )
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, maxlen=count):
            sys.stdout.write(_form(line, as_json))
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
                _show(rotated(path, 1), position, as_json)
            inode, position = info.st_ino, 0
        if info.st_size > position:
            position = _show(path, position, as_json)


def print_lines(lines: Iterable[str], *, as_json: bool) -> None:
    """Print lines of a log as they come, as :func:`show_log` does."""
    for line in lines:
        sys.stdout.write(_form(f"{line}\n", as_json))
        sys.stdout.flush()


def _form(text: str, as_json: bool) -> str:
    return text if as_json else "".join(f"{pretty(line)}\n" for line in text.splitlines())


def _show(path: Path, position: int, as_json: bool) -> int:
    """Print what a file has after a position; returns its end."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            file.seek(position)
            sys.stdout.write(_form(file.read(), as_json))
            position = file.tell()
    except FileNotFoundError:
        return 0
    sys.stdout.flush()
    return position
