"""A file of SQLite, and the thread that does all the work with it.

What is to be written is collected and written together. Errors there are logged and counted, and
never reach the request that a record is about. The file is opened, created, and moved aside when it
can't be used.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.host.lasting import keep_up_in_thread
from lmx.protocol.host.quarantine_file import clear_for_file, quarantine_file

_STEP_DEADLINE_S: Final = 5.0
"""How long the thread may take for one read or write. Reads wait for their turn as long as those
before them come to an end: a deadline for the wait would count the queue as the disk's fault."""

_WAITS: Final = 10
"""The parts in which that time is waited: one is all that a router loses that stood still itself,
as a process that is stopped does."""

_READS_LIMIT: Final = 256
_OWN_READS_LIMIT: Final = 32
"""The most of them that one requester may have waiting, so that nobody fills the queue for all."""

READER: Final[ContextVar[str]] = ContextVar("reader", default="")
"""Who reads: a key, or a client's address. Empty: lmx itself, which the queue's limit alone
stops."""

_PAUSE_S: Final = 1.0
"""The pause after a write that failed."""

_BUSY_TIMEOUT_MS: Final = 4500
"""Another router that uses the file too locks it for milliseconds, unless it stands still with the
lock. It is less than the deadline of a read."""

_BUSY_PAUSE_S: Final = 0.02

_JOURNAL_BYTES: Final = 16 * 1024 * 1024

_UNFIT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_NEVER: Final = frozenset(
    {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH}
)
"""The kinds of errors that a row has which can't be written, whatever the disk does."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

_INCREMENTAL: Final = 2
"""The value of ``auto_vacuum`` for a file whose free pages can be given back at any time."""

_T = TypeVar("_T")
_Batch = TypeVar("_Batch")
Read = Callable[[sqlite3.Connection], _T]
_Reading = tuple[str, Read[object], Future[object]]
"""Who reads, what, and where the answer goes."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RecordKind:
    """What a file holds."""

    name: str
    """Log events begin with it."""
    title: str
    """The same for people, in the plural."""
    unavailable: ErrorCode
    """The error of a read that can't be answered."""
    version: int
    """The file's ``user_version``. Raise it with every change of the tables."""
    create: Callable[[sqlite3.Connection], None]
    """Makes the tables and sets the version, unless another router has just done so."""
    fault_of: Callable[[sqlite3.Connection], str | None]
    """Returns why the tables are not those that lmx makes; None if they are."""
    complete: Callable[[sqlite3.Connection], None] = lambda _: None
    """Makes what an earlier release of the same version did not have."""


