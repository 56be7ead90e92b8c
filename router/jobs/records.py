"""The table of the job records: what a record holds, and every SQL statement on it.

The functions work on a given connection, in the thread that owns it (:mod:`lmx.router.jobs.store`).
The module also knows whether the router process that runs a job is alive, and what the job's record
says if it is not.
"""

from __future__ import annotations

import re
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Final

import orjson
import psutil

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.router.http.api_family import openai_error
from lmx.router.jobs import conversations
from lmx.router.record_file import columns_of, create_tables

SCHEMA_VERSION: Final = 1
"""The file's ``user_version``. Raise it with every change of the table."""


class JobState(StrEnum):
    """The state of a job. While it is `queued` or `running`, it is under way. An `interrupted` job
    is one whose router ended before the job did."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """What is stored of a response with its job's record, for as long as that."""

    items: bytes
    """The items of its input, as a JSON array."""
    head: bytes
    """The response as it was at its beginning, as JSON."""
    previous: str | None = None
    """The id of the response that its input continues."""
    output: bytes | None = None
    """The items of its output without logprobs, as a JSON array, once it has ended."""
    conversation: str | None = None
    """The conversation that gets the items of the input and the output when the response is
    completed. It is in the head too, and is not stored again, as is the next."""
    added: tuple[conversations.Piece, ...] = ()
    """The items of the input, as the conversation gets them."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that is kept."""

    job: JobRow
    response: ResponseRow


@dataclass(frozen=True, slots=True)
class Turn:
    """A response as a part of a conversation."""

    response_id: str
    previous: str | None
    """The response that it continues."""
    is_over: bool
    items: bytes
    """The items of its input, as a JSON array."""
    output: bytes | None
    """The items of its output, as a JSON array. None if it has none."""
    conversation: str | None
    """The conversation that its input continues."""


@dataclass(slots=True)
class JobRow:
    """One record. Times are Unix seconds."""

    id: str
    kind: str
    model: str
    owner: str | None
    """The key of its request; None without one. Only whoever comes with the same, or with none
    either, sees the record."""
    state: str
    stream: bool
    created_s: float
    request_id: str
    started_s: float | None = None
    ended_s: float | None = None
    queue_position: int | None = None
    tokens: int = 0
    http_status: int | None = None
    router_pid: int = 0
    """The pid of the router process that runs the job."""
    router_created_s: float = 0.0
    """When that process was created: with the pid it identifies the process."""
    router_token: str = ""
    """The store within that process that writes the record."""
    usage: bytes | None = None
    """JSON, as are the next three."""
    timings: bytes | None = None
    error: bytes | None = None
    result: bytes | None = None
    response: ResponseRow | None = None
    """What is stored with it of a response. It has a table of its own, and is written once."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records to list, the newest first. None means that there is no such condition, except
    of the owner."""

    owner: str | None = None
    """Whose they are. None: of nobody, as the jobs of requests without a key are."""
    state: str | None = None
    model: str | None = None
    kind: str | None = None
    limit: int = 20
    """The most records to list."""
    after: str | None = None
    """The list begins after the record with this id."""


Router = tuple[int, float]
"""Identifies a router process: its pid and when it was created."""

_COLUMNS: Final = tuple(column.name for column in fields(JobRow) if column.name != "response")
_VALUES: Final = attrgetter(*_COLUMNS)
_LISTED: Final = (*_COLUMNS[:-1], "NULL")
"""The columns of a list. The result is read only when one record is requested. It is the last
column, because SQLite reads a row up to the last column that is wanted."""

_CREATE: Final = """
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, model TEXT NOT NULL, owner TEXT, state TEXT NOT NULL,
  stream INTEGER NOT NULL, created_s REAL NOT NULL, request_id TEXT NOT NULL, started_s REAL,
  ended_s REAL, queue_position INTEGER, tokens INTEGER NOT NULL, http_status INTEGER,
  router_pid INTEGER NOT NULL, router_created_s REAL NOT NULL, router_token TEXT NOT NULL,
  usage BLOB, timings BLOB, error BLOB, result BLOB
);
CREATE INDEX jobs_by_age ON jobs (created_s, id);
CREATE INDEX jobs_under_way ON jobs (router_pid, router_created_s) WHERE ended_s IS NULL;
"""

_CREATE_RESPONSES: Final = """
CREATE TABLE IF NOT EXISTS responses (
  id TEXT PRIMARY KEY, items BLOB NOT NULL, head BLOB NOT NULL, previous TEXT, output BLOB
);
CREATE TRIGGER IF NOT EXISTS responses_go_with_jobs AFTER DELETE ON jobs
  BEGIN DELETE FROM responses WHERE id = OLD.id; END;
"""
"""The second table, whose rows go with those of the first. SQLite does not run the trigger for
records that are replaced."""

