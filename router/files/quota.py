"""What is taken of the room for files: by the files themselves, by the inputs of batches whose file
is gone, and by results that are in no file yet. Every SQL statement on several of their tables.

The functions work on a given connection, in the thread that owns it
(:mod:`lmx.router.files.store`).
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

LEAST_BYTES: Final = 4096
"""What a smaller file counts as, which takes a block of the disk and a record: otherwise the limits
in bytes would allow any number of files."""

OWN: Final = "owner IS :owner"
_ALL: Final = "1"
# A batch has a link to its input. While the file is there its bytes are counted there, and several
# batches of one file share them.
_TAKEN: Final = """
SELECT
  (SELECT coalesce(sum(max(bytes, :least)), 0) FROM files WHERE {whose})
  + (SELECT coalesce(sum(result_bytes), 0) FROM batches WHERE ended_s IS NULL AND {whose})
  + (SELECT coalesce(sum(max(bytes, :least)), 0) FROM (
       SELECT max(bytes) AS bytes FROM inputs
       WHERE batch_id IN (SELECT id FROM batches WHERE ended_s IS NULL AND {whose})
       AND file_id NOT IN (SELECT id FROM files) GROUP BY file_id))
"""


@dataclass(frozen=True, slots=True)
class Quota:
    """How much files, and what batches have of them, may take."""

    key_bytes: int
    """Those of one key together."""
    all_bytes: int


def exceeded(
    connection: sqlite3.Connection, owner: str | None, more_bytes: int, quota: Quota
) -> int | None:
    """Return the limit in bytes that a new file of an owner would exceed; None if there is room."""
    left_bytes, limit = left(connection, owner, quota)
    return limit if max(more_bytes, LEAST_BYTES) > left_bytes else None


def left(connection: sqlite3.Connection, owner: str | None, quota: Quota) -> tuple[int, int]:
    """Return the bytes that a new file of an owner may have, and the limit that allows no more."""
    return min(
        (limit - _taken(connection, whose, owner), limit)
        for limit, whose in ((quota.all_bytes, _ALL), (quota.key_bytes, OWN))
    )


def full(
    connection: sqlite3.Connection, owners: Iterable[str | None], quota: Quota
) -> frozenset[str | None]:
    """Return those of these owners who have no room for more results."""
    wanted = frozenset(owners)
    if _taken(connection, _ALL, None) >= quota.all_bytes:
        return wanted
    return frozenset(owner for owner in wanted if _taken(connection, OWN, owner) >= quota.key_bytes)


def _taken(connection: sqlite3.Connection, whose: str, owner: str | None) -> int:
    values = {"owner": owner, "least": LEAST_BYTES}
    return int(connection.execute(_TAKEN.format(whose=whose), values).fetchone()[0])
