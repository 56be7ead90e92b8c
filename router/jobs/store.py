"""The job records as the router's event loop sees them: written soon, and read with a deadline.

One thread does all the work with the file. Errors there are logged and counted, and never reach the
request that a record is about. The file is opened, created, and moved aside when it can't be used.
"""

import asyncio
import contextlib
import os
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.host.lasting import keep_up_in_thread
from lmx.protocol.host.quarantine_file import clear_for_file, quarantine_file
from lmx.router.jobs import records
from lmx.router.jobs.records import (
    END_LOST,
    INCREMENTAL,
    ROUTER_ENDED,
    SCHEMA_VERSION,
    JobRow,
    StoredResponse,
    Turn,
    Wanted,
    create,
    create_responses,
    fault_of,
    is_alive,
    own_process,
)

_GATHER_S: Final = 0.1
"""Writes are collected for this long and committed together: most generations that end quickly need
only one write."""

_STEP_DEADLINE_S: Final = 5.0
"""How long the thread may take for one read or write. Reads wait for their turn as long as those
before them come to an end: a deadline for the wait would count the queue as the disk's fault."""

_READS_LIMIT: Final = 256
_ROWS_LIMIT: Final = 8192
_AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""Beyond this much nothing more is collected."""

_RESULTS_LIMIT_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of results and of kept responses that may wait while the file can't be
written."""

_PAUSE_S: Final = 1.0
"""The pause after a write that failed."""

_T = TypeVar("_T")
_Read = Callable[[sqlite3.Connection], _T]

_log = structlog.get_logger()


