"""Lists the files of models on this machine, and deletes them. It does not decide what may be
deleted: that is done in :mod:`lmx.supervisor.inventory.deletion`."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.lasting import in_daemon_thread
from lmx.supervisor.config.secret_variables import without_own_keys
from lmx.supervisor.memory.files import folder_bytes, whole_conversion
from lmx.supervisor.memory.inspection import shown

# The supervisor's log takes it, and a command's goes to stderr: its stdout may be JSON.
log = logging.getLogger(__name__)

_SCAN_S: Final = 60.0
_DELETE_S: Final = 3600.0
"""Whatever is large takes long to delete on a slow disk, and half of it deleted helps nobody."""

_scanning: Final = threading.Lock()

_MOST_LINES: Final = 20
_MOST_CHARACTERS: Final = 500

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository in the hub's cache."""

    commit: str
    refs: tuple[str, ...]
    path: Path
    missing: str | None
    """What it lacks as a model in safetensors form; None if it is complete."""
    gguf: Mapping[str, Path] = field(default_factory=dict)
    """The complete GGUF files by their names in ``path``, each with the path under which its
    conversion is kept."""

    def is_of(self, revision: str) -> bool:
        """Return whether a branch, tag or commit names this commit."""
        return revision == self.commit or revision in self.refs


@dataclass(frozen=True, slots=True)
class CachedRepo:
    """A repository in the hub's cache, complete or not."""

    repo_id: str
    path: Path
    size_bytes: int
    modified_s: float
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class Conversion:
    """A folder that lmx has made."""

    path: Path
    source: Path | None
    """The GGUF file that it was made from. None: it was made by quantizing another model."""
    size_bytes: int
    modified_s: float


async def scan_hub() -> list[CachedRepo]:
    """Return what is in the hub's cache. Raises :class:`OperationError`."""
    return [
        CachedRepo(
            repo["repo_id"],
            Path(repo["path"]),
            repo["size_bytes"],
            repo["modified_s"],
            tuple(_snapshot(each) for each in repo["snapshots"]),
        )
        for repo in await _hub_main("scan", within_s=_SCAN_S, done="read")
    ]


def _snapshot(found: dict[str, Any]) -> Snapshot:
    return Snapshot(
        found["commit"],
        tuple(found["refs"]),
        Path(found["path"]),
        found["missing"],
        {name: Path(file) for name, file in found["gguf"].items()},
    )


async def delete_from_hub(repo_id: str, commits: Sequence[str], names: Sequence[str] = ()) -> int:
    """Delete commits of a repository from the hub's cache, only the files of these ``names`` if
    there are any, or the whole repository if no commit is named. Returns the bytes that this frees
    on the disk. Raises :class:`OperationError`."""
    files = [f"--file={name}" for name in names]
    answer = await _hub_main(
        "delete", repo_id, *commits, *files, within_s=_DELETE_S, done=f"cleared of {repo_id}"
    )
    return int(answer["freed_bytes"])


async def scan_conversions(models: Path) -> list[Conversion]:
    """Return the complete folders that lmx has made of other models. Raises
    :class:`OperationError` if the disk does not answer."""
    return await _within(_SCAN_S, _conversions, models, done="read")


async def delete_folder(folder: Path) -> int:
    """Delete a folder of lmx's own. Returns the bytes that this frees on the disk, 0 if there is no
    such folder. Raises :class:`OperationError`."""
    return await _within(_DELETE_S, _delete_folder, folder, done="deleted")


async def delete_unfinished(models: Path) -> int:
    """Delete what programs that were killed have left of the folders that they made. Returns the
    bytes that this frees on the disk. Raises :class:`OperationError` if the disk does not answer.
    """
    return await _within(_DELETE_S, _delete_unfinished, models, done="cleared")


async def _within(within_s: float, work: Callable[[Path], _T], folder: Path, done: str) -> _T:
    # The folder may be a link to a disk that does not answer, which keeps a thread for as long.
    try:
        async with asyncio.timeout(within_s):
            return await in_daemon_thread(work, folder)
    except TimeoutError as error:
        raise OperationError(
            ErrorCode.INTERNAL,
            f"{folder} was not {done} within {within_s:g} s: is its disk there?",
        ) from error


def _conversions(models: Path) -> list[Conversion]:
    # One that hangs keeps one thread: those of later scans give up.
    if not _scanning.acquire(timeout=_SCAN_S):
        raise TimeoutError
    try:
        found = map(_conversion, sorted(models.glob("*")))
        return [made for made in found if made is not None]
    finally:
        _scanning.release()


def _conversion(folder: Path) -> Conversion | None:
    stamp = whole_conversion(folder)
    # What another program wrote has no source, and what it deletes meanwhile has no size.
    with contextlib.suppress(OSError, KeyError, TypeError):
        if stamp is not None:
            source = None if "bits" in stamp else Path(stamp["source"])
            return Conversion(folder, source, folder_bytes(folder), folder.stat().st_mtime)
    return None


def _delete_folder(folder: Path) -> int:
    if not folder.is_dir() or folder.is_symlink():
        return 0
    try:
        before_bytes = folder_bytes(folder)
        shutil.rmtree(folder)
    except OSError as error:
        raise OperationError(
            ErrorCode.INTERNAL, f"{error.filename or folder} can't be deleted: {error.strerror}"
        ) from error
    return before_bytes


def _delete_unfinished(models: Path) -> int:
    freed_bytes = 0
    for left in models.glob(".*.part"):
        # Whatever makes such a folder holds its lock; and what can't be deleted hinders nobody.
        with contextlib.suppress(OSError), left.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size_bytes = folder_bytes(left)
            shutil.rmtree(left)
            freed_bytes += size_bytes
    return freed_bytes


async def _hub_main(*arguments: str, within_s: float, done: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "lmx.supervisor.fetch.cache", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, start_new_session=True, env=without_own_keys(os.environ),
    )  # fmt: skip
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise OperationError(
            ErrorCode.INTERNAL,
            f"the hub's cache was not {done} within {within_s:g} s: is its disk there?",
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = err.decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(out)
    except ValueError as error:
        last = (lines or ["it said nothing"])[-1]
        raise OperationError(
            ErrorCode.INTERNAL, f"the hub's cache can't be read: {last[:_MOST_CHARACTERS]}"
        ) from error
    if isinstance(answer, dict) and "error" in answer:
        raise OperationError(ErrorCode.INTERNAL, f"the hub's cache: {answer['error']}")
    for line in lines[:_MOST_LINES]:
        log.warning("the hub's cache: %s", shown(line, _MOST_CHARACTERS))
    return answer
