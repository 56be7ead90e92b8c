"""The bytes of files, in one folder: each whole, or not there.

A file is written under another name, synced, and renamed. While it is written, and until its record
is committed, its writer holds a lock on it, which the system releases when the process ends in
whatever way: what has neither a record nor a lock is a remnant. The functions block.
"""

import contextlib
import fcntl
import io
import os
import re
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lmx.protocol.host.disk_sync import sync

_PART: Final = ".part"
_OWN_NAME: Final = re.compile(r"[a-z]+[-_][0-9a-f]{24}(\.part)?")


class BlobWriter:
    """One file that is being written, as a context manager: unless its record was committed,
    nothing is left of it after the block.

    Its methods may run in several threads, one after the other: a thread that nobody waits for any
    more does not write into what was closed meanwhile.
    """

    def __init__(self, folder: Path, blob_id: str) -> None:
        """``blob_id`` is made by lmx. Raises ``OSError``, as the methods do."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / blob_id
        self._part = folder / f"{blob_id}{_PART}"
        self._file = _locked(self._part)
        self._lock = threading.Lock()
        self._synced = self._placed = self._kept = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            try:
                if not self._kept:
                    (self._path if self._placed else self._part).unlink(missing_ok=True)
            finally:
                self._file.close()

    def write(self, piece: bytes) -> None:
        """Write more."""
        view = memoryview(piece)
        with self._lock:
            self._check_open()
            self._synced = False
            while view:
                view = view[self._file.write(view) or 0 :]

    def sync(self) -> None:
        """Wait until the disk has all of it, so that :meth:`commit` takes little time."""
        with self._lock:
            self._check_open()
            self._sync()

    def _sync(self) -> None:
        if not self._synced:
            sync(self._file.fileno())
            self._synced = True

    def commit(self, record: Callable[[], bool]) -> bool:
        """Let the file be there, whole, also after a power cut, and keep it if ``record``, which
        commits its record, returns that it has. Returns the same."""
        with self._lock:
            self._check_open()
            if not self._placed:
                self._sync()
                self._part.rename(self._path)
                self._placed = True
                _sync_folder(self._path.parent)
            self._kept = record()
            return self._kept

    def _check_open(self) -> None:
        if self._file.closed:
            raise OSError("it was given up")


def names_in(folder: Path) -> list[str]:
    """Return the names of what is in the folder and may be lmx's."""
    with contextlib.suppress(FileNotFoundError):
        return [name for name in os.listdir(folder) if _OWN_NAME.fullmatch(name)]  # noqa: PTH208
    return []


def is_part(name: str) -> bool:
    """Return whether a name is that of a file that was never whole."""
    return name.endswith(_PART)


class Remnants:
    """Those of some files that no writer holds, as a context manager: within the block none can be
    written."""

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        for name in names:
            descriptor = _lock_of(folder / name)
            if descriptor is not None:
                self._held[name] = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)

    def remove(self, known: Collection[str]) -> int:
        """Remove them, except for those that records have come to name; return how many."""
        gone = [name for name in self._held if name not in known]
        for name in gone:
            (self._folder / name).unlink(missing_ok=True)
        return len(gone)


def _locked(path: Path) -> io.FileIO:
    """Return a new file, with its lock."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        file = os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another router that looks for remnants may have found it before it had its lock.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()


def _lock_of(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