class JobStore:
    """The records in one file, which several routers may use at once.

    ``put`` and ``forget`` never wait and never raise. Every read that begins after a ``put`` sees
    its record. The records that wait to be written have a limit; beyond it they are dropped, and
    counted in ``dropped``. ``failures`` counts the writes and reads that failed.
    """

    def __init__(self, path: Path, max_age_s: float, max_count: int, max_bytes: int) -> None:
        self.dropped = 0
        self.failures = 0
        self.token = secrets.token_hex(4)
        """Marks this store's records among those of others, in other processes or in this one."""
        self._router = own_process()
        self._path = path
        self._max_age_s = max_age_s
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        # The condition above guards these: the loop and the thread share them.
        self._rows: dict[str, JobRow | None] = {}
        self._rows_bytes = 0
        self._reads: deque[tuple[_Read[object], Future[object]]] = deque()
        self._closing = False
        self._steps = 0
        """How many reads and writes the thread has done, or failed to do. It alone counts."""
        self._thread = keep_up_in_thread(self._work, "the jobs")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self, deadline_s: float) -> None:
        """Write what waits and close the file; blocks for up to ``deadline_s``."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(deadline_s)
        if self._thread.is_alive() or self._rows:
            _log.error("jobs.write_failed", rows=len(self._rows))

    def put(self, row: JobRow) -> None:
        """Write a record in place of the one with the same id."""
        row.router_pid, row.router_created_s = self._router
        row.router_token = self.token
        with self._changed:
            others_bytes = self._rows_bytes - _size_bytes(self._rows.get(row.id))
            if others_bytes + _size_bytes(row) > _RESULTS_LIMIT_BYTES and others_bytes:
                # The record is kept and shows how the job ended; its result is lost, and what other
                # requests continue only if it does not fit alone.
                row.result = None
                if others_bytes + _size_bytes(row) > _RESULTS_LIMIT_BYTES:
                    row.response = None
                self._drop(1)
            self._enqueue(row.id, row)

    def forget(self, job_id: str) -> None:
        """Let there be no record of a job, even if one was written."""
        with self._changed:
            self._enqueue(job_id, None)

    async def get(self, job_id: str, owner: str | None) -> JobRow | None:
        """Return a record with its result. Raises JOBS_UNAVAILABLE, as the other reads do."""
        return await self._read(lambda connection: records.get(connection, job_id, owner))

    async def response(self, response_id: str, owner: str | None) -> StoredResponse | None:
        """Return a response with its result."""
        return await self._read(lambda connection: records.response(connection, response_id, owner))

    async def turns(
        self, response_id: str, owner: str | None, most: int, max_bytes: int
    ) -> list[Turn]:
        """Return a response and those that it continues, the newest first: up to ``most``, and up
        to the first one that is not there. Raises ``OverflowError`` if they have more than
        ``max_bytes``."""
        return await self._read(
            lambda connection: records.turns(connection, response_id, owner, most, max_bytes)
        )

    async def listed(self, wanted: Wanted) -> tuple[list[JobRow], bool] | None:
        """Return records and whether more follow; None if the record ``wanted.after`` does not
        exist."""
        return await self._read(lambda connection: records.listed(connection, wanted))

    async def delete(self, job_id: str, *, under_way: bool = False) -> None:
        """Remove a record that has ended, or with ``under_way`` also one that has not."""
        await self._read(lambda connection: records.delete(connection, job_id, under_way=under_way))

    async def sweep(self, live: Callable[[], Collection[str]]) -> None:
        """Remove the records that are too old or too many. Mark jobs as interrupted that are
        recorded as under way and are not: ``live`` returns the ids that are under way in this
        router."""
        own = await self._read(lambda connection: records.under_way(connection, self.token))
        # This must be read after the records: a job is live before it has a record.
        lost = own.difference(live())
        await self._read(lambda connection: self._sweep(connection, lost))

    def is_own(self, row: JobRow) -> bool:
        """Return whether this store was the last to write a record."""
        return row.router_token == self.token

    def _enqueue(self, job_id: str, row: JobRow | None) -> None:
        """Queue a record to be written, or removed; the caller holds the condition."""
        if job_id not in self._rows and len(self._rows) >= _ROWS_LIMIT:
            self._drop(1)
            return
        if not self._rows:
            self._changed.notify()
        before_bytes = self._rows_bytes
        self._rows_bytes += _size_bytes(row) - _size_bytes(self._rows.get(job_id))
        self._rows[job_id] = row
        if before_bytes <= _AT_ONCE_BYTES < self._rows_bytes:
            self._changed.notify()

    async def _read(self, read: _Read[_T]) -> _T:
        future: Future[_T] = Future()
        with self._changed:
            if len(self._reads) >= _READS_LIMIT or self._closing:
                raise _unavailable("too many requests read them at once")
            self._reads.append((read, future))  # type: ignore[arg-type]  # each with its own type
            self._changed.notify()
        found = asyncio.wrap_future(future)
        try:
            steps = -1
            while not found.done():
                if steps == self._steps:
                    raise _unavailable(f"the disk took more than {_STEP_DEADLINE_S:g} s")
                steps = self._steps
                await asyncio.wait({found}, timeout=_STEP_DEADLINE_S)
            return found.result()
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(str(error)) from error
        finally:
            found.cancel()

    # The methods below run in the thread.

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            rows, reads, closing = self._next()
            try:
                if connection is None:
                    connection = open_records(self._path)
                if rows:
                    records.write(connection, rows)
                    self._steps += 1
                    self._bound(connection)
            except (sqlite3.Error, OSError) as error:
                connection = self._failed(connection, error)
                self._put_back(rows)
                for _, future in reads:
                    _fail(future, error)
            except Exception as error:
                # A record that can't be written must not hold up those after it.
                _log.exception("jobs.internal_error")
                self._drop(len(rows))
                for _, future in reads:
                    _fail(future, error)
            else:
                self._steps += 1
                for read, future in reads:
                    connection = self._answer(connection, read, future)
                    self._steps += 1
            if closing:
                break
        if connection is not None:
            connection.close()

    def _next(
        self,
    ) -> tuple[dict[str, JobRow | None], list[tuple[_Read[object], Future[object]]], bool]:
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._reads or self._closing)
            self._changed.wait_for(
                lambda: self._reads or self._closing or self._rows_bytes > _AT_ONCE_BYTES, _GATHER_S
            )
            rows, self._rows, self._rows_bytes = self._rows, {}, 0
            reads = list(self._reads)
            self._reads.clear()
            return rows, reads, self._closing

    def _answer(
        self, connection: sqlite3.Connection | None, read: _Read[object], future: Future[object]
    ) -> sqlite3.Connection | None:
        if not future.set_running_or_notify_cancel():
            return connection  # Nobody waits any more.
        try:
            if connection is None:
                connection = open_records(self._path)
            self._mark_dead(connection)
            result = read(connection)
        except (sqlite3.Error, OSError) as error:
            future.set_exception(error)
            return self._failed(connection, error)
        except Exception as error:  # It is raised where the answer is waited for.
            future.set_exception(error)
        else:
            future.set_result(result)
        return connection

    def _bound(self, connection: sqlite3.Connection) -> None:
        if records.file_bytes(connection) > self._max_bytes:
            gone = records.shrink(connection, self._max_bytes)
            _log.info("jobs.shrunk", removed=gone, max_bytes=self._max_bytes)

    def _mark_dead(self, connection: sqlite3.Connection) -> None:
        marked = records.interrupt_of_dead(
            connection, self.token, is_alive, ROUTER_ENDED, time.time()
        )
        if marked:
            _log.warning("jobs.interrupted", jobs=marked)

    def _sweep(self, connection: sqlite3.Connection, lost: Collection[str]) -> None:
        now_s = time.time()
        records.interrupt_lost(connection, lost, END_LOST, now_s)
        gone = records.forget_old(connection, now_s - self._max_age_s, self._max_count)
        self._bound(connection)
        if lost or gone:
            _log.info("jobs.swept", removed=gone, lost=len(lost))

    def _failed(
        self, connection: sqlite3.Connection | None, error: Exception
    ) -> sqlite3.Connection | None:
        """Return the connection to use after an error; None to open a new one: a connection that
        was opened, or used, while its disk was full or read-only may stay unusable for ever."""
        self.failures += 1
        _log.warning("jobs.failed", error=str(error), failures=self.failures)
        if connection is None or (isinstance(error, sqlite3.Error) and is_busy(error)):
            return connection
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        if not (isinstance(error, sqlite3.Error) and is_unfit(error)):
            return None
        try:
            move_aside(self._path, str(error))
        except OSError as fault:
            _log.error("jobs.quarantine_failed", error=str(fault))
        return None

    def _put_back(self, rows: dict[str, JobRow | None]) -> None:
        """Keep what could not be written for the next attempt, and pause a little before it."""
        with self._changed:
            # A record that was put meanwhile is newer.
            left = rows | self._rows
            excess = len(left) - _ROWS_LIMIT
            if excess > 0:
                for job_id in list(left)[:excess]:
                    del left[job_id]
                self._drop(excess)
            self._rows = left
            self._rows_bytes = sum(map(_size_bytes, left.values()))
            self._changed.wait_for(lambda: self._closing, _PAUSE_S)

    def _drop(self, count: int) -> None:
        if not self.dropped:
            _log.error("jobs.dropped", path=str(self._path))
        self.dropped += count


def _size_bytes(row: JobRow | None) -> int:
    if row is None:
        return 0
    stored = row.response
    response = (
        0 if stored is None else len(stored.items) + len(stored.head) + len(stored.output or b"")
    )
    return len(row.result or b"") + response


def _fail(future: Future[object], error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _unavailable(why: str) -> LmxError:
    return UnavailableError(
        ErrorCode.JOBS_UNAVAILABLE,
        f"The job records can't be read now: {why}. Try again; if it stays so, look at the "
        "router's log and at the disk that lmx's home folder is on.",
    )


_BUSY_TIMEOUT_MS: Final = 2000
"""Another router that uses the file too locks it for milliseconds."""

_BUSY_PAUSE_S: Final = 0.02

_JOURNAL_BYTES: Final = 16 * 1024 * 1024

_UNFIT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def open_records(path: Path) -> sqlite3.Connection:
    """Return a connection to the records in ``path``, which only its owner may read.

    A file that is corrupt, has another version or other tables, or is no database is moved aside,
    and an empty one takes its place. Raises ``OSError`` and ``sqlite3.Error`` if the file can't be
    used now: the folder is missing, the disk is full, another process holds it.
    """
    for suffix in ("", "-wal", "-shm"):
        aside = clear_for_file(path.with_name(path.name + suffix))
        if aside is not None:
            _log.error("jobs.file_quarantined", path=str(path), to=str(aside), reason="no file")
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
    """Return whether an error means that the file's content is broken."""
    return _kind(error) in _UNFIT


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether an error means that another process holds the file: nothing is wrong with
    it."""
    return _kind(error) in _BUSY


def _kind(error: sqlite3.Error) -> int:
    # The low byte is the kind; the rest is where.
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def move_aside(path: Path, why: str) -> None:
    """Move the file out of the way, with the files that SQLite keeps next to it. Raises
    ``OSError``."""
    aside = quarantine_file(path)
    _log.error("jobs.file_quarantined", path=str(path), to=str(aside), reason=why)
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
