"""The tables of the batches, of their lines and of the lines' results: every SQL statement on them.

The functions work on a given connection, in the thread that owns it
(:mod:`lmx.router.files.store`).

A line is answered exactly once in the output, whatever is killed at whatever moment: it has one row
in ``results`` at most, which is written in one transaction with the counts; the output is made of
these rows alone, once no line is without one or none of the others will be answered; and the
records of the output's files and the end of the batch are one transaction. A line that was being
answered when the router ended has no row, and is answered again.
"""

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

from lmx.router.files.quota import OWN, Quota, exceeded
from lmx.router.files.tables import FileRow, Page, insert, insert_into, rows_of
from lmx.router.record_file import columns_of


class BatchStatus(StrEnum):
    """Where a batch is, in OpenAI's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED: Final = frozenset(
    {BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)
BATCH_ID: Final = re.compile(r"(?:msg)?batch_[0-9a-f]{24}")
"""The ids of batches, of OpenAI's API and of Anthropic's."""

UNDER_WAY: Final = tuple(status for status in BatchStatus if status not in ENDED)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch. Times are Unix seconds."""

    id: str
    owner: str | None
    api: str
    """Whose client made it: ``openai`` or ``anthropic``."""
    endpoint: str
    input_file_id: str
    status: str
    created_s: int
    expires_s: int
    metadata: bytes | None = None
    """JSON, as are the errors."""
    output_lifetime_s: int | None = None
    """For how long its output is kept. None: as long as other files for batches."""
    errors: bytes | None = None
    """Why it has failed."""
    end: str = BatchStatus.COMPLETED
    """The status that it will end with."""
    model: str | None = None
    """The model of its lines; None if they name several."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    cut: int = 0
    """How many lines were not answered, because it was cancelled or its time was over."""
    result_bytes: int = 0
    """What its results take."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_s: int | None = None
    finalizing_s: int | None = None
    cancelling_s: int | None = None
    ended_s: int | None = None

    @property
    def left(self) -> int:
        """How many lines have no result yet."""
        return self.total - self.completed - self.failed


class LineRow(NamedTuple):
    """A line of a batch: where it is in the input, and its place in the order of work."""

    number: int
    """Its number in the input, from 1."""
    custom_id: str
    model: str
    order: bytes
    """Lines are answered in the order of their models and of these."""
    offset: int
    size_bytes: int


class Result(NamedTuple):
    """What became of a line."""

    ok: bool
    status: int
    request_id: str
    body: bytes
    """The body of the answer, JSON."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class DoneLine(NamedTuple):
    """A line with its result; without one, its status is None."""

    number: int
    custom_id: str
    ok: bool | None
    status: int | None
    request_id: str | None
    body: bytes | None


Results = Mapping[tuple[str, int], Result]
"""By batch and line."""

_COLUMNS: Final = tuple(column.name for column in fields(BatchRow))
_LISTED: Final = ", ".join(f'"{name}"' for name in _COLUMNS)
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS batches (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT, api TEXT NOT NULL,
  endpoint TEXT NOT NULL, input_file_id TEXT NOT NULL, status TEXT NOT NULL,
  created_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, metadata BLOB,
  output_lifetime_s INTEGER, errors BLOB, "end" TEXT NOT NULL, model TEXT,
  total INTEGER NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL,
  cut INTEGER NOT NULL, result_bytes INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL, output_file_id TEXT, error_file_id TEXT,
  in_progress_s INTEGER, finalizing_s INTEGER, cancelling_s INTEGER, ended_s INTEGER
);
CREATE INDEX IF NOT EXISTS batches_under_way ON batches (seq) WHERE ended_s IS NULL;
CREATE TABLE IF NOT EXISTS lines (
  batch_id TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT NOT NULL, model TEXT NOT NULL,
  "order" BLOB NOT NULL, "offset" INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
  PRIMARY KEY (batch_id, number), UNIQUE (batch_id, custom_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lines_in_order ON lines (batch_id, model, "order", number);
CREATE TABLE IF NOT EXISTS results (
  batch_id TEXT NOT NULL, number INTEGER NOT NULL, ok INTEGER NOT NULL, status INTEGER NOT NULL,
  request_id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (batch_id, number)
);
CREATE TABLE IF NOT EXISTS inputs (
  batch_id TEXT PRIMARY KEY, file_id TEXT NOT NULL, bytes INTEGER NOT NULL
) WITHOUT ROWID;
"""
_READ_BYTES: Final = 2**22
"""The bytes of results after which no more are read at once: vectors may have 44 MB a line."""

