"""The job records as the router's event loop sees them: written soon, and read with a deadline."""

import secrets
import sqlite3
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, TypeVar

import structlog

from lmx.protocol.errors import ErrorCode
from lmx.router.jobs import records
from lmx.router.record_file import RecordFile, RecordKind, open_file

_GATHER_S: Final = 0.1
"""Writes are collected for this long and committed together: most generations that end quickly need
only one write."""

_ROWS_LIMIT: Final = 8192
_AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""Beyond this much nothing more is collected."""

_MOST_CONVERSATIONS: Final = 10_000
"""How many conversations are kept, of all keys."""

_RESULTS_LIMIT_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of results and of kept responses that may wait while the file can't be
written."""

_KIND: Final = RecordKind(
    "jobs",
    "job records",
    ErrorCode.JOBS_UNAVAILABLE,
    records.SCHEMA_VERSION,
    records.create,
    records.fault_of,
    records.create_responses,
)

_Rows = dict[str, records.JobRow | None]
_T = TypeVar("_T")

_log = structlog.get_logger()


def open_records(path: Path) -> sqlite3.Connection:
    """Return a connection to the records in ``path``, as :func:`open_file` does."""
    return open_file(path, _KIND)


class JobStore(RecordFile[_Rows]):
    """The records in one file, which several routers may use at once.

    ``put`` and ``forget`` never wait and never raise. Every read that begins after a ``put`` sees
    its record. The records that wait to be written have a limit; beyond it they are dropped, and
    counted in ``dropped``.
    """

    def __init__(self, path: Path, max_age_s: float, max_count: int, max_bytes: int) -> None:
        super().__init__(path, _KIND, _GATHER_S)
        self.dropped = 0
        self.token = secrets.token_hex(4)
        """Marks this store's records among those of others, in other processes or in this one."""
        self._router = records.own_process()
        self._max_age_s = max_age_s
        self._max_count = max_count
        self._max_bytes = max_bytes
        # The condition of the file guards these: the loop and the thread share them.
        self._rows: _Rows = {}
        self._rows_bytes = 0

    def put(self, row: records.JobRow) -> None:
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

    async def get(self, job_id: str, owner: str | None) -> records.JobRow | None:
        """Return a record with its result. Raises JOBS_UNAVAILABLE, as the other reads do."""
        return await self._read(lambda connection: records.get(connection, job_id, owner))

    async def response(self, response_id: str, owner: str | None) -> records.StoredResponse | None:
        """Return a response with its result."""
        return await self._read(lambda connection: records.response(connection, response_id, owner))

    async def output(self, response_id: str, owner: str | None) -> bytes | None:
        """Return the items of a response's output as JSON; None without any."""
        return await self._read(lambda connection: records.output(connection, response_id, owner))

    async def turns(
        self, response_id: str, owner: str | None, most: int, max_bytes: int
    ) -> list[records.Turn]:
        """Return a response and those that it continues, the newest first: up to ``most``, and up
        to the first one that is not there. Raises ``OverflowError`` if they have more than
        ``max_bytes``."""
        return await self._read(
            lambda connection: records.turns(connection, response_id, owner, most, max_bytes)
        )

    async def listed(self, wanted: records.Wanted) -> tuple[list[records.JobRow], bool] | None:
        """Return records and whether more follow; None if the record ``wanted.after`` does not
        exist."""
        return await self._read(lambda connection: records.listed(connection, wanted))

    async def delete(self, job_id: str, *, under_way: bool = False) -> None:
        """Remove a record that has ended, or with ``under_way`` also one that has not."""
        await self._read(lambda connection: records.delete(connection, job_id, under_way=under_way))

    async def perform(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return what ``work`` gives, which reads the conversations or commits a change of them. It
        must take less than seconds. Raises JOBS_UNAVAILABLE, and what ``work`` raises."""

        def done(connection: sqlite3.Connection) -> _T:
            found = work(connection)
            self._bound_conversations(connection)
            return found

        return await self._read(done)

    async def sweep(self, live: Callable[[], Collection[str]]) -> None:
        """Remove the records that are too old or too many. Mark jobs as interrupted that are
        recorded as under way and are not: ``live`` returns the ids that are under way in this
        router."""
        own = await self._read(lambda connection: records.under_way(connection, self.token))
        # This must be read after the records: a job is live before it has a record.
        lost = own.difference(live())
        await self._read(lambda connection: self._sweep(connection, lost))

    def is_own(self, row: records.JobRow) -> bool:
        """Return whether this store was the last to write a record."""
        return row.router_token == self.token

    def _enqueue(self, job_id: str, row: records.JobRow | None) -> None:
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

    def _waiting(self) -> int:
        return len(self._rows)

    def _is_much(self) -> bool:
        return self._rows_bytes > _AT_ONCE_BYTES

    def _take(self) -> _Rows:
        rows, self._rows, self._rows_bytes = self._rows, {}, 0
        return rows

    def _put_back(self, batch: _Rows) -> None:
        # A record that was put meanwhile is newer.
        left = batch | self._rows
        excess = len(left) - _ROWS_LIMIT
        if excess > 0:
            for job_id in list(left)[:excess]:
                del left[job_id]
            self._drop(excess)
        self._rows = left
        self._rows_bytes = sum(map(_size_bytes, left.values()))

    # The methods below run in the thread.

    def _open(self) -> sqlite3.Connection:
        return open_records(self._path)

    def _write(self, connection: sqlite3.Connection, batch: _Rows) -> None:
        records.write(connection, batch)

    def _lose(self, batch: _Rows) -> None:
        self._drop(len(batch))

    def _bound_conversations(self, connection: sqlite3.Connection) -> None:
        gone = records.bound_conversations(connection, _MOST_CONVERSATIONS, self._max_bytes)
        if gone:
            _log.info("jobs.conversations_removed", removed=gone, max_bytes=self._max_bytes)

    def _bound(self, connection: sqlite3.Connection) -> None:
        self._bound_conversations(connection)
        if records.file_bytes(connection) > self._max_bytes:
            gone = records.shrink(connection, self._max_bytes)
            if gone:
                _log.info("jobs.shrunk", removed=gone, max_bytes=self._max_bytes)

    def _before_read(self, connection: sqlite3.Connection) -> None:
        marked = records.interrupt_of_dead(
            connection, self.token, records.is_alive, records.ROUTER_ENDED, time.time()
        )
        if marked:
            _log.warning("jobs.interrupted", jobs=marked)

    def _sweep(self, connection: sqlite3.Connection, lost: Collection[str]) -> None:
        now_s = time.time()
        records.interrupt_lost(connection, lost, records.END_LOST, now_s)
        gone = records.forget_old(connection, now_s - self._max_age_s, self._max_count)
        self._bound(connection)
        if lost or gone:
            _log.info("jobs.swept", removed=gone, lost=len(lost))

    def _drop(self, count: int) -> None:
        if not self.dropped:
            _log.error("jobs.dropped", path=str(self._path))
        self.dropped += count


def _size_bytes(row: records.JobRow | None) -> int:
    if row is None:
        return 0
    stored = row.response
    if stored is None:
        return len(row.result or b"")
    added = sum(len(item) for _, item in stored.added)
    response = len(stored.items) + len(stored.head) + len(stored.output or b"") + added
    return len(row.result or b"") + response
