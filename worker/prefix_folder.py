"""The prefix cache's folder: one file for each segment, the least recently used deleted first.

Below ``root`` each namespace has its folder, and the limit holds for all of them together: what
a model left behind makes room for those in use. Several processes may share the root, and even
a namespace: names are hashes of what a file holds, and any file may vanish at any time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from lmx.worker.prefix_file import (
    SUFFIX,
    DamagedSegmentError,
    SegmentRecord,
    read_record,
    read_segment,
    write_segment,
)

log = structlog.get_logger()

_UNFINISHED_SUFFIX: Final = ".part"
# A write takes seconds at most; what is older was left by a process that died.
_UNFINISHED_AGE_S: Final = 600.0
# Nothing else is ever deleted: the root may turn out to be a folder of other things.
_OURS: Final = re.compile(r"[0-9a-f]{64}(\.safetensors|\.\d+\.part)")
# Between the times of use of a segment and of what it grows from, so that this one stays longer.
_STEP_NS: Final = 10_000


class PrefixFolder:
    """One namespace's files. ``total_bytes``: of all namespaces, when they were last counted."""

    def __init__(self, root: Path, namespace: str, limit_bytes: int) -> None:
        """Raises ``OSError`` for a folder that can't be made or read."""
        self._root = root
        self._folder = root / namespace
        self._limit_bytes = limit_bytes
        for folder in (root, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        self.total_bytes = sum(size for _, size, _ in self._files())

    def scan(self) -> list[SegmentRecord]:
        """Return what is stored, each after what it grows from; deletes what can't be read.

        Reads headers and tokens alone: about 0.1 ms a file.
        """
        stored = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            if not _OURS.fullmatch(path.name):
                continue
            try:
                record = read_record(path)
                _check(record, path)
                stored.append(record)
            except FileNotFoundError:
                continue
            except (DamagedSegmentError, OSError) as error:
                self._discard(path, error)
        # A state begins where its run ends, and runs come before it.
        return sorted(stored, key=lambda record: (record.start, not len(record.tokens)))

    def write(self, record: SegmentRecord, data: Sequence[memoryview]) -> list[bytes]:
        """Write a segment, unless it is there; returns those of this namespace that made room.

        A process that dies meanwhile leaves no file by a segment's name. Raises ``OSError``,
        also where the segment alone is more than the limit.
        """
        path = self._path(record.segment_id)
        if path.exists():
            return []
        size = record.nbytes + record.tokens.nbytes
        if size > self._limit_bytes:
            raise OSError(f"{size} bytes are more than the limit")
        lost = self._make_room(size)
        part = self._folder / f"{path.stem}.{os.getpid()}{_UNFINISHED_SUFFIX}"
        try:
            write_segment(part, record, data)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        # With its header it may be a little too much.
        return lost + self._make_room(0)

    def read(self, segment_id: bytes) -> tuple[SegmentRecord, Sequence[memoryview]] | None:
        """Return a segment, every byte of it checked; None when there is none, or none any more
        because it is damaged."""
        path = self._path(segment_id)
        try:
            record, data = read_segment(path)
            _check(record, path)
        except FileNotFoundError:
            return None
        except (DamagedSegmentError, OSError) as error:
            self._discard(path, error)
            return None
        return record, data

    def touch(self, segment_ids: Sequence[bytes]) -> None:
        """Note that they were used: each one with those that it grows from before it."""
        now_ns = time.time_ns()
        for back, segment_id in enumerate(segment_ids):
            stamp_ns = now_ns - back * _STEP_NS
            try:
                os.utime(self._path(segment_id), ns=(stamp_ns, stamp_ns))
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("prefix_cache.not_touched", reason=str(error))
                return

    def _make_room(self, size: int) -> list[bytes]:
        files = sorted(self._files())
        total_bytes = sum(file_bytes for _, file_bytes, _ in files)
        lost = []
        for _, file_bytes, path in files:
            if total_bytes + size <= self._limit_bytes:
                break
            path.unlink(missing_ok=True)
            total_bytes -= file_bytes
            if path.parent == self._folder:
                lost.append(bytes.fromhex(path.stem))
        self.total_bytes = total_bytes
        return lost

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """Give the segments of all namespaces: time of use, bytes, path. Clears up."""
        for path in self._root.glob("*/*"):
            if not _OURS.fullmatch(path.name):
                continue
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            if path.suffix == SUFFIX:
                yield facts.st_mtime_ns, facts.st_size, path
            elif time.time() - facts.st_mtime > _UNFINISHED_AGE_S:
                path.unlink(missing_ok=True)

    def _discard(self, path: Path, error: Exception) -> None:
        log.warning("prefix_cache.damaged", file=path.name, reason=str(error))
        try:
            path.unlink(missing_ok=True)
        except OSError as failure:
            log.warning("prefix_cache.not_deleted", file=path.name, reason=str(failure))

    def _path(self, segment_id: bytes) -> Path:
        return self._folder / f"{segment_id.hex()}{SUFFIX}"


def _check(record: SegmentRecord, path: Path) -> None:
    if record.segment_id.hex() != path.stem:
        raise DamagedSegmentError("its name is another one's")
