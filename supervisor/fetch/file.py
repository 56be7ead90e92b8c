"""Downloads one file of a repository so that the next try resumes where this one stopped, and
compares it with the hash that the hub names.

The hub client itself begins a file again in each process, and does not look at its hash. A complete
file is put where the client keeps it, so that the client then finds it there. This module runs only
inside the fetch program.
"""

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from filelock import Timeout
from httpx2 import TransportError
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import (
    WeakFileLock,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.disk_sync import sync
from lmx.supervisor.fetch.errors import requested_wait_s

_READ_BYTES: Final = 1 << 20
SPARE_BYTES: Final = 1 << 30
"""Left free on the disk, whatever else is downloaded to it at the same time."""

_DISK_LOOK_BYTES: Final = 1 << 24
# What has come of a piece is lost when a connection breaks.
_PIECE_BYTES: Final = 1 << 16
_LOCK_LOOK_S: Final = 2.0
_WAITS_S: Final = (1.0, 2.0, 4.0)
LONGEST_WAIT_S: Final = 60.0
"""If the hub asks for a longer wait than this, the download fails and names that time."""

_LATER: Final = frozenset({408, 429, 500, 502, 503, 504})
_TRIES: Final = 3
_CONNECTIONS: Final = 6
"""So many in a row may bring nothing more of a file."""

_RECONNECT_S: Final = 1.0

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub lists it. ``digest`` names its content: SHA-256 of a large file, git's
    SHA-1 of another. The client's cache goes by it too."""

    name: str
    size_bytes: int
    digest: str

    def hasher(self) -> Any:
        """Return a hash that gives :attr:`digest` when fed the content."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        # Git's own naming of content, not a safeguard.
        return hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)


def wait_before_retry_s(
    status: int, requested_s: int | None, wait_s: float, longest_wait_s: float
) -> float | None:
    """Return how long to wait before a request is made again; None: it is not to be. Pure.

    ``requested_s`` is what the hub asks for; more than ``longest_wait_s`` is not waited for.
    """
    if status not in _LATER:
        return None
    if requested_s is None:
        return wait_s
    return None if requested_s > longest_wait_s else max(requested_s, wait_s)


def patiently(ask: Callable[[], Found], longest_wait_s: float = LONGEST_WAIT_S) -> Found:
    """Return what ``ask`` does; while the hub is overloaded or broken, ask again a few times."""
    for wait_s in _WAITS_S:
        try:
            return ask()
        except HfHubHTTPError as error:
            response = error.response
            pause_s = wait_before_retry_s(
                response.status_code, requested_wait_s(response.headers), wait_s, longest_wait_s
            )
            if pause_s is None:
                raise
            time.sleep(pause_s)
    return ask()


class _Part:
    """What has arrived of a file so far. Each piece is hashed and counted. A part from an earlier
    try is taken over."""

    def __init__(self, path: Path, file: HubFile, advanced: Callable[[int], None]) -> None:
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._hub_file = file
        self._advanced = advanced
        self.size_bytes = 0
        self._hash = file.hasher()
        while piece := self._file.read(_READ_BYTES):
            self._hash.update(piece)
            self.size_bytes += len(piece)
            # It may take longer than a fetch may be silent.
            advanced(len(piece))
        if self.size_bytes > file.size_bytes:
            self.restart()

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hash.update(piece)
        looks = self.size_bytes // _DISK_LOOK_BYTES
        self.size_bytes += len(piece)
        self._advanced(len(piece))
        if self.size_bytes // _DISK_LOOK_BYTES > looks:
            path = self._file.name
            if shutil.disk_usage(path).free < SPARE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._advanced(-self.size_bytes)
        self.size_bytes = 0
        self._hash = self._hub_file.hasher()

    @property
    def is_right(self) -> bool:
        """Whether it is the file that was requested."""
        file = self._hub_file
        return self.size_bytes == file.size_bytes and self._hash.hexdigest() == file.digest

    def close(self) -> None:
        """Write the part to the disk, so that it is there whatever happens to the machine next."""
        self._file.flush()
        sync(self._file.fileno())
        self._file.close()


def part_of(blob: Path) -> Path:
    """Return where an unfinished file lies. The hub's tools know such names as unfinished."""
    return blob.with_name(f"{blob.name}.lmx.incomplete")


def fetch_file(
    url: str, file: HubFile, blob: Path, lock: Path, advanced: Callable[[int], None]
) -> None:
    """Download a file to ``blob``, after what came of it earlier. ``advanced(bytes)`` is called
    with each piece, of that earlier part too, and less than 0 where one is thrown away.

    Another process that downloads the same file is waited for. Raises what the hub client does,
    ``OSError`` when the disk gets full, and ``OperationError`` when what comes is not what the hub
    says, however often.
    """
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with _locked(lock, lambda: advanced(0)):
        if blob.exists():
            advanced(file.size_bytes)
            return
        part = _Part(part_of(blob), file, advanced)
        try:
            for _ in range(_TRIES):
                patiently(lambda: _get(url, part, file))
                if part.is_right:
                    break
                if part.size_bytes >= file.size_bytes:
                    part.restart()
            else:
                raise OperationError(
                    ErrorCode.DOWNLOAD_FAILED,
                    f"what comes of {file.name} is not what the hub says that it is (its size or "
                    "its hash differs): something on the way changes it; check proxies and "
                    "HF_ENDPOINT, then try again",
                )
        finally:
            part.close()
        part_of(blob).replace(blob)


def _get(url: str, part: _Part, file: HubFile) -> None:
    """Add what is missing. A connection that breaks off is made again, as long as each few of them
    bring more of the file."""
    left, most_bytes = _CONNECTIONS, part.size_bytes
    while part.size_bytes < file.size_bytes:
        try:
            _read_rest(url, part, file)
            return
        except TransportError:
            left = _CONNECTIONS if part.size_bytes > most_bytes else left - 1
            if left == 0:
                raise
            most_bytes = max(most_bytes, part.size_bytes)
            time.sleep(_RECONNECT_S)


def _read_rest(url: str, part: _Part, file: HubFile) -> None:
    # What is packed on the way has other bytes, so that it could not be resumed.
    headers = {**build_hf_headers(), "accept-encoding": "identity"}
    if part.size_bytes:
        headers["Range"] = f"bytes={part.size_bytes}-"
    timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout_s) as response:
        try:
            hf_raise_for_status(response)
        except RepositoryNotFoundError:
            raise
        except HfHubHTTPError as error:
            if error.response.status_code != HTTPStatus.NOT_FOUND:
                raise
            raise OperationError(
                ErrorCode.DOWNLOAD_FAILED,
                f"the hub lists {file.name}, but does not have it (404): try again later, or tell "
                "those who keep the repository",
            ) from error
        if part.size_bytes and response.status_code != HTTPStatus.PARTIAL_CONTENT:
            # The whole file comes again.
            part.restart()
        for piece in response.iter_bytes(_PIECE_BYTES):
            part.write(piece)
            if part.size_bytes > file.size_bytes:
                return


@contextmanager
def _locked(lock: Path, waiting: Callable[[], None]) -> Iterator[None]:
    while True:
        held = WeakFileLock(lock, timeout=_LOCK_LOOK_S)
        try:
            held.__enter__()
            break
        except Timeout:
            waiting()
    try:
        yield
    finally:
        held.__exit__(None, None, None)
