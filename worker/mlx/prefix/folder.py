"""The prefix cache's folder: one file for each segment. The least recently used is deleted first.

Below ``root`` each namespace has its folder, and the limit holds for all of them together: the
files of a model that is not used any more are evicted for those in use. Several processes may share
the root, and even a namespace: names are hashes of a file's content, and any file may vanish at any
time.

The files are listed when the folder is opened and remembered from then on, so that a write costs
the same however many files there are. The files of other processes are found when the folder is
listed again, each time a tenth of the limit was written here. So each process may exceed the limit
by that much.

The namespace says which model a stored prefix belongs to: the same files, read by the same code.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from lmx.worker.mlx.prefix.file import (
    SUFFIX,
    DamagedSegmentError,
    SegmentRecord,
    read_record,
    read_segment,
    write_segment,
)
from lmx.worker.mlx.prefix.index import PrefixIndex, Use

log = structlog.get_logger()

_UNFINISHED_SUFFIX: Final = ".part"
# A write takes seconds at most; an older unfinished file was left by a process that died.
_UNFINISHED_AGE_S: Final = 600.0
# No other file is ever deleted: the root may turn out to be a folder with other things.
_OURS: Final = re.compile(r"[0-9a-f]{64}(\.safetensors|\.\d+\.part)")
# A segment's parent gets a time of use that is later by this, so that the parent stays longer.
_STEP_NS: Final = 10_000
_LISTED_AGAIN_PART: Final = 10


class PrefixFolder:
    """One namespace's files, and what is known of the other namespaces' files."""

    def __init__(self, root: Path, namespace: str, limit_bytes: int) -> None:
        """Raises ``OSError`` for a folder that can't be made or read."""
        self._root = root
        self._folder = root / namespace
        self._limit_bytes = limit_bytes
        for folder in (root, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        self._index = PrefixIndex()
        self._index.replace(self._files())
        self._unlisted_bytes = 0
        self._lost: list[bytes] = []

    @property
    def total_bytes(self) -> int:
        """The bytes of all namespaces, as far as they are known."""
        return self._index.total_bytes

    def scan(self) -> list[SegmentRecord]:
        """Return the stored segments, each after the one from which it grows; delete files that
        can't be read.

        It reads only headers and tokens: about 0.1 ms a file.
        """
        stored = []
        for path in [path for path in self._index.paths() if path.parent == self._folder]:
            try:
                record = read_record(path)
                _check(record, path)
                stored.append(record)
            except FileNotFoundError:
                self._index.drop(path)
            except (DamagedSegmentError, OSError) as error:
                self._discard(path, error)
        # A state begins where its run ends, and runs come before it.
        return sorted(stored, key=lambda record: (record.start, not len(record.tokens)))

    def write(self, record: SegmentRecord, data: Sequence[memoryview]) -> list[bytes]:
        """Write a segment, unless it is there; return the segments of this namespace that were
        evicted.

        A process that dies meanwhile leaves no file under a segment's name. Raises ``OSError``,
        also if the segment alone exceeds the limit; :meth:`take_lost` has what was evicted for it.
        """
        path = self._path(record.segment_id)
        if (found := _look(path)) is not None:
            self._index.put(path, found)
            return []
        self._index.drop(path)
        size = record.nbytes + record.tokens.nbytes
        if size > self._limit_bytes:
            raise OSError(f"{size} bytes are more than the limit")
        self._list_again()
        self._evict_for(size)
        part = self._folder / f"{path.stem}.{os.getpid()}{_UNFINISHED_SUFFIX}"
        try:
            written_bytes = write_segment(part, record, data)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self._index.put(path, Use(time.time_ns(), written_bytes))
        self._unlisted_bytes += written_bytes
        # With its header the file may be a little too large.
        self._evict_for(0)
        return self.take_lost()

    def take_lost(self) -> list[bytes]:
        """Return the segments of this namespace that were evicted and not returned yet."""
        lost, self._lost = self._lost, []
        return lost

    def read(self, segment_id: bytes) -> tuple[SegmentRecord, Sequence[memoryview]] | None:
        """Return a segment, after checking every byte; None if there is none, or if it was damaged
        and so is deleted."""
        path = self._path(segment_id)
        try:
            record, data = read_segment(path)
            _check(record, path)
        except FileNotFoundError:
            self._index.drop(path)
            return None
        except (DamagedSegmentError, OSError) as error:
            self._discard(path, error)
            return None
        return record, data

    def touch(self, segment_ids: Sequence[bytes]) -> None:
        """Note that segments were used, each with the segments before it from which it grows."""
        now_ns = time.time_ns()
        for back, segment_id in enumerate(segment_ids):
            stamp_ns = now_ns - back * _STEP_NS
            path = self._path(segment_id)
            try:
                os.utime(path, ns=(stamp_ns, stamp_ns))
                self._index.use(path, stamp_ns)
            except FileNotFoundError:
                self._index.drop(path)
            except OSError as error:
                log.warning("prefix_cache.touch_failed", reason=str(error))
                return

    def _evict_for(self, size: int) -> None:
        while self._index.total_bytes + size > self._limit_bytes:
            oldest = self._index.oldest()
            if oldest is None:
                break
            path, known = oldest
            found = _look(path)
            if found is not None and found.used_ns > known.used_ns:
                # Another process used it meanwhile.
                self._index.put(path, found)
                continue
            if found is not None:
                path.unlink(missing_ok=True)
            self._index.drop(path)
            if path.parent == self._folder:
                self._lost.append(bytes.fromhex(path.stem))

    def _list_again(self) -> None:
        """List the files again when that is due, and note the segments of this namespace that are
        gone."""
        if self._unlisted_bytes * _LISTED_AGAIN_PART <= self._limit_bytes:
            return
        self._unlisted_bytes = 0
        before = [path for path in self._index.paths() if path.parent == self._folder]
        self._index.replace(self._files())
        self._lost += [bytes.fromhex(path.stem) for path in before if path not in self._index]

    def _files(self) -> Iterator[tuple[Path, Use]]:
        """Yield the segments of all namespaces. Deletes leftovers."""
        for path in self._root.glob("*/*"):
            if not _OURS.fullmatch(path.name):
                continue
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            if path.suffix == SUFFIX:
                yield path, Use(facts.st_mtime_ns, facts.st_size)
            elif time.time() - facts.st_mtime > _UNFINISHED_AGE_S:
                path.unlink(missing_ok=True)

    def _discard(self, path: Path, error: Exception) -> None:
        log.warning("prefix_cache.damaged", file=path.name, reason=str(error))
        self._index.drop(path)
        try:
            path.unlink(missing_ok=True)
        except OSError as failure:
            log.warning("prefix_cache.delete_failed", file=path.name, reason=str(failure))

    def _path(self, segment_id: bytes) -> Path:
        return self._folder / f"{segment_id.hex()}{SUFFIX}"


def _look(path: Path) -> Use | None:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return Use(facts.st_mtime_ns, facts.st_size)


def _check(record: SegmentRecord, path: Path) -> None:
    if record.segment_id.hex() != path.stem:
        raise DamagedSegmentError("its name is another one's")


# Files that decide what a model computes of its tokens, besides its weights.
_DECISIVE: Final = ("config.json", "adapter_config.json", "model.safetensors.index.json")


def prefix_namespace(folder: Path, versions: Sequence[str]) -> str:
    """Return the name under which a model's prefixes are kept: letters and digits.

    Weights count by path, size and time of change, because reading them takes as long as loading.
    ``versions`` are those of everything else that matters, such as the engine. Raises ``OSError``.
    """
    folder = folder.resolve()
    weights = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.glob("*.safetensors"))
    ]
    decisive = [
        (name, hashlib.sha256((folder / name).read_bytes()).hexdigest())
        for name in _DECISIVE
        if (folder / name).exists()
    ]
    identity = json.dumps([str(folder), weights, decisive, list(versions)])
    return hashlib.sha256(identity.encode()).hexdigest()[:32]
