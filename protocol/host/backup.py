"""Keeps a folder of a Mac out of its backups. It needs only the standard library."""

from __future__ import annotations

import ctypes
import plistlib
import sys
from pathlib import Path
from typing import Final

_NAME: Final = b"com.apple.metadata:com_apple_backup_excludeItem"
_VALUE: Final = plistlib.dumps("com.apple.backupd", fmt=plistlib.FMT_BINARY)
"""What ``tmutil addexclusion`` writes."""


def keep_out_of_backups(folder: Path) -> None:
    """Have Time Machine leave a folder out, as far as the file system can note that, and make the
    folder if it is not there. Does nothing on other machines. Raises ``OSError``."""
    if sys.platform != "darwin":
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    call = getattr(ctypes.CDLL(None), "setxattr", None)
    if call is not None:
        # The last two arguments: from its first byte on, and no special way.
        call(bytes(folder), _NAME, _VALUE, ctypes.c_size_t(len(_VALUE)), 0, 0)