_FORGOTTEN_AT_ONCE: Final = 2_000
_FORGOTTEN_BYTES: Final = 2**24
"""The bytes of results that are removed at once, unless one has more. This takes half a second."""


def create(connection: sqlite3.Connection) -> None:
    """Create the tables, unless they are there."""
    connection.executescript(_CREATE)


def fault_of(connection: sqlite3.Connection) -> str | None:
    """Return why the tables of a file are not those that lmx makes; None if they are."""
    found = columns_of(connection, "batches")
    return None if found in ((), ("seq", *_COLUMNS)) else "its table `batches` has other columns"


class TooManyError(Exception):
    """An owner has as many batches under way as may be."""


class NoRoomError(Exception):
    """A limit of what files may take, ``limit_bytes``, is reached."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes


def add(
    connection: sqlite3.Connection,
    row: BatchRow,
    input_bytes: int,
    most_under_way: int,
    quota: Quota,
) -> bool:
    """Add a batch with an input of that size, and return True. Raises :class:`TooManyError` if its
    owner has ``most_under_way`` already, :class:`NoRoomError` if there is no room for what it needs
    besides its file."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        count = "SELECT count(*) FROM batches WHERE owner IS ? AND ended_s IS NULL"
        if connection.execute(count, (row.owner,)).fetchone()[0] >= most_under_way:
            raise TooManyError
        is_file = connection.execute("SELECT 1 FROM files WHERE id = ?", (row.input_file_id,))
        more_bytes = input_bytes if is_file.fetchone() is None else 0
        if (limit := exceeded(connection, row.owner, more_bytes, quota)) is not None:
            raise NoRoomError(limit)
        insert_into(connection, "batches", _LISTED, astuple(row))
        connection.execute(
            "INSERT INTO inputs VALUES (?, ?, ?)", (row.id, row.input_file_id, input_bytes)
        )
    return True


def get(
    connection: sqlite3.Connection, batch_id: str, owner: str | None, api: str | None = None
) -> BatchRow | None:
    """Return a batch; None if it does not exist, is of another owner, or of another API."""
    where = f"WHERE id = :id AND {OWN} AND (:api IS NULL OR api = :api)"
    found = _selected(connection, where, id=batch_id, owner=owner, api=api)
    return found[0] if found else None


def _selected(connection: sqlite3.Connection, rest: str, **values: Any) -> list[BatchRow]:
    """Return the batches that the rest of a statement selects."""
    statement = f"SELECT {_LISTED} FROM batches {rest}"  # noqa: S608
    return [BatchRow(*row) for row in connection.execute(statement, values)]


def listed(
    connection: sqlite3.Connection, page: Page, api: str
) -> tuple[list[BatchRow], bool] | None:
    """Return batches, and whether more follow; None if there is no batch ``page.after``. If not
    ``newest_first``, they are those just before ``after``, in the same order."""
    if page.after is not None and get(connection, page.after, page.owner, api) is None:
        return None
    where = f"{OWN} AND api = :api"
    found, has_more = rows_of(connection, page, "batches", _LISTED, where, {"api": api})
    rows = [BatchRow(*row) for row in found]
    return rows if page.newest_first else rows[::-1], has_more


def under_way(connection: sqlite3.Connection) -> list[BatchRow]:
    """Return the batches that have not ended, the oldest first."""
    return _selected(connection, "WHERE ended_s IS NULL ORDER BY seq")


def of_anybody(connection: sqlite3.Connection, batch_id: str) -> BatchRow | None:
    """Return a batch, whoever owns it; None if it does not exist. For operators."""
    found = _selected(connection, "WHERE id = :id", id=batch_id)
    return found[0] if found else None