_SIZE_BYTES: Final = "length(items) + coalesce(length(output), 0)"
_TURNS: Final = f"""
WITH RECURSIVE chain (id, previous, bytes, place) AS (
  SELECT responses.id, previous, {_SIZE_BYTES}, 1 FROM responses JOIN jobs USING (id)
  WHERE id = :id AND owner IS :owner
  UNION ALL
  SELECT responses.id, responses.previous, {_SIZE_BYTES}, place + 1
  FROM chain JOIN responses ON responses.id = chain.previous JOIN jobs ON jobs.id = responses.id
  WHERE place < :most AND owner IS :owner
)
SELECT id, bytes FROM chain ORDER BY place
"""  # noqa: S608
"""The responses of a conversation, the newest first. It looks at nothing behind a response that is
not there or does not belong to that owner: nobody else learns how much there is."""

_PUT: Final = f"INSERT OR REPLACE INTO jobs VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608


_RECORD_BYTES: Final = 512
"""What a record takes besides its result, about."""

_TAKEN_BYTES: Final = (
    "coalesce(length(result), 0) + coalesce(length(items), 0) + coalesce(length(head), 0) "
    f"+ coalesce(length(output), 0) + {_RECORD_BYTES}"
)
"""What a record and its response take of the file, about."""

_RESPONSE_COLUMNS: Final = ("id", "items", "head", "previous", "output")
_NAMED: Final = re.compile(r"(?:TABLE|INDEX|TRIGGER)(?: IF NOT EXISTS)? (\w+)")
"""The names of what the statements above make."""


def create(connection: sqlite3.Connection) -> None:
    """Create the table in an empty file, unless another router has just done so."""
    create_tables(connection, _CREATE, SCHEMA_VERSION)
    create_responses(connection)


def create_responses(connection: sqlite3.Connection) -> None:
    """Create the tables of responses and of conversations, unless they are there."""
    connection.executescript(_CREATE_RESPONSES + conversations.CREATE)


def fault_of(connection: sqlite3.Connection) -> str | None:
    """Return why the tables of a file are not those that lmx makes, so that records could not be
    written for as long as it is there; None if they are."""
    if columns_of(connection, "jobs") != _COLUMNS:
        return "its table `jobs` has other columns"
    others = {"responses": _RESPONSE_COLUMNS, **conversations.TABLES}
    for table, expected in others.items():
        if columns_of(connection, table) not in ((), expected):
            return f"its table `{table}` has other columns"
    known = {*_NAMED.findall(_CREATE + _CREATE_RESPONSES + conversations.CREATE)}
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_autoindex_%'"
    ):
        if name not in known:
            return f"it has {name[:80]!r}, which lmx did not make"
    return None


