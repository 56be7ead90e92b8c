"""The key to the routes below /admin. It is made at the first start, and kept in a file that only
its owner can read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lmx.protocol.host.quarantine_file import quarantine_file
from lmx.protocol.host.regular_file import read_regular
from lmx.supervisor.state.atomic_write import atomic_write
from lmx.supervisor.state.state_file import discard_notice

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
    atomic_write(path, key + "\n")
    return key


def _read(path: Path) -> str | None:
    try:
        key = read_regular(path, _MOST_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    whole = len(key) >= _LEAST_LENGTH and key.isprintable() and " " not in key
    return key if whole else None
