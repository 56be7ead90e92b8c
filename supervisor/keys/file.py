"""The file of the keys that operators made. It has no secrets: see
docs/decisions/keys-are-hashed.md."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmx.protocol.errors import OperationError, ProtocolError
from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.wire.codec import from_map, to_map
from lmx.supervisor.state.state_file import StateFile, discard_notice


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """What the file has."""

    keys: tuple[ApiKey, ...] = ()
    lost: bool = False
    """Whether keys were lost with a file that was damaged, and none was made since: what they
    protected stays closed."""


class KeyFile:
    """``state/keys.json``, ``{"keys": [...], "lost": ...}``."""

    def __init__(self, path: Path, notify: Callable[[str], None] = discard_notice) -> None:
        self._path = path
        self._file = StateFile(path, _parse, notify)

    def load(self) -> StoredKeys:
        """Return the keys, none if there is no file. If it can't be read, people are notified, and
        requests need a key until another one is made. The file is set aside, unless it may be read
        at the next start."""
        # A link to nowhere is a file here: something was there.
        there = self._path.exists() or self._path.is_symlink()
        found = self._file.load()
        if found is not None:
            return found
        if not there:
            return StoredKeys()
        lost = StoredKeys(lost=True)
        if not self._file.unread:
            with contextlib.suppress(OperationError):
                self.save(lost)
        return lost

    def peek(self) -> StoredKeys:
        """Return the keys, none if they can't be read, and leave the file as it is, because it
        belongs to another process."""
        return self._file.peek() or StoredKeys()

    def save(self, stored: StoredKeys) -> None:
        """Write all of it, completely or not at all. Only the owner can read the file. Raises
        :class:`OperationError`."""
        keys = [to_map(key) for key in stored.keys]
        self._file.save_or_refuse({"keys": keys, "lost": stored.lost})


def _parse(found: Any) -> StoredKeys:
    try:
        keys = tuple(from_map(ApiKey, entry, "key") for entry in found["keys"])
    except ProtocolError as error:
        raise ValueError(error.message) from error
    if len({key.name for key in keys}) < len(keys):
        raise ValueError("two keys have the same name")
    return StoredKeys(keys, found.get("lost") is True)