def write(connection: sqlite3.Connection, rows: Mapping[str, JobRow | None]) -> None:
    """Write whole records by their ids, in one transaction; existing ones are replaced. None
    deletes the record. The conversations get the items of the responses that are completed."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.executemany(_PUT, [_VALUES(row) for row in rows.values() if row is not None])
        gone = [(job_id,) for job_id, row in rows.items() if row is None]
        connection.executemany("DELETE FROM jobs WHERE id = ?", gone)
        connection.executemany(
            "INSERT INTO responses (id, items, head, previous, output) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET output = coalesce(excluded.output, output)",
            [
                (job_id, stored.items, stored.head, stored.previous, stored.output)
                for job_id, row in rows.items()
                if row is not None and (stored := row.response) is not None
            ],
        )
        for row in rows.values():
            if row is None or row.state != JobState.COMPLETED or row.response is None:
                continue
            conversation, made = row.response.conversation, row.response.output
            if conversation is not None:
                output = [(one["id"], orjson.dumps(one)) for one in orjson.loads(made or b"[]")]
                conversations.append(
                    connection,
                    conversation,
                    row.owner,
                    (*row.response.added, *output),
                    row.ended_s or row.created_s,
                )


def response(
    connection: sqlite3.Connection, response_id: str, owner: str | None
) -> StoredResponse | None:
    """Return a response with its result; None if it does not exist or belongs to another owner."""
    job = get(connection, response_id, owner)
    stored = connection.execute(
        "SELECT items, head, previous, output FROM responses WHERE id = ?", (response_id,)
    ).fetchone()
    return None if job is None or stored is None else StoredResponse(job, ResponseRow(*stored))


def output(connection: sqlite3.Connection, response_id: str, owner: str | None) -> bytes | None:
    """Return the items of a response's output; None if there are none, or they belong to another
    owner."""
    found = connection.execute(
        "SELECT output FROM responses JOIN jobs USING (id) WHERE id = ? AND owner IS ?",
        (response_id, owner),
    ).fetchone()
    return None if found is None else found[0]


def turns(
    connection: sqlite3.Connection, response_id: str, owner: str | None, most: int, max_bytes: int
) -> list[Turn]:
    """Return a response and those that it continues, the newest first: up to ``most``, and up to
    the first one that is not there, or does not belong to that owner. Raises ``OverflowError`` if
    their items have more than ``max_bytes``."""
    wanted = {"id": response_id, "owner": owner, "most": most}
    found = connection.execute(_TURNS, wanted).fetchall()
    if sum(size for _, size in found) > max_bytes:
        raise OverflowError
    return [
        Turn(
            *connection.execute(
                "SELECT id, previous, ended_s IS NOT NULL, items, output, "
                "json_extract(CAST(head AS TEXT), '$.conversation.id') "
                "FROM responses JOIN jobs USING (id) WHERE id = ?",
                (turn_id,),
            ).fetchone()
        )
        for turn_id, _ in found
    ]


def get(connection: sqlite3.Connection, job_id: str, owner: str | None) -> JobRow | None:
    """Return a record with its result; None if it does not exist or belongs to another owner."""
    found = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM jobs WHERE id = ? AND owner IS ?",  # noqa: S608
        (job_id, owner),
    ).fetchone()
    return None if found is None else JobRow(*found)


def listed(connection: sqlite3.Connection, wanted: Wanted) -> tuple[list[JobRow], bool] | None:
    """Return the records that are wanted, without results, and whether more follow; None if there
    is no record ``after``."""
    conditions = ["owner IS ?"]
    values: list[object] = [wanted.owner]
    for column in ("state", "model", "kind"):
        value = getattr(wanted, column)
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if wanted.after is not None:
        last = get(connection, wanted.after, wanted.owner)
        if last is None:
            return None
        conditions.append("(created_s, id) < (?, ?)")
        values += (last.created_s, last.id)
    found = connection.execute(
        f"SELECT {', '.join(_LISTED)} FROM jobs WHERE {' AND '.join(conditions)} "  # noqa: S608
        "ORDER BY created_s DESC, id DESC LIMIT ?",
        (*values, wanted.limit + 1),
    ).fetchall()
    return [JobRow(*row) for row in found[: wanted.limit]], len(found) > wanted.limit


def delete(connection: sqlite3.Connection, job_id: str, *, under_way: bool) -> None:
    """Remove a record that has ended, or with ``under_way`` also one that has not."""
    with connection:
        connection.execute(
            "DELETE FROM jobs WHERE id = ? AND (? OR ended_s IS NOT NULL)", (job_id, under_way)
        )


def interrupt_of_dead(
    connection: sqlite3.Connection,
    token: str,
    alive: Callable[[Router], bool],
    error: bytes,
    now_s: float,
) -> int:
    """Mark the jobs of routers that are not ``alive`` as interrupted; return how many.

    It looks only at the records of other stores. It writes nothing if there is nothing to mark.
    """
    routers = connection.execute(
        "SELECT DISTINCT router_pid, router_created_s FROM jobs "
        "WHERE ended_s IS NULL AND router_token != ?",
        (token,),
    ).fetchall()
    marked = 0
    for router in routers:
        if not alive(router):
            with connection:
                marked += connection.execute(
                    "UPDATE jobs SET state = ?, error = ?, ended_s = ?, queue_position = NULL "
                    "WHERE ended_s IS NULL AND router_pid = ? AND router_created_s = ? "
                    "AND router_token != ?",
                    (JobState.INTERRUPTED, error, now_s, *router, token),
                ).rowcount
    return marked


def under_way(connection: sqlite3.Connection, token: str) -> frozenset[str]:
    """Return the ids of the jobs that a store has recorded as under way."""
    own = connection.execute(
        "SELECT id FROM jobs WHERE ended_s IS NULL AND router_token = ?", (token,)
    )
    return frozenset(job_id for (job_id,) in own)


def interrupt_lost(
    connection: sqlite3.Connection, lost: Collection[str], error: bytes, now_s: float
) -> None:
    """Mark jobs whose end could not be written as interrupted, unless they have ended."""
    if not lost:
        return
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.executemany(
            "UPDATE jobs SET state = ?, error = ?, ended_s = ?, queue_position = NULL "
            "WHERE id = ? AND ended_s IS NULL",
            [(JobState.INTERRUPTED, error, now_s, job_id) for job_id in lost],
        )


def forget_old(connection: sqlite3.Connection, oldest_s: float, max_count: int) -> int:
    """Remove the records that ended before ``oldest_s``, and of those that ended all but
    ``max_count``, in the order of :func:`first_to_go`; return how many were removed. Jobs under way
    stay."""
    with connection:
        by_age = connection.execute("DELETE FROM jobs WHERE ended_s < ?", (oldest_s,)).rowcount
    over = "FROM jobs WHERE ended_s IS NOT NULL"
    excess = connection.execute(f"SELECT count(*) {over}").fetchone()[0] - max_count
    gone: list[str] = []
    if excess > 0:
        ended = connection.execute(f"SELECT id, owner, 1 {over} ORDER BY created_s, id")
        gone = first_to_go(ended, excess)
    _remove(connection, gone)
    return by_age + len(gone)


def first_to_go(records: Iterable[tuple[str, str | None, int]], excess: int) -> list[str]:
    """Return the ids of the records that free ``excess``. Each record is its id, its owner and what
    it takes; they come the oldest first.

    The owner who takes most gives its oldest record, again and again: nobody loses one to an owner
    who takes more.
    """
    left: dict[str | None, deque[tuple[str, int]]] = {}
    taken: dict[str | None, int] = {}
    for record_id, owner, size in records:
        left.setdefault(owner, deque()).append((record_id, size))
        taken[owner] = taken.get(owner, 0) + size
    gone = []
    while excess > 0 and left:
        owner = max(left, key=taken.__getitem__)
        record_id, size = left[owner].popleft()
        gone.append(record_id)
        excess -= size
        taken[owner] -= size
        if not left[owner]:
            del left[owner]
    return gone


def _remove(connection: sqlite3.Connection, gone: Sequence[str]) -> None:
    if gone:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            connection.executemany("DELETE FROM jobs WHERE id = ?", [(one,) for one in gone])


def bound_conversations(connection: sqlite3.Connection, max_count: int, max_bytes: int) -> int:
    """Remove conversations, in the order of :func:`first_to_go` and those that were added to
    longest ago first, until there are no more than ``max_count``, which take no more than
    ``max_bytes``; return how many were removed."""
    count, taken_bytes = conversations.taken(connection)
    gone: set[str] = set()
    if count > max_count:
        each = [(one, owner, 1) for one, owner, _ in conversations.by_use(connection)]
        gone.update(first_to_go(each, count - max_count))
    if taken_bytes > max_bytes:
        gone.update(first_to_go(conversations.by_use(connection), taken_bytes - max_bytes))
    if gone:
        conversations.remove_all(connection, gone)
    return len(gone)


def file_bytes(connection: sqlite3.Connection) -> int:
    """Return how large the file is once the journal has been moved into it, without the
    conversations, which have a limit of their own."""
    whole = _pragma(connection, "page_count") * _pragma(connection, "page_size")
    return whole - conversations.taken(connection)[1]


def shrink(connection: sqlite3.Connection, max_bytes: int) -> int:
    """Remove records that have ended, in the order of :func:`first_to_go`, until those that are
    left of them take no more than nine tenths of ``max_bytes``, and give the free space back to the
    disk; return how many were removed.

    The records of jobs under way stay, however large they are, and take no room from the others.
    """
    (under_way_bytes,) = connection.execute(
        f"SELECT coalesce(sum({_TAKEN_BYTES}), 0) FROM jobs LEFT JOIN responses USING (id) "  # noqa: S608
        "WHERE ended_s IS NULL"
    ).fetchone()
    most_bytes = max_bytes * 9 // 10 + under_way_bytes
    removed = 0
    while (excess_bytes := _used_bytes(connection) - most_bytes) > 0:
        ended = connection.execute(
            f"SELECT id, owner, {_TAKEN_BYTES} FROM jobs LEFT JOIN responses USING (id) "  # noqa: S608
            "WHERE ended_s IS NOT NULL ORDER BY created_s, id"
        ).fetchall()
        gone = first_to_go(ended, excess_bytes)
        if not gone:
            break
        _remove(connection, gone)
        removed += len(gone)
    # `execute` would take only one step of this statement, and so free one page.
    connection.executescript("PRAGMA incremental_vacuum")
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return removed


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size") - conversations.taken(connection)[1]


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


_SAME_PROCESS_S: Final = 2.0
"""The system may report a process's time of creation slightly differently after the clock was set.
No pid is reused as soon as this."""


def own_process() -> Router:
    """Return the identity of this process."""
    own = psutil.Process()
    return own.pid, own.create_time()


def is_alive(router: Router) -> bool:
    """Return whether a router process exists and has not ended. Asks the system."""
    pid, created_s = router
    try:
        process = psutil.Process(pid)
        return (
            abs(process.create_time() - created_s) < _SAME_PROCESS_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        # Only its owner can write the file, so another user's process is not the one that wrote it.
        return False


def _interruption(message: str) -> bytes:
    return orjson.dumps(openai_error(LmxError(ErrorCode.JOB_INTERRUPTED, message))["error"])


ROUTER_ENDED: Final = _interruption(
    "The router that ran this job ended before the job did. Send the request again."
)
END_LOST: Final = _interruption(
    "How this job ended could not be written to the job records; the router's log says why."
)
