"""What is known about each download, in memory and in a file that outlives the supervisor.

:func:`requested_download` reads a question for a download into such a record.
"""

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.inventory import AddModel, DownloadView, StartDownload
from lmx.protocol.states import DownloadStatus, QuantizedBits
from lmx.protocol.wire.codec import from_map
from lmx.supervisor.config.sources import (
    FolderSource,
    GgufSource,
    HubSource,
    SourceError,
    file_model_id,
    folder_path,
    parse_file_name,
    parse_source,
    quantized_name,
)
from lmx.supervisor.state.state_file import StateFile, discard_notice

log = structlog.get_logger()

KEPT: Final = 200
UNFINISHED: Final = frozenset({DownloadStatus.STARTING, DownloadStatus.DOWNLOADING})
RESUME_HINT: Final = "ask for it again, and it resumes where it stopped"
_ID_BYTES: Final = 6


DownloadKey = tuple[str, str, str | None, QuantizedBits | None]
"""A repository, its revision, one file of it, and to how many bits it is quantized."""


@dataclass(slots=True)
class Download:
    """One download. The fields that a :class:`DownloadView` has too mean the same."""

    download_id: str
    repo_id: str
    revision: str | None
    filename: str | None
    started_s: float
    status: DownloadStatus = DownloadStatus.STARTING
    total_bytes: int | None = None
    downloaded_bytes: int = 0
    ended_s: float | None = None
    model_id: str | None = None
    error_code: ErrorCode | None = None
    error: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    path: str | None = None
    """The folder or file that was downloaded, once the download is COMPLETED."""
    goes_on: bool = False
    """Whether the supervisor has put a new program in its place that must continue with it."""
    bits: QuantizedBits | None = None
    note: str | None = None

    @property
    def key(self) -> DownloadKey:
        """What is downloaded. Two downloads with the same key are the same."""
        return (self.repo_id, self.revision or "main", self.filename, self.bits)

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file that is served as it is."""
        name = self.filename or ""
        return name.lower().endswith(".gguf") and self.bits is None

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments with which the fetch program fetches this, besides the repository."""
        revision = () if self.revision is None else (f"--revision={self.revision}",)
        filename = () if self.filename is None else (f"--filename={self.filename}",)
        bits = () if self.bits is None else (f"--bits={self.bits}",)
        return (*revision, *filename, *bits)

    @property
    def unfinished(self) -> bool:
        """Whether it runs, or waits for its turn."""
        return self.status in UNFINISHED

    def to_serve(self, path: Path) -> AddModel | None:
        """Return the question with which it is added to the models that are served, once it is at
        ``path``; None for a single file that is not a model. Pure."""
        if self.bits is not None:
            source = f"{self.repo_id}/{self.filename}" if self.filename else self.repo_id
            return AddModel(quantized_name(source, self.bits), str(path))
        if self.filename is not None:
            if not self.is_gguf:
                return None
            return AddModel(file_model_id(self.repo_id, self.filename), str(path))
        if self.revision not in (None, "main"):
            return AddModel(self.repo_id, f"{self.repo_id}@{self.revision}")
        return AddModel(self.repo_id, self.repo_id)

    def view(self, speed_bytes_per_s: float) -> DownloadView:
        """Return the download as clients see it."""
        shared = {field.name for field in fields(DownloadView)} - {"speed_bytes_per_s"}
        values = {name: getattr(self, name) for name in shared}
        return DownloadView(**values, speed_bytes_per_s=speed_bytes_per_s)


def new_download_id() -> str:
    """Return an id that no other download has."""
    return f"dl_{secrets.token_hex(_ID_BYTES)}"


def trimmed(downloads: Iterable[Download]) -> list[Download]:
    """Return the latest :data:`KEPT` downloads, in order. An unfinished one is never left out."""
    found = list(downloads)
    surplus = len(found) - KEPT
    kept = []
    for download in found:
        if surplus > 0 and not download.unfinished:
            surplus -= 1
            continue
        kept.append(download)
    return kept


class DownloadFile:
    """``state/downloads.json``: a list of downloads, the latest last."""

    def __init__(self, path: Path, notify: Callable[[str], None] = discard_notice) -> None:
        self._file = StateFile(path, _downloads, notify)

    def load(self) -> list[Download]:
        """Return the downloads, none if there is no file. A file that can't be read is set aside.

        A download that was unfinished is now INTERRUPTED, with the values and at the time of the
        last write."""
        return self._without_a_process(self._file.load() or [])

    def read(self) -> list[Download]:
        """Return the same while no supervisor runs, and leave the file as it is."""
        return self._without_a_process(self._file.peek() or [])

    def _without_a_process(self, found: list[Download]) -> list[Download]:
        try:
            written_s = self._file.path.stat().st_mtime
        except OSError:
            written_s = time.time()
        for download in found:
            if download.unfinished:
                download.status = DownloadStatus.INTERRUPTED
                download.error_code = ErrorCode.DOWNLOAD_FAILED
                download.error = f"lmx was killed, or the machine went down: {RESUME_HINT}"
                download.ended_s = written_s
        return found

    @staticmethod
    def values_of(downloads: Iterable[Download]) -> list[dict[str, Any]]:
        """Return the values that :meth:`save` writes."""
        return [asdict(download) for download in downloads]

    def save(self, values: list[dict[str, Any]]) -> None:
        """Write all records, completely or not at all. A failure is logged, and the records in
        memory stay until the supervisor ends."""
        try:
            self._file.save(values)
        except OSError as error:
            log.error("downloads.write_failed", path=str(self._file.path), error=str(error))


def _downloads(values: Any) -> list[Download]:
    if not isinstance(values, list):
        raise TypeError("it is no list")
    return [from_map(Download, each, "download") for each in values]


def requested_download(question: StartDownload) -> Download:
    """Return the download that a question asks for. It has not begun. Raises :class:`RequestError`
    (invalid_value) with the ``param`` that is wrong."""
    try:
        source = parse_source(question.repo_id)
        if question.bits is not None and not isinstance(source, HubSource):
            return _of_own_files(question.bits, source, question)
        if not isinstance(source, HubSource) or source.revision is not None:
            raise SourceError(f"{question.repo_id[:200]!r} is not a repository: write 'org/name'")
    except SourceError as error:
        raise RequestError(ErrorCode.INVALID_VALUE, str(error), param="repo_id") from error
    try:
        if question.revision is not None:
            checked = parse_source(f"{source.repo_id}@{question.revision}")
            if not isinstance(checked, HubSource):
                raise SourceError(f"the revision {question.revision!r} ends like a GGUF file")
    except SourceError as error:
        raise RequestError(ErrorCode.INVALID_VALUE, str(error), param="revision") from error
    try:
        if question.filename is not None:
            parse_file_name(question.filename)
    except SourceError as error:
        raise RequestError(ErrorCode.INVALID_VALUE, str(error), param="filename") from error
    return Download(
        new_download_id(),
        source.repo_id,
        question.revision,
        question.filename,
        time.time(),
        bits=question.bits,
    )


def _of_own_files(
    bits: QuantizedBits, source: FolderSource | GgufSource, question: StartDownload
) -> Download:
    """Return the download of what is on this machine already: it is only quantized."""
    if question.revision is not None or question.filename is not None:
        raise SourceError(f"{source.path!r} is no repository, so it has no revision and no files")
    path = str(folder_path(source.path))
    quantized_name(path, bits)  # It may have none.
    return Download(new_download_id(), path, None, None, time.time(), bits=bits)
