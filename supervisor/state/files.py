"""The files in which the supervisor keeps its processes and operators' orders (which models are
pinned, unpinned, drained). They outlive the supervisor."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.host.quarantine_file import quarantine_file
from lmx.protocol.host.regular_file import read_regular
from lmx.supervisor.events import Events
from lmx.supervisor.state.atomic_write import atomic_write
from lmx.supervisor.state.disk_retry import DiskRetry
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records
from lmx.supervisor.state.state_file import StateFile, discard_notice


class Holds:
    """A small JSON file, a list of model ids, and of ``*`` for the machine."""

    def __init__(self, path: Path, notify: Callable[[str], None] = discard_notice) -> None:
        self._file = StateFile(path, _parse_holds, notify)

    @property
    def path(self) -> Path:
        return self._file.path

    def load(self) -> frozenset[str]:
        """Return the ids, none if there is no file. An unreadable file is set aside, and then no
        model is held: a model that answers does less harm than one that refuses requests while
        nobody knows why."""
        return self._file.load() or frozenset()

    def save(self, held: Collection[str]) -> None:
        """Write all ids, completely or not at all. Raises ``OSError``."""
        self._file.save(sorted(held))


def _parse_holds(found: Any) -> frozenset[str]:
    if not isinstance(found, list):
        raise TypeError("it is no list")
    return frozenset(name for name in found if isinstance(name, str))


log = structlog.get_logger()


class Pins:
    """A small JSON file, ``{model id: pinned}``, of what differs from the configuration."""

    def __init__(self, path: Path, notify: Callable[[str], None] = discard_notice) -> None:
        self._file = StateFile(path, _parse_pins, notify)

    def load(self) -> dict[str, bool]:
        """Return the pins, which may be empty. An unreadable file is set aside and counts as
        empty, because the pins of the configuration are as good a start."""
        return self._file.load() or {}

    def save(self, pins: Mapping[str, bool]) -> str | None:
        """Write all pins, completely or not at all. Returns None, or for people the file and the
        reason why it could not be written. Then the pins hold until the supervisor ends."""
        try:
            self._file.save(dict(sorted(pins.items())))
        except OSError as error:
            log.error("pins.write_failed", path=str(self._file.path), error=str(error))
            return f"{self._file.path}: {error.strerror or error}"
        return None


def _parse_pins(found: Any) -> dict[str, bool]:
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return {
        name: pinned
        for name, pinned in found.items()
        if isinstance(pinned, bool) and name.isprintable()
    }


@dataclass(frozen=True, slots=True)
class StateFiles:
    """The files of one home, and what changes them."""

    disk: DiskRetry
    """It retries the changes of files that failed."""
    records: Records
    """The records of the processes that run."""
    pins: Pins
    """The models that operators pinned and unpinned."""
    holds: Holds
    """The models that operators drained."""

    @classmethod
    def of(cls, home: Home, events: Events, notify: Callable[[str], None]) -> StateFiles:
        """Return the files of a home. ``notify`` reports to people a file that can't be read."""
        disk = DiskRetry(events)
        records = Records(home.state, disk.change, notify)
        return cls(disk, records, Pins(home.pins, notify), Holds(home.holds, notify))


_PREFIX: Final = "lmx-admin-"
_LEAST_LENGTH: Final = 16
_MOST_BYTES: Final = 4096


def read_admin_key(path: Path, notify: Callable[[str], None] = discard_notice) -> str:
    """Return the key in a file, and make the file if it does not exist. A file without a key is set
    aside, and ``notify`` is called with a sentence about it. The key is never logged.

    Raises ``OSError`` when the file can be neither read nor written.
    """
    if os.path.lexists(path):
        key = _read(path)
        if key is not None:
            return key
        aside = quarantine_file(path)
        notify(f"{path} had no key: it was set aside as {aside.name}, and a new key was made")
    key = _PREFIX + secrets.token_urlsafe(32)
    atomic_write(path, key + "\n", lasting=True)
    return key


def _read(path: Path) -> str | None:
    try:
        key = read_regular(path, _MOST_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    whole = len(key) >= _LEAST_LENGTH and key.isprintable() and " " not in key
    return key if whole else None
