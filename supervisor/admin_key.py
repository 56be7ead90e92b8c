"""The key that opens the routes below /admin: made at the first start, kept in a 0600 file."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

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
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:  # noqa: PTH123  of a descriptor, with its mode
        file.write(key + "\n")
    temporary.replace(path)
    return key
