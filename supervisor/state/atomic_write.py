"""Writes a small file of the state whole or not at all, whenever the process dies."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from lmx.protocol.host.set_aside import set_aside


def atomic_write(path: Path, text: str) -> None:
    """Put ``text`` in the place of a file's content, readable by its owner alone. What stands there
    and is no file is set aside. Raises ``OSError``; the old content is still there then."""
    temporary = path.with_suffix(".new")
    _clear(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  of a descriptor, with its mode
        file.write(text)
    if path.is_dir() and not path.is_symlink():
        set_aside(path)
    temporary.replace(path)


def _clear(temporary: Path) -> None:
    """A pipe would be waited for, and a link followed."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(temporary.lstat().st_mode):
            set_aside(temporary)