class RecordFile(ABC, Generic[_Batch]):
    """A file that several routers may use at once, and its thread.

    A subclass collects what waits to be written, as a ``_Batch``. ``failures`` counts the writes
    and reads that failed. Every read that begins after something was collected sees it.
    """

    def __init__(self, path: Path, kind: RecordKind, gather_s: float) -> None:
        """Writes are collected for ``gather_s`` seconds, unless a read needs them sooner."""
        self.failures = 0
        self._path = path
        self._kind = kind
        self._gather_s = gather_s
        self._file: tuple[int, int] | None = None
        """The device and the inode of the file that is open. The thread alone uses it."""
        self._changed = threading.Condition()
        # The condition above guards these, and what a subclass collects: the loop and the thread
        # share them.
        self._reads: deque[_Reading] = deque()
        self._closing = False
        self._steps = 0
        """How many reads and writes the thread has done, or failed to do. It alone counts."""
        self._thread = keep_up_in_thread(self._work, kind.title)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self, deadline_s: float) -> None:
        """Write what waits and close the file; blocks for up to ``deadline_s``."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(deadline_s)
        if self._thread.is_alive() or self._waiting():
            _log.error(f"{self._kind.name}.write_failed", rows=self._waiting())

    async def _read(self, read: Read[_T]) -> _T:
        future: Future[_T] = Future()
        reader = READER.get()
        with self._changed:
            waiting = sum(one == reader for one, _, _ in self._reads) if reader else 0
            if waiting >= _OWN_READS_LIMIT:
                raise UnavailableError(
                    ErrorCode.RATE_LIMIT_EXCEEDED,
                    f"{_OWN_READS_LIMIT} requests of this key or address read the "
                    f"{self._kind.title} now, as many as may at a time. Try again in a second.",
                    retry_after_s=1.0,
                )
            if len(self._reads) >= _READS_LIMIT or self._closing:
                raise self._unavailable("too many requests read them at once")
            self._reads.append((reader, read, future))  # type: ignore[arg-type]  # each its own type
            self._changed.notify()
        found = asyncio.wrap_future(future)
        try:
            steps, waits = self._steps, 0
            # The future of the thread is done before the loop has seen so.
            while not future.done():
                if waits == _WAITS:
                    raise self._unavailable(f"the disk took more than {_STEP_DEADLINE_S:g} s")
                await asyncio.wait({found}, timeout=_STEP_DEADLINE_S / _WAITS)
                steps, waits = self._steps, waits + 1 if steps == self._steps else 0
            return found.result() if found.done() else future.result()
        except (sqlite3.Error, OSError) as error:
            raise self._unavailable(str(error)) from error
        finally:
            found.cancel()

    def _unavailable(self, why: str) -> LmxError:
        return UnavailableError(
            self._kind.unavailable,
            f"The {self._kind.title} can't be read now: {why}. Try again; if it stays so, look at "
            "the router's log and at the disk that lmx's home folder is on.",
        )

    # The caller of these holds the condition.

    @abstractmethod
    def _waiting(self) -> int:
        """Return how many rows wait to be written."""

    def _is_much(self) -> bool:
        """Return whether so much waits that it is written without more being collected."""
        return False

    @abstractmethod
    def _take(self) -> _Batch:
        """Return all that waits, and collect into another batch from now on."""

    @abstractmethod
    def _put_back(self, batch: _Batch) -> None:
        """Keep for the next attempt what could not be written."""

    # The methods below run in the thread.

    @abstractmethod
    def _write(self, connection: sqlite3.Connection, batch: _Batch) -> None:
        """Write a batch, all or nothing."""

    def _bound(self, connection: sqlite3.Connection) -> None:
        """Remove what is too much, after a write."""

    def _before_read(self, connection: sqlite3.Connection) -> None:
        """Do what every read needs done first."""

    @abstractmethod
    def _lose(self, batch: _Batch) -> None:
        """Count a batch that can never be written."""

    def _open(self) -> sqlite3.Connection:
        return open_file(self._path, self._kind)

    def _opened(self) -> sqlite3.Connection:
        connection = self._open()
        with contextlib.suppress(OSError):
            self._file = _file_at(self._path)
        return connection

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            count, batch, reads, closing = self._next()
            try:
                if connection is None:
                    connection = self._opened()
                if count:
                    self._write(connection, batch)
                    count = 0  # what is written is not written again, whatever fails from here on
                    self._steps += 1
                    self._bound(connection)
            except Exception as error:
                if isinstance(error, sqlite3.Error | OSError) and _kind(error) not in _NEVER:
                    connection = self._failed(connection, error)
                    with self._changed:
                        if count:
                            self._put_back(batch)
                        self._changed.wait_for(lambda: self._closing, _PAUSE_S)
                else:
                    # What can't be written must not hold up what comes after it.
                    _log.exception(f"{self._kind.name}.internal_error")
                    if count:
                        self._lose(batch)
                for _, _, future in reads:
                    _fail(future, error)
            else:
                self._steps += 1
                for _, read, future in reads:
                    connection = self._answer(connection, read, future)
                    self._steps += 1
            if closing:
                break
        if connection is not None:
            connection.close()

    def _next(self) -> tuple[int, _Batch, list[_Reading], bool]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting() or self._reads or self._closing)
            self._changed.wait_for(
                lambda: self._reads or self._closing or self._is_much(), self._gather_s
            )
            count, batch = self._waiting(), self._take()
            reads = list(self._reads)
            self._reads.clear()
            return count, batch, reads, self._closing

    def _answer(
        self, connection: sqlite3.Connection | None, read: Read[object], future: Future[object]
    ) -> sqlite3.Connection | None:
        if not future.set_running_or_notify_cancel():
            return connection  # Nobody waits any more.
        try:
            if connection is None:
                connection = self._opened()
            self._before_read(connection)
            result = read(connection)
        except (sqlite3.Error, OSError) as error:
            future.set_exception(error)
            return self._failed(connection, error)
        except Exception as error:  # It is raised where the answer is waited for.
            future.set_exception(error)
        else:
            future.set_result(result)
        return connection

    def _failed(
        self, connection: sqlite3.Connection | None, error: Exception
    ) -> sqlite3.Connection | None:
        """Return the connection to use after an error; None to open a new one: a connection that
        was opened, or used, while its disk was full or read-only may stay unusable for ever."""
        self.failures += 1
        _log.warning(f"{self._kind.name}.failed", error=str(error), failures=self.failures)
        if connection is None or (isinstance(error, sqlite3.Error) and is_busy(error)):
            return connection
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        if not (isinstance(error, sqlite3.Error) and is_unfit(error)):
            return None
        try:
            # Another router may have moved it aside, and have made a new one.
            if _file_at(self._path) == self._file:
                move_aside(self._path, self._kind.name, str(error))
        except FileNotFoundError:
            pass
        except OSError as fault:
            _log.error(f"{self._kind.name}.quarantine_failed", error=str(fault))
        return None


def _file_at(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _fail(future: Future[Any], error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def open_file(path: Path, kind: RecordKind) -> sqlite3.Connection:
    """Return a connection to the records in ``path``, which only its owner may read.

    A file that is corrupt, has another version or other tables, or is no database is moved aside,
    and an empty one takes its place. Raises ``OSError`` and ``sqlite3.Error`` if the file can't be
    used now: the folder is missing, the disk is full, another process holds it.
    """
    for suffix in ("", "-wal", "-shm"):
        aside = clear_for_file(path.with_name(path.name + suffix))
        if aside is not None:
            _log.error(
                f"{kind.name}.file_quarantined", path=str(path), to=str(aside), reason="no file"
            )
    try:
        return _open(path, kind)
    except sqlite3.DatabaseError as error:
        if not is_unfit(error):
            raise
        move_aside(path, kind.name, str(error))
    except _OtherTablesError as error:
        move_aside(path, kind.name, str(error))
    return _open(path, kind)


def is_unfit(error: sqlite3.Error) -> bool:
    """Return whether an error means that the file's content is broken."""
    return _kind(error) in _UNFIT


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether an error means that another process holds the file: nothing is wrong with
    it."""
    return _kind(error) in _BUSY


def _kind(error: Exception) -> int:
    # The low byte is the kind; the rest is where.
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def move_aside(path: Path, name: str, why: str) -> None:
    """Move the file out of the way, with the files that SQLite keeps next to it. ``name`` is its
    kind's. Raises ``OSError``."""
    aside = quarantine_file(path)
    _log.error(f"{name}.file_quarantined", path=str(path), to=str(aside), reason=why)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))


