"""The key that opens the routes below /admin: made at the first start, kept in a 0600 file."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Final

from lmx.supervisor.whole_file import write_whole

_PREFIX: Final = "lmx-admin-"
_LEAST_LENGTH: Final = 16


def read_admin_key(path: Path) -> str:
    """Return the key in a file, which is made if there is none. It never goes into a log.

    Raises ``OSError`` when it can be neither read nor written.
    """
    with contextlib.suppress(FileNotFoundError):
        key = path.read_text().strip()
        if len(key) >= _LEAST_LENGTH:
            return key
    key = _PREFIX + secrets.token_urlsafe(32)
    write_whole(path, key + "\n")
    return key
