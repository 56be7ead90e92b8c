"""The files as the router's event loop sees them: records in a file of SQLite, which several
routers may use at once, and bytes in a folder.

A file is there once its record is committed, which comes after its bytes: kill -9 at any moment
leaves a whole file or none. What is left of one that was never whole is removed at the next start.
"""

import asyncio
import contextlib
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError
from lmx.protocol.messages.specs import FilesSpec
from lmx.router.files import batch_tables, quota, tables
from lmx.router.files.batch_tables import ENDED, BatchRow, BatchStatus, Result
from lmx.router.files.blobs import BlobWriter, Remnants, is_part, names_in
from lmx.router.files.quota import Quota
from lmx.router.files.stored_bytes import StoredBytes
from lmx.router.files.tables import FileRow, Page
from lmx.router.record_file import RecordFile, RecordKind

_GATHER_S: Final = 0.05
_MOST_UPLOADS: Final = 16
_MOST_UPLOADS_OF_ONE: Final = 8
_BATCHES_S: Final = 90 * 86_400
"""For how long the record of a batch is kept after its end: longer than its output."""

_MOST_BATCHES: Final = 100_000
_KIND: Final = RecordKind(
    "files",
    "records of files",
    ErrorCode.FILES_UNAVAILABLE,
    tables.SCHEMA_VERSION,
    tables.create,
    lambda file: tables.fault_of(file) or batch_tables.fault_of(file),
    batch_tables.create,
)

_T = TypeVar("_T")
_log = structlog.get_logger()


class Upload:
    """A file that is being received: its bytes go to the disk as they come."""

    def __init__(self, writer: BlobWriter) -> None:
        self.size_bytes = 0
        self.writer = writer
        self.room: tuple[int, RequestError] | None = None
        """The bytes that it may have, and what :meth:`write` raises beyond them. None: the room is
        looked for once it is whole."""

    async def write(self, piece: bytes) -> None:
        """Write more. Raises INSUFFICIENT_DISK."""
        self.size_bytes += len(piece)
        if self.room is not None and max(self.size_bytes, quota.LEAST_BYTES) > self.room[0]:
            raise self.room[1]
        await _on_disk(lambda: self.writer.write(piece))


_Results = dict[tuple[str, int], Result]


