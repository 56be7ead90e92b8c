"""A small JSON file of lmx's own state: read within limits, written whole, and set aside when it is
not what it should be, so that lmx always starts."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog

from lmx.protocol.host.regular_file import parse_json, read_regular
from lmx.protocol.host.set_aside import set_aside
from lmx.supervisor.state.atomic_write import atomic_write

log = structlog.get_logger()

_MOST_BYTES: Final = 64 * 1024**2
_NO_FAULT_OF_THE_FILE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})

_T = TypeVar("_T")


def say_nothing(_text: str) -> None:
    """For a reader that has nobody to tell but the log."""


class StateFile(Generic[_T]):
    """One file. ``parse`` makes the value of what was read as JSON, and may raise what values of
    another form raise; ``say`` is told, in a sentence for people, what was set aside."""

    def __init__(
        self, path: Path, parse: Callable[[Any], _T], say: Callable[[str], None] = say_nothing
    ) -> None:
        self.path = path
        self._parse = parse
        self._say = say
        self._unread = False

    def load(self) -> _T | None:
        """Return the value, None if there is none. What can't be read is set aside and said; where
        that is no fault of the file's, it is set aside only when it is written anew."""
        self._unread = False
        try:
            return self._read()
        except _UnreadableError as error:
            self.set_aside(str(error))
        except OSError as error:
            self._unread = True
            self._tell(
                f"{self.path} can't be read ({error.strerror or error}): lmx goes on without it, "
                "and sets it aside before it is written anew"
            )
        return None

    def peek(self) -> _T | None:
        """As :meth:`load`, and leave the file as it is: it is another process's."""
        try:
            return self._read()
        except (_UnreadableError, OSError) as error:
            log.warning("state.unreadable", path=str(self.path), error=str(error))
            return None

    def set_aside(self, why: str) -> None:
        """Move the file out of the way, and say so."""
        try:
            aside = set_aside(self.path)
        except OSError as error:
            self._tell(f"{self.path} {why}, and can't be set aside ({error.strerror or error})")
            return
        self._tell(f"{self.path} {why}: it was set aside as {aside.name}")

    def save(self, values: Any) -> None:
        """Write the file whole or not at all, readable by its owner alone; its folder is made.
        Raises ``OSError``."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._unread:
            self._keep_unread()
        atomic_write(self.path, json.dumps(values, indent=1, sort_keys=False))

    def _keep_unread(self) -> None:
        """Nobody knows what would be overwritten. May be called in a thread: it says nothing."""
        if os.path.lexists(self.path):
            aside = set_aside(self.path)
            log.warning("state.unread_set_aside", path=str(self.path), aside=aside.name)
        self._unread = False

    def _read(self) -> _T | None:
        """Raises :class:`_UnreadableError` for what is at fault itself, else ``OSError``."""
        try:
            content = read_regular(self.path, _MOST_BYTES)
        except FileNotFoundError as error:
            if not os.path.lexists(self.path):
                return None
            raise _UnreadableError("is a link to nowhere") from error
        except OSError as error:
            if error.errno in _NO_FAULT_OF_THE_FILE:
                raise
            raise _UnreadableError(f"is no file that can be read ({error})") from error
        except ValueError as error:
            raise _UnreadableError(f"is too large ({error})") from error
        if not content:
            raise _UnreadableError("is empty")
        try:
            return self._parse(parse_json(content))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise _UnreadableError(f"is damaged ({type(error).__name__}: {error})") from error

    def _tell(self, text: str) -> None:
        log.error("state.set_aside", path=str(self.path), detail=text)
        self._say(text)


class _UnreadableError(Exception):
    """The file is not what it should be; the text says why, after its name."""
