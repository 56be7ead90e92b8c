"""The table of the files: what a record holds, and every SQL statement on it.

The functions work on a given connection, in the thread that owns it
(:mod:`lmx.router.files.store`).
"""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Final

from lmx.router.files.quota import OWN, Quota, exceeded
from lmx.router.record_file import columns_of, create_tables

SCHEMA_VERSION: Final = 1
"""The file's ``user_version``. Raise it with every change of the tables."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file. Times are Unix seconds."""

    id: str
    owner: str | None
    filename: str
    """What its client calls it: shown, and never used as a path."""
    purpose: str
    bytes: int
    created_s: int
    expires_s: int | None


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted."""

    owner: str | None
    """Whose. None: of nobody, as those of requests without a key are."""
    limit: int
    after: str | None = None
    """The list begins after the one with this id."""
    newest_first: bool = True
    purpose: str | None = None


_COLUMNS: Final = tuple(column.name for column in fields(FileRow))
_LISTED: Final = ", ".join(_COLUMNS)
_CREATE: Final = """
CREATE TABLE files (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT,
  filename TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL,
  created_s INTEGER NOT NULL, expires_s INTEGER
);
CREATE INDEX files_by_owner ON files (owner, seq);
"""
_LIVE: Final = "(expires_s IS NULL OR expires_s > :now)"


def create(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty file, unless another router has just done so."""
    create_tables(connection, _CREATE, SCHEMA_VERSION)


def fault_of(connection: sqlite3.Connection) -> str | None:
    """Return why the tables of a file are not those that lmx makes; None if they are."""
    if columns_of(connection, "files") != ("seq", *_COLUMNS):
        return "its table `files` has other columns"
    return None


def add(connection: sqlite3.Connection, row: FileRow, quota: Quota) -> int | None:
    """Add a record. Returns None, or the limit in bytes that the file would exceed."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        limit = exceeded(connection, row.owner, row.bytes, quota)
        if limit is None:
            insert(connection, row)
    return limit


def insert(connection: sqlite3.Connection, row: FileRow) -> None:
    """Add a record within the caller's transaction, whatever the files take."""
    insert_into(connection, "files", _LISTED, astuple(row))


def insert_into(
    connection: sqlite3.Connection, table: str, columns: str, values: Sequence[Any]
) -> None:
    """Add a row of these columns to a table."""
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)  # noqa: S608


def get(
    connection: sqlite3.Connection, file_id: str, owner: str | None, now_s: float
) -> FileRow | None:
    """Return a record; None if it does not exist, has expired, or is of another owner."""
    found = connection.execute(
        f"SELECT {_LISTED} FROM files WHERE id = :id AND {OWN} AND {_LIVE}",  # noqa: S608
        {"id": file_id, "owner": owner, "now": now_s},
    ).fetchone()
    return None if found is None else FileRow(*found)


def listed(
    connection: sqlite3.Connection, page: Page, now_s: float
) -> tuple[list[FileRow], bool] | None:
    """Return records, and whether more follow; None if there is no record ``page.after``."""
    if page.after is not None and get(connection, page.after, page.owner, 0.0) is None:
        return None
    where = f"{OWN} AND {_LIVE}"
    if page.purpose is not None:
        where += " AND purpose = :purpose"
    values = {"now": now_s, "purpose": page.purpose}
    rows, has_more = rows_of(connection, page, "files", _LISTED, where, values)
    return [FileRow(*row) for row in rows], has_more


def rows_of(
    connection: sqlite3.Connection,
    page: Page,
    table: str,
    columns: str,
    where: str,
    values: Mapping[str, Any],
) -> tuple[list[Any], bool]:
    """Return a page of the rows of a table, in the page's order, and whether more follow. The table
    has ``seq``, ``id`` and ``owner``; ``where`` may use ``values`` and ``OWN``. The caller has seen
    that there is a row ``page.after``."""
    sign, order = ("<", "DESC") if page.newest_first else (">", "ASC")
    if page.after is not None:
        where += f" AND seq {sign} (SELECT seq FROM {table} WHERE id = :after)"  # noqa: S608
    found = connection.execute(
        f"SELECT {columns} FROM {table} WHERE {where} ORDER BY seq {order} LIMIT :most",  # noqa: S608
        {**values, "owner": page.owner, "after": page.after, "most": page.limit + 1},
    ).fetchall()
    return found[: page.limit], len(found) > page.limit


def remove(connection: sqlite3.Connection, file_ids: Sequence[str]) -> None:
    """Remove records, in one transaction."""
    if file_ids:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            connection.executemany("DELETE FROM files WHERE id = ?", [(one,) for one in file_ids])


def expired(connection: sqlite3.Connection, now_s: float) -> list[str]:
    """Return the ids of the files whose time is over."""
    found = connection.execute("SELECT id FROM files WHERE expires_s <= ?", (now_s,))
    return [file_id for (file_id,) in found]


def all_ids(connection: sqlite3.Connection) -> set[str]:
    """Return the ids of all files."""
    return {file_id for (file_id,) in connection.execute("SELECT id FROM files")}
