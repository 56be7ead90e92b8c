"""Writes a file's content to the disk itself, so that it is there after a power cut."""

import fcntl
import os
from contextlib import suppress


def sync(descriptor: int) -> None:
    """Wait until the disk has what was written to a file, or what a folder lists. Raises
    ``OSError``.

    On macOS ``fsync`` leaves it in the cache of the drive, which another call empties. Not every
    file system has that call: those in the network have none.
    """
    full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        with suppress(OSError):
            fcntl.fcntl(descriptor, full_sync)
            return
    os.fsync(descriptor)