def latest(connection: sqlite3.Connection, most: int) -> list[BatchRow]:
    """Return ``most`` batches of all owners: those that have not ended come first, and then those
    that were made last."""
    return _selected(
        connection,
        "WHERE seq IN "
        "(SELECT seq FROM batches WHERE ended_s IS NULL ORDER BY seq DESC LIMIT :most) OR seq IN "
        "(SELECT seq FROM batches ORDER BY seq DESC LIMIT :most) "
        "ORDER BY ended_s IS NOT NULL, seq DESC LIMIT :most",
        most=most,
    )


def statuses(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many batches have each of the statuses of those that have not ended."""
    found = connection.execute(
        "SELECT status, count(*) FROM batches WHERE ended_s IS NULL GROUP BY status"
    )
    return {**dict.fromkeys(UNDER_WAY, 0), **dict(found)}


def lines_left(connection: sqlite3.Connection) -> int:
    """Return how many lines of all batches that have not ended have no result."""
    found = connection.execute(
        "SELECT coalesce(sum(total - completed - failed), 0) FROM batches WHERE ended_s IS NULL"
    )
    return int(found.fetchone()[0])


def change(
    connection: sqlite3.Connection, batch_id: str, before: Sequence[str], **values: Any
) -> bool:
    """Set columns of a batch whose status is one of ``before``; return whether it was."""
    assigned = ", ".join(f'"{name}" = :{name}' for name in values)
    marks = ", ".join(f"'{BatchStatus(one).value}'" for one in before)
    return bool(
        connection.execute(
            f"UPDATE batches SET {assigned} WHERE id = :batch AND status IN ({marks})",  # noqa: S608
            {**values, "batch": batch_id},
        ).rowcount
    )


def cancel(connection: sqlite3.Connection, batch_id: str, now_s: float) -> BatchRow | None:
    """Let a batch be cancelled, unless its output is being made or it has ended, and return it as
    it is then, in one transaction; None if it does not exist."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        change(
            connection,
            batch_id,
            (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS),
            status=BatchStatus.CANCELLING,
            cancelling_s=int(now_s),
            end=BatchStatus.CANCELLED,
        )
        return of_anybody(connection, batch_id)


def add_lines(
    connection: sqlite3.Connection, batch_id: str, lines: Iterable[LineRow]
) -> list[LineRow]:
    """Add lines, in one transaction; return those whose ``custom_id`` another line has."""
    refused = []
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for line in lines:
            try:
                connection.execute(
                    "INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)", (batch_id, *line)
                )
            except sqlite3.IntegrityError:
                refused.append(line)
    return refused


def next_lines(
    connection: sqlite3.Connection, batch_id: str, after: LineRow | None, limit: int
) -> list[LineRow]:
    """Return the next lines in the order of work that have no result."""
    # Models have names, and numbers begin with 1: nothing is before this.
    begin = ("", b"", 0) if after is None else (after.model, after.order, after.number)
    found = connection.execute(
        'SELECT number, custom_id, model, "order", "offset", size_bytes FROM lines AS line '
        'WHERE batch_id = ? AND (model, "order", number) > (?, ?, ?) AND NOT EXISTS '
        "(SELECT 1 FROM results WHERE batch_id = line.batch_id AND number = line.number) "
        'ORDER BY model, "order", number LIMIT ?',
        (batch_id, *begin, limit),
    )
    return [LineRow(*row) for row in found]