class FileStore(RecordFile[_Results]):
    """All files, and the batches that read and make them.

    Only the results of lines are collected: any other change is committed when its method returns.
    """

    def __init__(self, path: Path, spec: FilesSpec) -> None:
        super().__init__(path, _KIND, _GATHER_S)
        self.folder = Path(spec.folder)
        """Where the bytes are."""
        self.quota = Quota(spec.max_key_bytes, spec.max_bytes)
        self._uploads: list[str] = []
        """Of whom a file is being received."""
        self.changed = asyncio.Event()
        """Set when there is something to do for a batch."""
        self._results: _Results = {}
        """The condition of the file guards it: the loop and the thread share it."""

    def path(self, row: FileRow) -> Path:
        """Return where the bytes of a file are."""
        return self.folder / row.id

    @contextlib.asynccontextmanager
    async def receive(self, requester: str) -> AsyncIterator[tuple[str, Upload]]:
        """Give the id of a new file, and what its bytes are written to. Unless :meth:`add` was
        called before the end of the block, nothing is left. Raises QUEUE_FULL while too many files
        are being received."""
        own = self._uploads.count(requester)
        if len(self._uploads) >= _MOST_UPLOADS or own >= _MOST_UPLOADS_OF_ONE:
            count = own if own >= _MOST_UPLOADS_OF_ONE else len(self._uploads)
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"{count} files are being uploaded, as many as may at a time: try again when one "
                "of them is here.",
                retry_after_s=5.0,
            )
        self._uploads.append(requester)
        try:
            file_id = f"file-{secrets.token_hex(12)}"
            async with self.writing(file_id) as writer:
                yield file_id, Upload(writer)
        finally:
            self._uploads.remove(requester)

    @contextlib.asynccontextmanager
    async def writing(self, name: str) -> AsyncIterator[BlobWriter]:
        """Give what writes bytes of this name. Unless it committed their record before the end of
        the block, nothing is left. Raises INSUFFICIENT_DISK."""
        writer = await _on_disk(lambda: BlobWriter(self.folder, name))
        try:
            yield writer
        finally:
            # It may have megabytes to let go.
            await asyncio.shield(asyncio.to_thread(writer.__exit__, None, None, None))

    async def limit(self, upload: Upload, owner: str | None) -> None:
        """Let an upload be refused with its first bytes for which its owner has no room."""
        left_bytes, limit = await self._read(lambda file: quota.left(file, owner, self.quota))
        upload.room = left_bytes, self.no_room(limit, "file")

    async def add(self, row: FileRow, upload: Upload) -> None:
        """Keep a file that was received whole. Raises REQUEST_TOO_LARGE if the files of its owner,
        or of all, would take too much."""
        exceeded: int | None = None

        def record(records: sqlite3.Connection) -> None:
            def committed() -> bool:
                nonlocal exceeded
                exceeded = tables.add(records, row, self.quota)
                return exceeded is None

            upload.writer.commit(committed)

        await _on_disk(upload.writer.sync)
        await self._read(record)
        if exceeded is not None:
            raise self.no_room(exceeded, "file")

    def no_room(self, limit_bytes: int, param: str) -> RequestError:
        """Return the error for what would exceed a limit of what files take."""
        whose, key = (
            ("all files together", "max_bytes")
            if limit_bytes == self.quota.all_bytes
            else ("the files of a key together", "max_key_bytes")
        )
        return RequestError(
            ErrorCode.REQUEST_TOO_LARGE,
            f"You exceeded your file storage quota: {whose} may take {limit_bytes} bytes "
            f"(files.{key}), with the inputs and results of batches under way. Delete some with "
            "DELETE /v1/files/ID.",
            param=param,
        )

    async def get(self, file_id: str, owner: str | None) -> FileRow | None:
        """Return a file's record; None if there is none, or it is of another owner. Raises
        FILES_UNAVAILABLE, as the other methods do."""
        return await self._read(lambda records: tables.get(records, file_id, owner, time.time()))

    async def listed(self, page: Page) -> tuple[list[FileRow], bool] | None:
        """Return records, and whether more follow; None if there is no record ``page.after``."""
        return await self._read(lambda records: tables.listed(records, page, time.time()))

    async def delete(self, row: FileRow) -> None:
        """Remove a file."""
        await self._read(lambda records: tables.remove(records, [row.id]))
        await _on_disk(lambda: self.path(row).unlink(missing_ok=True))

    async def open(self, row: FileRow) -> BinaryIO | None:
        """Return a file's bytes, to be read and closed; None if they are gone."""
        try:
            return await asyncio.to_thread(self.path(row).open, "rb")
        except FileNotFoundError:
            return None

    async def hold(self, row: FileRow) -> StoredBytes | None:
        """Return a file's bytes, which stay readable though the file is deleted; None if they are
        gone."""
        try:
            return await asyncio.to_thread(StoredBytes, self.path(row), row.bytes)
        except FileNotFoundError:
            return None

    async def sweep(self) -> None:
        """Remove the files whose time is over, and what is left of those that were never whole."""
        gone = await self._read(lambda records: tables.expired(records, time.time()))
        await self._read(lambda records: tables.remove(records, gone))
        oldest_s = time.time() - _BATCHES_S
        await self._read(lambda records: batch_tables.forget_old(records, oldest_s, _MOST_BATCHES))
        # A name without a record is a remnant, or is being written. Of those that no writer holds
        # the records are read once more: a writer lets go of its file after it has one.
        names = await asyncio.to_thread(names_in, self.folder)
        known = await self._read(_known)
        unknown = [name for name in names if name not in known]
        if not unknown:
            return
        with await asyncio.to_thread(Remnants, self.folder, unknown) as remnants:
            known = await self._read(_known)
            known |= await asyncio.to_thread(self._of_set_aside, unknown)
            removed = await asyncio.to_thread(remnants.remove, known)
        if removed:
            _log.info("files.swept", expired=len(gone), removed=removed)

    def _of_set_aside(self, names: Iterable[str]) -> set[str]:
        """Return those of some names that were written before records were set aside: theirs may be
        among these, which can still be recovered. They are kept for as long as these are."""
        set_aside = self._path.parent.glob(f"{self._path.name}.damaged*")
        until_s = max((one.stat().st_ctime for one in set_aside), default=None)
        if until_s is None:
            return set()
        kept = set()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if (self.folder / name).stat().st_mtime <= until_s and not is_part(name):
                    kept.add(name)
        return kept

    async def perform(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return what ``work`` gives, which reads the records or commits a change of them. It must
        take less than seconds. Raises FILES_UNAVAILABLE."""
        return await self._read(work)

    async def forget_lines(self, batch_id: str) -> None:
        """Remove all lines of a batch and their results, some at a time. Raises
        FILES_UNAVAILABLE."""
        while await self._read(lambda records: batch_tables.forget_lines(records, batch_id)):
            pass

    async def cancel_batch(self, batch_id: str) -> BatchRow | None:
        """Let a batch be cancelled, and return it as it is then; None if it does not exist. One
        that is finalizing, or has ended, ends as it was to. Raises FILES_UNAVAILABLE."""
        row = await self._read(lambda records: batch_tables.cancel(records, batch_id, time.time()))
        self.changed.set()
        return row

    async def full(self, owners: Iterable[str | None]) -> frozenset[str | None]:
        """Return those of these owners who have no room for more results."""
        return await self._read(lambda records: quota.full(records, owners, self.quota))

    def put_result(self, batch_id: str, number: int, result: Result) -> None:
        """Write what became of a line, soon. Never waits and never raises; what the disk does not
        take is kept, and tried again."""
        with self._changed:
            if not self._results:
                self._changed.notify()
            self._results.setdefault((batch_id, number), result)

    @property
    def unwritten(self) -> int:
        """How many results wait to be written."""
        return len(self._results)

    def _waiting(self) -> int:
        return len(self._results)

    def _take(self) -> _Results:
        taken, self._results = self._results, {}
        return taken

    def _put_back(self, batch: _Results) -> None:
        self._results = batch | self._results

    def _write(self, connection: sqlite3.Connection, batch: _Results) -> None:
        batch_tables.write_results(connection, batch)

    def _lose(self, batch: _Results) -> None:
        _log.error("batches.results_lost", lines=len(batch))


async def _on_disk(work: Callable[[], _T]) -> _T:
    """Return what ``work`` gives, which runs in a thread. Raises INSUFFICIENT_DISK for an error of
    the disk."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise LmxError(
            ErrorCode.INSUFFICIENT_DISK,
            f"The file can't be written: {error.strerror or error}. An operator must look at the "
            "disk that lmx's home folder is on.",
        ) from error


def check_cancelling(row: BatchRow) -> None:
    """Raise BATCH_ENDED for a batch that was to be cancelled, and is not."""
    if row.status in ENDED or row.end != BatchStatus.CANCELLED:
        raise RequestError(
            ErrorCode.BATCH_ENDED, f"Cannot cancel a batch with status '{row.status}'."
        )


def input_name(batch_id: str) -> str:
    """Return the name of the bytes of a batch's input, which are there until it has ended."""
    return batch_id.replace("batch_", "input-", 1)


def _known(records: sqlite3.Connection) -> set[str]:
    """Return the names of all bytes that are still needed."""
    inputs = {input_name(row.id) for row in batch_tables.under_way(records)}
    return tables.all_ids(records) | inputs
