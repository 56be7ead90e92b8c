"""The downloads that somebody requested. Each has an id, runs in a process of its own, and
continues where it stopped when it is requested again.

:func:`note_bytes` and :func:`bytes_per_s` compute the speed over the last seconds.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, UnavailableError
from lmx.protocol.host.lasting import begin
from lmx.protocol.messages.inventory import Downloads as DownloadList
from lmx.protocol.messages.inventory import DownloadView, StartDownload
from lmx.protocol.states import DownloadStatus
from lmx.supervisor.decisions.slots.transitions import files_leaving_error
from lmx.supervisor.events import Events
from lmx.supervisor.inventory.download_records import (
    RESUME_HINT,
    Download,
    DownloadFile,
    DownloadKey,
    requested_download,
    trimmed,
)
from lmx.supervisor.inventory.on_disk import DeletionPlan
from lmx.supervisor.processes.fetching import Fetch, FetchRuns
from lmx.supervisor.processes.patience import done_within

WINDOW_S: Final = 5.0


def note_bytes(samples: deque[tuple[float, int]], now_s: float, done_bytes: int) -> None:
    """Add a sample: how much is there now. Samples that are older than the window are dropped,
    except the last of them. When a download begins a file again, its bytes become fewer, and its
    speed counts from there."""
    if samples and done_bytes < samples[-1][1]:
        samples.clear()
    samples.append((now_s, done_bytes))
    while len(samples) > 2 and samples[1][0] <= now_s - WINDOW_S:
        samples.popleft()


def bytes_per_s(samples: deque[tuple[float, int]], now_s: float) -> float:
    """Return the speed within the window that ends now, 0 if nothing arrived within it."""
    if len(samples) < 2 or samples[-1][0] <= now_s - WINDOW_S:
        return 0.0
    since_s, before_bytes = samples[0]
    took_s = max(now_s, samples[-1][0]) - since_s
    return (samples[-1][1] - before_bytes) / took_s if took_s > 0 else 0.0


AT_ONCE: Final = 4
MOST_UNFINISHED: Final = 64
_SIZE_S: Final = 10.0
"""How long a client that starts a download waits for its size. Time in which lmx's processes
wait for a processor does not count."""

_LONGEST_SIZE_S: Final = 50.0
"""Clients wait a minute for the answer."""

_HUB_WAIT_S: Final = 2.0
"""When the hub refuses requests (429), the download waits no longer than this, three times. Then it
fails, so that the client, which still waits for its start, gets the time that the hub named."""

_SAVE_INTERVAL_S: Final = 1.0
"""The progress of a download is written this often. A supervisor that is killed loses no more."""

_BUSY_RETRY_S: Final = 60.0


class Downloads:
    """The owner of the downloads, in memory and in their file. Only the thread of the supervisor's
    event loop uses it.

    ``serve(download, path)`` lets a downloaded model be served and returns its id, or None if the
    file is not a model. If it raises an :class:`LmxError`, the download shows that error.
    ``is_whole(path)`` returns whether a file that was downloaded is still there.
    """

    def __init__(
        self,
        file: DownloadFile,
        runs: FetchRuns,
        serve: Callable[[Download, Path], Awaitable[str | None]],
        is_whole: Callable[[Path], Awaitable[bool]],
        events: Events,
    ) -> None:
        self._file = file
        self._runs = runs
        self._serve = serve
        self._is_whole = is_whole
        self._events = events
        self._all: dict[str, Download] = {each.download_id: each for each in file.load()}
        for download in self._all.values():
            if download.goes_on:
                # It has not ended, and begins again with :meth:`resume`.
                download.status = DownloadStatus.STARTING
                download.ended_s = download.error = download.error_code = None
        self._deletions: Counter[str] = Counter()
        """How many deletions of files each repository has at the moment."""
        self._samples: dict[str, deque[tuple[float, int]]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._changed = asyncio.Event()
        self._unsaved = False
        self._saved_s = 0.0
        self._saving: asyncio.Task[None] | None = None
        self._closing = False

    def resume(self) -> None:
        """Resume the downloads that the program before this one handed over."""
        for download in self._all.values():
            if download.goes_on:
                download.goes_on = False
                self._begin(download)

    async def start(self, question: StartDownload) -> DownloadView:
        """Begin a download, or continue with it. The hub is asked what has changed in a repository
        that has come, but not in a GGUF file: that is served from its commit. Returns the download
        when its size is known, when it has ended, or when ten seconds are over. Raises
        :class:`LmxError`: INVALID_VALUE with its ``param``, QUEUE_FULL, SHUTTING_DOWN,
        MODEL_UNLOADED while the repository's files are deleted."""
        wanted = requested_download(question)
        self._refuse_deleted(wanted.repo_id)
        download = self._latest(wanted.key)
        completed = download is not None and download.status is DownloadStatus.COMPLETED
        if download is not None and completed and download.is_gguf:
            assert download.path is not None
            path = Path(download.path)
            is_whole = await self._is_whole(path)
            # A deletion may have begun meanwhile.
            self._refuse_deleted(wanted.repo_id)
            if is_whole:
                # It is served already, unless it was removed since or its name was taken.
                download.model_id, download.error = await self._served(download, path)
                return self._view(download)
            # Another client may have begun it meanwhile.
            download = self._latest(wanted.key)
        if download is None or not download.unfinished:
            self._refuse_more()
            if download is None:
                download = wanted
                self._all[wanted.download_id] = wanted
                self._all = {each.download_id: each for each in trimmed(self._all.values())}
            self._begin(download)
        await self._until_size_known(download)
        return self._view(download)

    async def cancel(self, download_id: str) -> DownloadView:
        """Cancel a download, and return it when its process is gone. What has arrived stays. A
        download that has ended stays as it is. Raises :class:`LmxError` (not_found_error)."""
        download = self._get(download_id)
        if download.unfinished or download.status is DownloadStatus.INTERRUPTED:
            download.error_code, download.goes_on = None, False
            self._end(download, DownloadStatus.CANCELLED, "it was cancelled")
            self._runs.stop(download_id)
            await self._runs.wait_stopped(download_id)
        return self._view(download)

    async def completed_elsewhere(self, repo_id: str, revision: str | None, path: Path) -> None:
        """Take the news that a model's load has fetched a whole repository. A download of the same
        repository that had failed, or had been cancelled, is complete by that."""
        download = self._latest((repo_id, revision or "main", None, None))
        if download is None or download.unfinished:
            return
        if download.status is not DownloadStatus.COMPLETED:
            model_id, error = await self._served(download, path)
            if not download.unfinished:  # else it was begun again meanwhile, and has its own end
                self._came(download, path, model_id, error)

    def list(self, download_id: str | None = None) -> DownloadList:
        """Return the downloads, the latest first. Raises :class:`LmxError` (not_found_error)."""
        if download_id is not None:
            return DownloadList((self._view(self._get(download_id)),))
        return DownloadList(tuple(self._view(each) for each in reversed(self._all.values())))

    async def wait_stopped(self) -> None:
        """Return when the processes of all fetches that were cancelled or given up are gone, or
        should be gone: until then they may write files."""
        await self._runs.wait_all_stopped()

    def of(self, repo_id: str) -> tuple[Download, ...]:
        """Return the downloads of a repository, the latest last."""
        return tuple(each for each in self._all.values() if each.repo_id == repo_id)

    @contextmanager
    def deleting(self, repo_id: str) -> Iterator[None]:
        """Begin no download of a repository while its files are deleted."""
        self._deletions[repo_id] += 1
        try:
            yield
        finally:
            self._deletions[repo_id] -= 1

    def forget(self, gone: DeletionPlan) -> None:
        """Forget the ended downloads whose files were deleted."""
        self._all = {
            name: each
            for name, each in self._all.items()
            if each.unfinished or not gone.includes(each)
        }
        self._save()

    async def close(self, *, resume: bool) -> None:
        """End all downloads and the fetches of loads, and wait until their processes are gone.
        ``resume`` means that the next program of this supervisor will continue with the
        downloads."""
        self._closing = True
        for download in self._all.values():
            if not download.unfinished:
                continue
            download.goes_on = resume
            if resume:
                self._save()  # It has not ended: whoever waits for its end continues to wait.
            else:
                download.error_code = ErrorCode.DOWNLOAD_FAILED
                self._end(download, DownloadStatus.INTERRUPTED, f"lmx went down: {RESUME_HINT}")
        await self._runs.close()
        if self._saving is not None:
            await self._saving

    def _latest(self, key: DownloadKey) -> Download | None:
        return next((each for each in reversed(self._all.values()) if each.key == key), None)

    def _get(self, download_id: str) -> Download:
        download = self._all.get(download_id)
        if download is None:
            raise OperationError(
                ErrorCode.NOT_FOUND,
                f"there is no download {download_id!r}: see `lmx downloads`",
                param="download_id",
            )
        return download

    def _refuse_deleted(self, repo_id: str) -> None:
        if self._deletions[repo_id]:
            raise files_leaving_error(repo_id)

    def _refuse_more(self) -> None:
        if self._closing:
            raise UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")
        if sum(each.unfinished for each in self._all.values()) >= MOST_UNFINISHED:
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"{MOST_UNFINISHED} downloads are unfinished: cancel one, or try again later",
                retry_after_s=_BUSY_RETRY_S,
            )

    def _begin(self, download: Download) -> None:
        download.status = DownloadStatus.STARTING
        download.ended_s = download.error = download.error_code = download.model_id = None
        download.param = download.retry_after_s = download.note = None
        download.started_s = time.time()
        self._samples[download.download_id] = deque()
        self._runs.start(download.download_id, self._fetch(download), self._places)
        self._note("download.started", download, "")

    def _fetch(self, download: Download) -> Fetch:
        return Fetch(
            download.repo_id,
            (f"--longest-wait-s={_HUB_WAIT_S:g}", *download.options),
            partial(self._advanced, download),
            partial(self._ended, download),
            partial(self._broke, download),
        )

    async def _ended(self, download: Download, outcome: Path | LmxError) -> None:
        if not download.unfinished:
            return  # it was cancelled as it ended
        if isinstance(outcome, LmxError):
            download.error_code, download.param = outcome.code, outcome.param
            download.retry_after_s = outcome.retry_after_s
            self._end(download, DownloadStatus.FAILED, outcome.message)
            return
        self._came(download, outcome, *await self._served(download, outcome))

    async def _broke(self, download: Download, error: Exception) -> None:
        if download.unfinished:
            download.error_code = ErrorCode.INTERNAL
            self._end(download, DownloadStatus.FAILED, f"the download broke: {error}")

    def _came(
        self, download: Download, path: Path, model_id: str | None, error: str | None
    ) -> None:
        download.path, download.model_id = str(path), model_id
        if download.total_bytes is not None:
            download.downloaded_bytes = download.total_bytes
        download.error_code = download.param = download.retry_after_s = None
        self._end(download, DownloadStatus.COMPLETED, error or "")

    async def _served(self, download: Download, path: Path) -> tuple[str | None, str | None]:
        """Have a model served. Returns its id, or why it is not. The download stays as it is
        meanwhile: others look at it."""
        try:
            return await self._serve(download, path), None
        except LmxError as error:
            return None, f"downloaded, but not served: {error.message}"

    def _advanced(self, download: Download, report: dict[str, Any]) -> None:
        if not download.unfinished or "total_bytes" not in report:
            return
        download.total_bytes = int(report["total_bytes"])
        download.downloaded_bytes = int(report["done_bytes"])
        if download.bits is not None and report["phase"] != "download":
            download.note = report["detail"]
        note_bytes(self._samples[download.download_id], time.monotonic(), download.downloaded_bytes)
        begun = download.status is DownloadStatus.STARTING
        download.status = DownloadStatus.DOWNLOADING
        if begun or time.monotonic() - self._saved_s > _SAVE_INTERVAL_S:
            self._save()

    def _end(self, download: Download, status: DownloadStatus, error: str) -> None:
        download.status = status
        download.error = error or None
        download.ended_s = time.time()
        self._samples.pop(download.download_id, None)
        self._note(f"download.{status}", download, error)

    def _note(self, event: str, download: Download, detail: str) -> None:
        self._events.note(
            event,
            download.model_id,
            detail or download.repo_id,
            download_id=download.download_id,
            repo_id=download.repo_id,
            downloaded_bytes=download.downloaded_bytes,
        )
        self._save()

    async def _until_size_known(self, download: Download) -> None:
        """Wait until the size of a download is known, or it has ended, or the time is over."""

        async def size_known() -> None:
            while download.status is DownloadStatus.STARTING:
                self._changed.clear()
                await self._changed.wait()

        waiting = asyncio.create_task(size_known())
        try:
            await done_within(waiting, _SIZE_S, _LONGEST_SIZE_S, os.getpid())
        finally:
            waiting.cancel()

    def _view(self, download: Download) -> DownloadView:
        samples = self._samples.get(download.download_id, deque())
        return download.view(round(bytes_per_s(samples, time.monotonic()), 1))

    def _save(self) -> None:
        """Let a thread write the file. What changes during the write is written after it."""
        self._changed.set()
        self._saved_s = time.monotonic()
        self._unsaved = True
        if self._saving is None or self._saving.done():
            self._saving = begin(self._write(), "the writing of the downloads")

    async def _write(self) -> None:
        while self._unsaved:
            self._unsaved = False
            values = self._file.values_of(self._all.values())
            await asyncio.to_thread(self._file.save, values)