def create_tables(connection: sqlite3.Connection, statements: str, version: int) -> None:
    """Run the statements that make the tables of an empty file, unless another router has just
    done so. They are separated by semicolons, and have none within."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in statements.strip().rstrip(";").split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version}")


def columns_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """Return the names of a table's columns; none if it does not exist."""
    return tuple(name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})"))


class _OtherTablesError(Exception):
    """The file has the records of another version of lmx, or tables of another program."""


def _open(path: Path, kind: RecordKind) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_MS / 1000, isolation_level=None)
    try:
        # This must come first, for an empty file: later it would take a VACUUM.
        connection.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        # What is deleted is overwritten. Whether it is by default depends on how SQLite was built.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        # The order matters: another router may be making the table right now.
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and tables == 0:
            kind.create(connection)
        elif version != kind.version:
            raise _OtherTablesError(f"it has version {version}, not {kind.version}")
        elif (fault := kind.fault_of(connection)) is not None:
            raise _OtherTablesError(fault)
        kind.complete(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def durable(connection: sqlite3.Connection) -> Iterator[None]:
    """Let what is committed within the block be on the disk when its commit returns, and with it
    all that was committed before: otherwise a power cut may undo the last commits."""
    try:
        connection.execute("PRAGMA fullfsync = ON")  # macOS alone has it.
        connection.execute("PRAGMA synchronous = FULL")
        yield
    finally:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA fullfsync = OFF")


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
