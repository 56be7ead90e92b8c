"""Writes a small file of the state completely or not at all, even if the process dies; what is to
outlast a power cut, even then."""

import contextlib
import os
import stat
from pathlib import Path

from lmx.protocol.host.disk_sync import sync
from lmx.protocol.host.quarantine_file import quarantine_file


def atomic_write(path: Path, text: str, *, lasting: bool = False) -> None:
    """Replace a file's content by ``text``. Only the owner can read the file. Anything of that name
    that is not a file is set aside. With ``lasting`` the file is one of the two also after a power
    cut, which takes the disk some hundredths of a second. Raises ``OSError``, and then the old
    content is still there."""
    temporary = path.with_suffix(".new")
    _clear(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  of a descriptor, with its mode
        file.write(text)
        if lasting:
            file.flush()
            sync(file.fileno())
    if path.is_dir() and not path.is_symlink():
        quarantine_file(path)
    temporary.replace(path)


def _clear(temporary: Path) -> None:
    """Set aside what is not a regular file: opening a pipe would wait, and a link would be
    followed."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(temporary.lstat().st_mode):
            quarantine_file(temporary)
