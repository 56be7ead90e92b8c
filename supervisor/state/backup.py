"""Backups: one file with what a home has that can't be got again, and its way back.

The file is a zip archive with ``manifest.json`` and the files of :data:`FILES`. An archive may come
from anywhere: nothing in it is extracted by its own name, and every size has a limit.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.disk_sync import sync
from lmx.protocol.host.regular_file import read_regular
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records, SupervisorLock
from lmx.supervisor.state.state_file import discard_notice

FORMAT: Final = 1
"""Raise it when an older lmx must not read what a newer one writes."""

_MIB: Final = 1024**2
FILES: Final[Mapping[str, int]] = {
    "lmx.yaml": 16 * _MIB,
    "admin.key": _MIB,
    "state/keys.json": 64 * _MIB,
    "state/peers.json": 64 * _MIB,
    "state/certificate.pem": _MIB,
    "state/models.json": 64 * _MIB,
    "state/pins.json": 64 * _MIB,
    "state/held.json": 64 * _MIB,
    "state/usage.sqlite": 2047 * _MIB,
}
"""What is in a backup, by its path below the home, and the most bytes of each."""

_CONFIG: Final = "lmx.yaml"
_DATABASE: Final = "state/usage.sqlite"
_MANIFEST: Final = "manifest.json"
_MANIFEST_BYTES: Final = 64 * 1024
_DIRECTORY_BYTES: Final = 64 * 1024
_STEP_BYTES: Final = _MIB
_BUSY_S: Final = 10.0
_SQLITE_FILES: Final = ("", "-wal", "-shm", "-journal")

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive says of itself."""

    version: str
    """The lmx that wrote it."""
    created: str
    """When, in UTC."""
    sums: Mapping[str, str]
    """The SHA-256 of each file, by its path below the home."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    manifest: Manifest
    kept: Path | None
    """The folder of the files that were there before; None if there were none."""


def default_name(now_s: float) -> str:
    """Return the name of a backup that is made now."""
    return time.strftime("lmx-backup-%Y%m%d-%H%M%S.zip", time.localtime(now_s))


def write_backup(
    home: Home, config: Path | None, target: Path, version: str, notify: Notify
) -> list[str]:
    """Write a backup, which only its owner can read, and return the names of what is in it. lmx may
    run meanwhile. ``config`` is the file of the configuration, wherever it is. ``notify`` is called
    with what can't be part of it.

    Raises :class:`OperationError` if the target is there already or there is nothing to keep,
    ``OSError`` if it can't be written.
    """
    try:
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise _refused(f"{target} is there already: choose another name") from error
    try:
        with open(descriptor, "w+b") as file:  # noqa: PTH123  of a descriptor, with its mode
            names = _write(home, config, file, target, version, notify)
            file.flush()
            sync(file.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return names


def _write(
    home: Home, config: Path | None, file: BinaryIO, target: Path, version: str, notify: Notify
) -> list[str]:
    sums: dict[str, str] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, most_bytes in FILES.items():
            path = config if name == _CONFIG else home.path / name
            if path is None or not os.path.lexists(path):
                continue
            with contextlib.ExitStack() as opened:
                try:
                    if name == _DATABASE:
                        copy = opened.enter_context(_copied_database(path, target))
                        content: BinaryIO = opened.enter_context(copy.open("rb"))
                    else:
                        content = BytesIO(read_regular(path, most_bytes))
                except (OSError, sqlite3.Error) as error:
                    notify(f"{path} can't be read, and is not part of the backup: {error}")
                    continue
                sums[name] = _add(archive, name, content)
        if not sums:
            raise _refused(f"{home.path} has nothing that a backup would keep")
        about = {
            "format": FORMAT,
            "lmx": version,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": sums,
        }
        _add(archive, _MANIFEST, BytesIO(json.dumps(about, indent=2).encode()))
    return list(sums)


def _add(archive: zipfile.ZipFile, name: str, content: BinaryIO) -> str:
    """Add a file, and return its SHA-256."""
    info = zipfile.ZipInfo(name, time.localtime()[:6])
    info.external_attr = (stat.S_IFREG | 0o600) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    sum_ = hashlib.sha256()
    with archive.open(info, "w") as member:
        while piece := content.read(_STEP_BYTES):
            sum_.update(piece)
            member.write(piece)
    return sum_.hexdigest()


@contextlib.contextmanager
def _copied_database(path: Path, target: Path) -> Iterator[Path]:
    """Copy a database that routers may be writing to, next to the backup."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    copy = folder / path.name
    try:
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as one,
            closing(sqlite3.connect(copy)) as other,
        ):
            one.backup(other)
            # In one file: what is in its journal would be lost.
            other.execute("PRAGMA journal_mode=DELETE")
        if copy.stat().st_size > FILES[_DATABASE]:
            raise sqlite3.DataError(f"it has more than {FILES[_DATABASE]} bytes")
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restore_backup(
    home: Home, source: Path, now_s: float, notify: Callable[[str], None] = discard_notice
) -> Restored:
    """Put the files of a backup into a home. The home is then as it was, but for what a backup does
    not hold. Every file of :data:`FILES` that was there is kept in a folder, also those that the
    backup lacks.

    The lock of the supervisor is held until this process ends. Raises :class:`OperationError` if
    lmx runs with this home, and when the archive is not a whole backup that this lmx can read; then
    nothing has changed. Raises ``OSError`` if a file can't be written; what was there is put back.
    """
    with _opened(source) as archive:
        manifest = _manifest(archive, source)
        home.prepare()
        SupervisorLock(home.lock, notify).acquire(by_command=True)
        if left := Records(home.state).orphans():
            pids = ", ".join(str(each.pid) for each in left)
            raise OperationError(
                ErrorCode.ALREADY_RUNNING,
                f"processes of lmx still run with {home.path} (pids {pids}): `lmx stop` ends them",
            )
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
        staging, kept = home.path / f".restore-{stamp}", home.path / f"before-restore-{stamp}"
        _make(staging, "state")
        try:
            for name in manifest.sums:
                _extract(archive, name, staging / name, manifest, source)
            _exchange(home.path, staging, kept)
        finally:
            _remove(staging)
    return Restored(manifest, kept if kept.exists() else None)


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with source.open("rb") as file:
            _check_directory(file, source)
            with zipfile.ZipFile(file) as archive:
                yield archive
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, UnicodeDecodeError) as error:
        raise _refused(f"{source} is not a whole backup of lmx: {error}") from error


