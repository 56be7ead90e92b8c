"""Keeps log files to their size, whatever process writes to them.

A file that is full is copied to the first of its older files and then emptied. It stays the same
file, so that a process that was forked, or hangs in foreign code, continues writing to it and not
to a file that nobody reads any more. What is written between the end of the copy and the emptying
(microseconds) is lost.
"""

import contextlib
import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.host.lasting import keep_up_in_thread
from lmx.protocol.host.log_files import rotated
from lmx.protocol.host.quarantine_file import clear_for_file

_CHECK_S: Final = 0.5
_REST_S: Final = 2.0
_CHUNK_BYTES: Final = 1024 * 1024
_FULL_SHARE: Final = 0.875
"""A file counts as full at this share of its limit, so that there is room for what is written until
somebody looks."""

_FAR_BEYOND: Final = 2
"""A file this many times its limit is emptied even if the disk takes no copy of it."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LogLimit:
    """The limit of a log file. It may change."""

    max_bytes: int
    """The size of each file."""
    keep: int
    """The number of older files."""

    @property
    def full_bytes(self) -> int:
        """The size at which a file is copied and emptied."""
        return int(_FULL_SHARE * self.max_bytes)


def keep_to(path: Path, limit: LogLimit) -> bool:
    """Keep a log file to its limit, and return whether the file exists. Any process may call this,
    and one at a time does it. It blocks for as long as copying ``max_bytes`` takes. Raises
    ``OSError``."""
    try:
        if path.stat().st_size < limit.full_bytes:
            return True
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes >= limit.full_bytes:
            _rotate_aside(path, descriptor, limit, size_bytes)
    except BlockingIOError:
        pass  # another process is at it
    finally:
        os.close(descriptor)
    return True


def keep_forever(keep: Callable[[], bool], name: str) -> None:
    """Call ``keep`` twice a second, in a thread that ends with the process, and every two seconds
    while it returns False: nothing was written. A failure is logged once, and again only after
    ``keep`` has worked."""
    keep_up_in_thread(lambda: _keep_forever(keep), name).start()


def _keep_forever(keep: Callable[[], bool], sleep: Callable[[float], None] = time.sleep) -> None:
    # These signals are for the main thread. One that this thread took, while another program is
    # put in the place of this one, would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    failed, written = False, True
    while True:
        sleep(_CHECK_S if written else _REST_S)
        try:
            written = keep()
            failed = False
        except OSError as error:
            written = True
            if not failed:
                log.warning("a log file was not kept to its limit: %s", error)
            failed = True


def _rotate_aside(path: Path, descriptor: int, limit: LogLimit, size_bytes: int) -> None:
    for number in range(1, limit.keep + 1):
        clear_for_file(rotated(path, number))
    first = rotated(path, 1)
    copy = first.with_name(f"{first.name}.new")
    try:
        _copy_end(descriptor, copy, limit.max_bytes)
    except OSError:
        if size_bytes < _FAR_BEYOND * limit.max_bytes:
            raise
    else:
        # This comes after the copy. Otherwise each attempt on a full disk would lose an older file.
        for number in range(limit.keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                rotated(path, number).replace(rotated(path, number + 1))
        copy.replace(first)
    os.ftruncate(descriptor, 0)


def _copy_end(descriptor: int, target: Path, max_bytes: int) -> None:
    """Copy as much of the file's end as may be kept, from the beginning of a line. A first line
    says how much is missing. If this fails, no part of a copy is left. Raises ``OSError``."""
    size_bytes = os.fstat(descriptor).st_size
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        begin, head = 0, b""
        if size_bytes > max_bytes:
            head = _cut_line(size_bytes)
            begin = _line_after(descriptor, size_bytes - max_bytes + len(head))
            head = _cut_line(begin).rjust(len(head))
        end = begin + max_bytes - len(head)
        os.write(out, head)
        while begin < end and (
            block := os.pread(descriptor, min(_CHUNK_BYTES, end - begin), begin)
        ):
            begin += os.write(out, block)
    except OSError:
        with contextlib.suppress(OSError):
            target.unlink()
        raise
    finally:
        os.close(out)


def _cut_line(dropped_bytes: int) -> bytes:
    notice = {"event": "log.cut", "level": "warning", "dropped_bytes": dropped_bytes}
    return json.dumps(notice).encode() + b"\n"


def _line_after(descriptor: int, offset: int) -> int:
    """Return where the next line begins, or the offset itself if that is far away."""
    found = os.pread(descriptor, _CHUNK_BYTES, offset).find(b"\n")
    return offset + found + 1 if found >= 0 else offset
