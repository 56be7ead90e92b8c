"""Moves away what is in the place of one of lmx's own files and can't be used as that file."""

import os
import stat
from pathlib import Path
from typing import Final

_MOST: Final = 10


def quarantine_file(path: Path) -> Path:
    """Rename what is there, whatever it is, to ``NAME.damaged``, or to ``NAME.damaged-2`` and so on
    if that name is taken. Returns the new path. Raises ``OSError``."""
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.damaged" + ("" if number == 1 else f"-{number}"))
        # There is a limit: beyond it an older file is replaced, but never a folder.
        if not os.path.lexists(aside) or (number >= _MOST and not aside.is_dir()):
            break
        number += 1
    if aside.is_symlink() or (os.path.lexists(aside) and path.is_dir()):
        aside.unlink()
    path.replace(aside)
    return aside


def clear_for_file(path: Path) -> Path | None:
    """Move away what is at ``path`` if it can't be a file: a folder, a pipe, a link to nowhere.

    Returns where it was moved, None if nothing was in the way. A link to a file, to a file that can
    still be made, or to a device is a person's wish and stays. Raises ``OSError``.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.is_symlink() or path.resolve().parent.is_dir():
            return None
    except OSError:
        if not os.path.lexists(path):
            return None  # the folder itself is not there: opening the file will report that
    else:
        if stat.S_ISREG(mode) or stat.S_ISCHR(mode):
            return None
    return quarantine_file(path)
