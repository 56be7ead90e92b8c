"""Makes a model folder once: whole or not at all, whenever the process is killed, and by one
process at a time. Runs only inside the fetch program."""

import errno
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.quarantine_file import quarantine_file
from lmx.supervisor.fetch.progress import gb
from lmx.supervisor.memory.files import STAMP_NAME, file_sizes, read_stamp, whole_conversion
from lmx.supervisor.state.home import make_models_folder

_POLL_S: Final = 1.0
_SPARE_BYTES: Final = 1 << 28
RESULT: Final = "result"
"""The entry of a stamp that says what came out, and not what the folder was made from."""
_FILES: Final = "files"


def make_once(
    target: Path,
    stamp: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any]],
    *,
    name: str,
    on_wait: Callable[[], None],
) -> Path:
    """Return the folder ``target``, after ``make`` has made it if need be.

    A folder whose stamp and files fit is used again, whatever else people have put into it. One
    that replaces it gets that, too. ``make`` takes a path at which it makes the folder, and returns
    what is kept as its result; the folder then gets its stamp and its name. What a killed process
    left is deleted before. Two processes make it once: the second waits, and calls ``on_wait``
    every second. ``name`` is what the errors call what it is made from. Raises `OperationError`:
    `insufficient_disk`, `conversion_failed`, and what ``make`` raises.
    """
    if is_complete(target, stamp):
        return target
    folder = target.parent
    try:
        make_models_folder(folder)
        with locked(folder / f".{target.name}.lock", on_wait):
            if not is_complete(target, stamp):
                _make(target, stamp, make)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise OperationError(
                ErrorCode.CONVERSION_FAILED, f"converting {name} failed: {error}"
            ) from error
        raise OperationError(
            ErrorCode.INSUFFICIENT_DISK, f"the disk of {folder} got full: free some space there"
        ) from error
    return target


def check_room(folder: Path, what: str, needed_bytes: int) -> None:
    """Raise `OperationError` (insufficient_disk) if ``folder`` has no room for ``what``."""
    make_models_folder(folder)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + _SPARE_BYTES:
        raise OperationError(
            ErrorCode.INSUFFICIENT_DISK,
            f"{what} takes about {gb(needed_bytes)}, and {folder} has {gb(free_bytes)} free: free "
            "some space there",
        )


def is_complete(folder: Path, stamp: Mapping[str, Any]) -> bool:
    """Whether the folder was made from the stamped source, and has all its files in full size."""
    found = whole_conversion(folder) or {}
    return {entry: found[entry] for entry in found if entry not in (_FILES, RESULT)} == stamp


def _make(
    target: Path, stamp: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any]]
) -> None:
    # The lock is held, so a folder of this name is what a killed process left.
    scratch = target.parent / f".{target.name}.part"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        made = scratch / "model"
        result = make(made)
        whole = {**stamp, **({RESULT: result} if result else {}), _FILES: file_sizes(made)}
        (made / STAMP_NAME).write_text(json.dumps(whole, indent=1))
        if target.exists():
            try:
                _keep_added(target, made)
            except OSError as error:
                # What was made may have taken hours: it is used, and what was added is kept apart.
                aside = quarantine_file(target)
                sys.stderr.write(f"not all of {target} was kept, it is now {aside}: {error}\n")
            else:
                target.rename(scratch / "outdated")
            # The model's latest form is found by this time, which a copy sets to the old one's.
            os.utime(made)
        made.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _keep_added(outdated: Path, made: Path) -> None:
    """Give the folder that was made what people have added to the one that it replaces. Raises
    ``OSError`` after it has kept what it can, mostly."""
    stamp = read_stamp(outdated)
    if stamp is None:
        return

    def left_out(folder: str, names: list[str]) -> list[str]:
        place = Path(folder).relative_to(outdated)
        return [
            name
            for name in names
            if name == STAMP_NAME
            or str(place / name) in stamp[_FILES]
            or (made / place / name).is_file()
        ]

    shutil.copytree(
        *(outdated, made),
        symlinks=True,
        ignore=left_out,
        copy_function=_link,
        dirs_exist_ok=True,
    )


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # Not every file system has hard links.
        shutil.copy2(source, target)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file within the block. Every second of the wait for it is reported, since
    a fetch that says nothing for long is ended."""
    with path.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_wait()
                time.sleep(_POLL_S)
        yield
