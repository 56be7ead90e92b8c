"""Downloads one file of a repository so that the next try resumes where this one stopped, and
compares it with the hash that the hub names.

The hub client itself begins a file again in each process, and does not look at its hash. A complete
file is put where the client keeps it, so that the client then finds it there. This module runs only
inside the fetch program.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from filelock import Timeout
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import WeakFileLock, build_hf_headers

from lmx.protocol.errors import ErrorCode, OperationError

_READ_BYTES: Final = 1 << 20
# The client's own pieces of 10 MB are lost whole when a connection breaks, and make progress jump.
constants.DOWNLOAD_CHUNK_SIZE = 1 << 16
_LOCK_LOOK_S: Final = 2.0
_WAITS_S: Final = (1.0, 2.0, 4.0)
LONGEST_WAIT_S: Final = 60.0
"""If the hub asks for a longer wait than this, the download fails and names that time."""

_LATER: Final = frozenset({429, 500, 502, 503, 504})
# The client tries these again itself.
_LATER_FOR_FILES: Final = _LATER - {429}
_TRIES: Final = 3

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
    status: int | None,
    retry_after: str | None,
    wait_s: float,
    longest_wait_s: float = LONGEST_WAIT_S,
) -> float | None:
    """Return how long to wait before a request is made again; None: it is not to be. Pure.

    ``retry_after`` is the hub's own word, in seconds; one beyond ``longest_wait_s`` is not waited
    for.
    """
    if status not in _LATER:
        return None
    if retry_after is None or not retry_after.strip().isdigit():
        return wait_s
    asked_s = float(retry_after)
    return None if asked_s > longest_wait_s else max(asked_s, wait_s)


def patiently(
    ask: Callable[[], Found],
    statuses: frozenset[int] = _LATER,
    longest_wait_s: float = LONGEST_WAIT_S,
) -> Found:
    """Return what ``ask`` does; while the hub is overloaded or broken, ask again a few times."""
    for wait_s in _WAITS_S:
        try:
            return ask()
        except HfHubHTTPError as error:
            status = error.response.status_code
            asked = error.response.headers.get("retry-after")
            pause_s = wait_before_retry_s(status, asked, wait_s, longest_wait_s)
            if pause_s is None or status not in statuses:
                raise
            time.sleep(pause_s)
    return ask()


class _Part:
    """What has arrived of a file so far. The hub client writes to it, and each piece is hashed and
    counted. A part from an earlier try is taken over."""

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

    def write(self, piece: bytes) -> int:
        self._file.write(piece)
        self._hash.update(piece)
        self.size_bytes += len(piece)
        self._advanced(len(piece))
        return len(piece)

    def tell(self) -> int:
        return self.size_bytes

    def seek(self, offset: int) -> int:
        """Go back to the start, as the client does when a server sends a file again. Nothing else
        is supported."""
        assert offset == 0
        self.restart()
        return 0

    def truncate(self) -> int:
        return self.size_bytes

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
        os.fsync(self._file.fileno())
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
    and ``OperationError`` when what comes is not what the hub says, however often.
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
                patiently(lambda: _get(url, part, file), _LATER_FOR_FILES)
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
    """Let the client write what is missing. It continues by itself when a connection breaks off."""
    try:
        http_get(
            url,
            part,
            resume_size=part.size_bytes,
            headers=build_hf_headers(),
            expected_size=file.size_bytes,
        )
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
    except OSError as error:
        # Its word for another size than expected, which the part knows as well.
        if error.errno is not None:
            raise


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