def _check_directory(file: BinaryIO, source: Path) -> None:
    """Refuse an archive whose directory is large: reading it would take memory without a limit."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - 42))
    tail = file.read(42)
    if tail[-22:-18] != b"PK\x05\x06" or tail[-42:-38] == b"PK\x06\x07":
        raise _refused(f"{source} is not a whole backup of lmx")
    (directory_bytes,) = struct.unpack("<L", tail[-10:-6])
    if directory_bytes > _DIRECTORY_BYTES:
        raise _refused(f"{source} is not a backup of lmx: it holds too many files")


def _manifest(archive: zipfile.ZipFile, source: Path) -> Manifest:
    """Return the manifest, once the archive holds what it says and nothing else."""
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if min((info.header_offset for info in infos), default=0) < 0:
        raise _refused(f"{source} is not a whole backup of lmx")
    if names.count(_MANIFEST) != 1:
        raise _refused(f"{source} is not a backup of lmx: it has no {_MANIFEST}")
    try:
        about = json.loads(_content(archive, _MANIFEST, _MANIFEST_BYTES, source))
        found = about["format"]
        manifest = Manifest(str(about["lmx"]), str(about["created"]), dict(about["files"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _refused(f"{source} is not a backup of lmx: its {_MANIFEST} is damaged") from error
    if found != FORMAT:
        raise _refused(
            f"{source} is a backup of format {found!a}, written by lmx {manifest.version!a}; this "
            f"lmx reads format {FORMAT}: install that version"
        )
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        plain = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        known = info.filename in {*FILES, _MANIFEST} and kind in (0, stat.S_IFREG)
        if not (known and plain):
            what = f"{info.filename!a}, which is not part of a backup of lmx"
            raise _refused(f"{source} holds {what}")
    if sorted(names) != sorted([*manifest.sums, _MANIFEST]):
        raise _refused(f"{source} does not hold the files that its {_MANIFEST} names")
    return manifest


def _content(archive: zipfile.ZipFile, name: str, most_bytes: int, source: Path) -> bytes:
    with archive.open(name) as member:
        content = member.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _refused(f"{name} in {source} is larger than {most_bytes} bytes")
    return content


def _extract(
    archive: zipfile.ZipFile, name: str, target: Path, manifest: Manifest, source: Path
) -> None:
    total_bytes, found = 0, hashlib.sha256()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file, archive.open(name) as member:  # noqa: PTH123
        while piece := member.read(_STEP_BYTES):
            total_bytes += len(piece)
            if total_bytes > FILES[name]:
                raise _refused(f"{name} in {source} is larger than {FILES[name]} bytes")
            found.update(piece)
            file.write(piece)
        file.flush()
        sync(file.fileno())
    if found.hexdigest() != manifest.sums[name]:
        raise _refused(f"{name} in {source} is damaged")
    if name == _DATABASE:
        _check_database(target, source)


def _check_database(path: Path, source: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise _refused(f"the usage in {source} is damaged: {found}")


def _exchange(home: Path, staging: Path, kept: Path) -> None:
    """Move what is there into ``kept``, and what is staged into its place. If that fails, move all
    of it back."""
    moved: list[tuple[Path, Path]] = []
    try:
        for name in FILES:
            for ending in _SQLITE_FILES if name == _DATABASE else ("",):
                old = home / f"{name}{ending}"
                if os.path.lexists(old):
                    _make(kept, "state")
                    _move(old, kept / f"{name}{ending}", moved)
        for name in FILES:
            if (staging / name).exists():
                _move(staging / name, home / name, moved)
    except BaseException:  # Ctrl-C too.
        for before, after in reversed(moved):
            # The last one may not have been moved yet.
            if os.path.lexists(after) and not os.path.lexists(before):
                after.rename(before)
        _remove(kept)
        raise


def _move(before: Path, after: Path, moved: list[tuple[Path, Path]]) -> None:
    moved.append((before, after))
    before.rename(after)


def _make(folder: Path, below: str) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / below).mkdir(mode=0o700, exist_ok=True)


def _remove(folder: Path) -> None:
    """Remove a folder that this module made."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for each in (folder / "state", folder):
        with contextlib.suppress(OSError):
            each.rmdir()


def _refused(why: str) -> OperationError:
    return OperationError(ErrorCode.INVALID_VALUE, why)