def write_results(connection: sqlite3.Connection, results: Results) -> None:
    """Write results, in one transaction. Of a line that has one already, and of a batch that takes
    none any more, nothing is written."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for (batch_id, number), one in results.items():
            written = connection.execute(
                "INSERT OR IGNORE INTO results SELECT id, ?, ?, ?, ?, ? FROM batches "
                "WHERE id = ? AND status = ?",
                (number, one.ok, one.status, one.request_id, one.body, batch_id,
                 BatchStatus.IN_PROGRESS),
            ).rowcount  # fmt: skip
            if written:
                connection.execute(
                    "UPDATE batches SET completed = completed + ?, failed = failed + ?, "
                    "result_bytes = result_bytes + ?, input_tokens = input_tokens + ?, "
                    "cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ?, "
                    "reasoning_tokens = reasoning_tokens + ? WHERE id = ?",
                    (one.ok, not one.ok, len(one.body), one.input_tokens, one.cached_tokens,
                     one.output_tokens, one.reasoning_tokens, batch_id),
                )  # fmt: skip


def done_lines(
    connection: sqlite3.Connection, batch_id: str, after: int, limit: int
) -> list[DoneLine]:
    """Return some lines with their results, in the order of the input, after a number: ``limit`` at
    most, and fewer if they are large. None are returned only if no line is left."""
    lines: list[DoneLine] = []
    read_bytes = 0
    found = connection.execute(
        "SELECT line.number, custom_id, ok, status, request_id, body FROM lines AS line "
        "LEFT JOIN results USING (batch_id, number) "
        "WHERE batch_id = ? AND number > ? ORDER BY number LIMIT ?",
        (batch_id, after, limit),
    )
    for number, custom_id, ok, *rest in found:
        lines.append(DoneLine(number, custom_id, None if ok is None else bool(ok), *rest))
        read_bytes += len(lines[-1].body or b"")
        if read_bytes >= _READ_BYTES:
            break
    found.close()  # It would keep the state of the records that it has begun to read.
    return lines


def end(
    connection: sqlite3.Connection, batch_id: str, files: Iterable[FileRow], **values: Any
) -> bool:
    """Record the files of a batch's output and its end, in one transaction; return whether it had
    not ended before."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        ended = change(connection, batch_id, (BatchStatus.FINALIZING,), **values)
        if ended:
            for row in files:
                insert(connection, row)
    return ended


def forget_lines(connection: sqlite3.Connection, batch_id: str) -> bool:
    """Remove some lines of a batch and their results, and give their space back to the disk; return
    whether some are left."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        found = connection.execute(
            "SELECT number, coalesce(length(body), 0) FROM lines LEFT JOIN results "
            "USING (batch_id, number) WHERE batch_id = ? ORDER BY number LIMIT ?",
            (batch_id, _FORGOTTEN_AT_ONCE + 1),
        )
        last = removed_bytes = 0
        for index, (number, size_bytes) in enumerate(found):
            removed_bytes += size_bytes
            if index and (index == _FORGOTTEN_AT_ONCE or removed_bytes > _FORGOTTEN_BYTES):
                last = number
                break
        found.close()
        for table in ("results", "lines"):
            connection.execute(
                f"DELETE FROM {table} WHERE batch_id = ? AND (? = 0 OR number < ?)",  # noqa: S608
                (batch_id, last, last),
            )
    # `execute` would take only one step of this statement, and so free one page.
    connection.executescript("PRAGMA incremental_vacuum")
    return last > 0


def with_leftover_lines(connection: sqlite3.Connection) -> list[str]:
    """Return the batches that have ended, or are gone, and have lines all the same."""
    found = connection.execute(
        "SELECT DISTINCT batch_id FROM lines WHERE batch_id NOT IN "
        "(SELECT id FROM batches WHERE ended_s IS NULL)"
    )
    return [batch_id for (batch_id,) in found]


def remove(connection: sqlite3.Connection, batch_id: str, files: Sequence[str]) -> None:
    """Remove a batch that has ended, and the records of these files."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.execute("DELETE FROM batches WHERE id = ?", (batch_id,))
        connection.executemany("DELETE FROM files WHERE id = ?", [(one,) for one in files])


def forget_old(connection: sqlite3.Connection, oldest_s: float, most: int) -> None:
    """Remove the records of batches that ended before a time, and all but the last ``most``; of
    those of inputs, all that are not needed any more."""
    with connection:
        connection.execute("DELETE FROM batches WHERE ended_s < ?", (oldest_s,))
        connection.execute(
            "DELETE FROM batches WHERE ended_s IS NOT NULL AND seq <= "
            "(SELECT seq FROM batches ORDER BY seq DESC LIMIT 1 OFFSET ?)",
            (most,),
        )
        connection.execute(
            "DELETE FROM inputs WHERE batch_id NOT IN "
            "(SELECT id FROM batches WHERE ended_s IS NULL)"
        )
