"""A small JSON file of lmx's own state. It is read within limits and written completely or not at
all. A file that is not what it should be is set aside, so that lmx always starts."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.host.quarantine_file import quarantine_file
from lmx.protocol.host.regular_file import TooLargeError, parse_json, read_regular
from lmx.supervisor.state.atomic_write import atomic_write

log = structlog.get_logger()

_MOST_BYTES: Final = 64 * 1024**2
_NO_FAULT_OF_THE_FILE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
_DAMAGE: Final = (
    *(ProtocolError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError),
    RecursionError,
)
"""What reading a value of another form may raise."""

_T = TypeVar("_T")


def discard_notice(_text: str) -> None:
    """Do nothing. It is for readers that have only the log."""


class StateFile(Generic[_T]):
    """One file. ``parse`` makes the value from the JSON that was read, and may raise the errors
    that values of another form cause. ``notify`` is called with a sentence for people when the file
    is set aside."""

    def __init__(
        self, path: Path, parse: Callable[[Any], _T], notify: Callable[[str], None] = discard_notice
    ) -> None:
        self.path = path
        self._parse = parse
        self._notify = notify
        self.unread = False
        """Whether the last :meth:`load` failed, and that was not the file's own fault."""

    def load(self) -> _T | None:
        """Return the value, or None.

        A file that can't be read is set aside, and people are notified. If the fault is not the
        file's own (the disk's, for example), it is set aside only when it is written again."""
        self.unread = False
        try:
            return self._read()
        except _UnreadableError as error:
            self.quarantine_file(str(error))
        except OSError as error:
            self.unread = True
            self._report(
                f"{self.path} can't be read ({error.strerror or error}): lmx continues without it, "
                "and sets it aside before it is written again"
            )
        return None

    def peek(self) -> _T | None:
        """Return what :meth:`load` returns, and leave the file as it is, because it belongs to
        another process."""
        try:
            return self._read()
        except (_UnreadableError, OSError) as error:
            log.warning("state.unreadable", path=str(self.path), error=str(error))
            return None

    def quarantine_file(self, why: str) -> None:
        """Move the file out of the way, and notify people."""
        try:
            aside = quarantine_file(self.path)
        except OSError as error:
            self._report(f"{self.path} {why}, and can't be set aside ({error.strerror or error})")
            return
        self._report(f"{self.path} {why}: it was set aside as {aside.name}")

    def save(self, values: Any, *, lasting: bool = False) -> None:
        """Write the file completely or not at all, and make its folder. Only the owner can read the
        file. With ``lasting`` that holds in a power cut too. Raises ``OSError``."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.unread:
            self._keep_unread()
        text = json.dumps(values, indent=1, sort_keys=False)
        atomic_write(self.path, text, lasting=lasting)

    def save_or_refuse(self, values: Any) -> None:
        """Do what a lasting :meth:`save` does, and raise :class:`OperationError` if it fails."""
        try:
            self.save(values, lasting=True)
        except OSError as error:
            raise OperationError(
                ErrorCode.INTERNAL,
                f"can't write {self.path} ({error.strerror or error}), so nothing was changed",
            ) from error

    def _keep_unread(self) -> None:
        """Set the file aside, because nobody knows what a write would overwrite. This may run in a
        thread, so that it does not call ``notify``."""
        if os.path.lexists(self.path):
            aside = quarantine_file(self.path)
            log.warning("state.unread_quarantined", path=str(self.path), aside=aside.name)
        self.unread = False

    def _read(self) -> _T | None:
        """Read the file. Raises :class:`_UnreadableError` if the file itself is at fault, else
        ``OSError``."""
        try:
            content = read_regular(self.path, _MOST_BYTES)
        except FileNotFoundError as error:
            if not os.path.lexists(self.path):
                return None
            raise _UnreadableError("is a link to nowhere") from error
        except TooLargeError as error:
            raise _UnreadableError(f"is too large ({error})") from error
        except OSError as error:
            if error.errno in _NO_FAULT_OF_THE_FILE:
                raise
            raise _UnreadableError(f"is no file that can be read ({error})") from error
        if not content:
            raise _UnreadableError("is empty")
        try:
            return self._parse(parse_json(content))
        except _DAMAGE as error:
            raise _UnreadableError(f"is damaged ({type(error).__name__}: {error})") from error

    def _report(self, text: str) -> None:
        log.error("state.quarantined", path=str(self.path), detail=text)
        self._notify(text)


class _UnreadableError(Exception):
    """The file is not what it should be. The text says why, and follows the file's name."""
