"""The file of the job records: it is opened, created, and moved aside when it can't be used."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

import structlog

from lmx.protocol.host.set_aside import clear_for_file, set_aside
from lmx.router.jobs.records import (
    INCREMENTAL,
    SCHEMA_VERSION,
    create,
    create_responses,
    fault_of,
)

_BUSY_TIMEOUT_MS: Final = 2000
"""Another router that uses the file too locks it for milliseconds."""

_BUSY_PAUSE_S: Final = 0.02

_JOURNAL_BYTES: Final = 16 * 1024 * 1024

_UNFIT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

_log = structlog.get_logger()


def open_records(path: Path) -> sqlite3.Connection:
    """Return a connection to the records in ``path``, which only its owner may read.

    A file that is corrupt, has another version or other tables, or is no database is moved aside,
    and an empty one takes its place. Raises ``OSError`` and ``sqlite3.Error`` if the file can't be
    used now: the folder is missing, the disk is full, another process holds it.
    """
    for suffix in ("", "-wal", "-shm"):
        aside = clear_for_file(path.with_name(path.name + suffix))
        if aside is not None:
            _log.error("jobs.file_moved_aside", path=str(path), to=str(aside), reason="no file")
    try:
        return _open(path)
    except sqlite3.DatabaseError as error:
        if not is_unfit(error):
            raise
        move_aside(path, str(error))
    except _OtherTablesError as error:
        move_aside(path, str(error))
    return _open(path)


def is_unfit(error: sqlite3.Error) -> bool:
    """Return whether an error says that the file's content is broken."""
    return _kind(error) in _UNFIT


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether an error says that another process holds the file: nothing is wrong with
    it."""
    return _kind(error) in _BUSY


def _kind(error: sqlite3.Error) -> int:
    # The low byte is the kind; the rest says where.
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def move_aside(path: Path, why: str) -> None:
    """Move the file out of the way, with what SQLite keeps beside it. Raises ``OSError``."""
    aside = set_aside(path)
    _log.error("jobs.file_moved_aside", path=str(path), to=str(aside), reason=why)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))


class _OtherTablesError(Exception):
    """The file has the records of another version of lmx, or tables of another program."""


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_MS / 1000, isolation_level=None)
    try:
        # This must come first, for an empty file: later it would take a VACUUM.
        connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        # The order matters: another router may be making the table right now.
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and tables == 0:
            create(connection)
        elif version != SCHEMA_VERSION:
            raise _OtherTablesError(f"it has version {version}, not {SCHEMA_VERSION}")
        elif (fault := fault_of(connection)) is not None:
            raise _OtherTablesError(fault)
        create_responses(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log. SQLite does not wait for other routers that do the same
    at this moment (its busy time-out is not for this switch), so this waits."""
    deadline_s = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(_BUSY_PAUSE_S)
