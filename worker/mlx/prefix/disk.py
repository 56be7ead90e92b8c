"""The thread that writes and reads the prefix cache's files, while the engine goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import structlog

from lmx.worker.mlx.prefix.file import SegmentRecord
from lmx.worker.mlx.prefix.folder import PrefixFolder

log = structlog.get_logger()


class Outcome(Enum):
    """What became of a segment."""

    WRITTEN = "written"
    NOT_WRITTEN = "not_written"
    READ = "read"
    LOST = "lost"


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A job that is done. ``held`` is what a write was given, so that its last reference goes
    where the caller wants it to; ``record`` and ``data`` are what was read."""

    outcome: Outcome
    segment_id: bytes
    held: Any = None
    record: SegmentRecord | None = None
    data: Sequence[memoryview] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    segment_id: bytes
    record: SegmentRecord
    data: Sequence[memoryview]
    held: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Touch:
    segment_ids: Sequence[bytes]


class PrefixDisk:
    """Orders never wait; ``take`` gives what has finished. All methods for one caller's thread.

    What is queued is the caller's to bound: it can cancel.
    """

    def __init__(self, root: Path, namespace: str, limit_bytes: int) -> None:
        """Raises ``OSError`` for a folder that can't be made or read."""
        self._folder = PrefixFolder(root, namespace, limit_bytes)
        self._changed = threading.Condition()
        self._reads: deque[bytes] = deque()
        self._writes: deque[_Write | _Touch] = deque()
        self._finished: list[Finished] = []
        self._busy = False
        self._closed = False
        self._failing = False
        self.stored = self._folder.scan()
        self._thread = threading.Thread(target=self._run, name="prefix-disk", daemon=True)
        self._thread.start()

    @property
    def disk_bytes(self) -> int:
        """The files of all namespaces."""
        return self._folder.total_bytes

    def write(self, record: SegmentRecord, data: Sequence[memoryview], held: Any) -> None:
        """Write a segment some time; ends with WRITTEN or NOT_WRITTEN, unless cancelled."""
        self._submit(_Write(record.segment_id, record, data, held))

    def touch(self, segment_ids: Sequence[bytes]) -> None:
        """Note that they were used: each one with those that it grows from before it."""
        self._submit(_Touch(segment_ids))

    def read(self, segment_id: bytes) -> bool:
        """Read a segment before anything is written; ends with READ or LOST. False: closed."""
        with self._changed:
            self._reads.append(segment_id)
            self._changed.notify_all()
            return not self._closed

    def cancel(self, segment_id: bytes) -> bool:
        """Give a write up that hasn't begun; False when it has."""
        with self._changed:
            for job in self._writes:
                if isinstance(job, _Write) and job.segment_id == segment_id:
                    self._writes.remove(job)
                    return True
        return False

    def take(self) -> list[Finished]:
        """Return what finished since the last call."""
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def wait(self, timeout_s: float) -> None:
        """Wait until ``take`` has something to give."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished or self._closed, timeout_s)

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is queued; returns whether it came so far."""
        with self._changed:
            return self._changed.wait_for(self._idle, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, as far as the time goes; then end."""
        if not self.settle(timeout_s):
            log.warning("prefix_cache.unsaved", segments=len(self._writes))
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _submit(self, job: _Write | _Touch) -> None:
        with self._changed:
            self._writes.append(job)
            self._changed.notify_all()

    def _idle(self) -> bool:
        return self._closed or not (self._reads or self._writes or self._busy)

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                finished = self._do(job)
                # The next job may be long in coming, and this one holds buffers.
                del job
                with self._changed:
                    self._finished.extend(finished)
                    self._busy = False
                    self._changed.notify_all()
                del finished
        finally:
            with self._changed:
                # Also when a bug ends it: nobody is to wait for it.
                self._closed, self._busy = True, False
                self._changed.notify_all()

    def _next(self) -> bytes | _Write | _Touch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._reads or self._writes)
            if self._closed:
                return None
            self._busy = True
            return self._reads.popleft() if self._reads else self._writes.popleft()

    def _do(self, job: bytes | _Write | _Touch) -> list[Finished]:
        if isinstance(job, _Touch):
            self._folder.touch(job.segment_ids)
            return []
        if isinstance(job, _Write):
            return self._write(job)
        found = self._folder.read(job)
        if found is None:
            return [Finished(Outcome.LOST, job)]
        record, data = found
        return [Finished(Outcome.READ, job, record=record, data=data)]

    def _write(self, job: _Write) -> list[Finished]:
        try:
            lost = self._folder.write(job.record, job.data)
        except OSError as error:
            if not self._failing:
                log.warning("prefix_cache.not_written", reason=str(error))
            self._failing = True
            return [Finished(Outcome.NOT_WRITTEN, job.segment_id, job.held)]
        self._failing = False
        written = Finished(Outcome.WRITTEN, job.segment_id, job.held)
        return [written, *(Finished(Outcome.LOST, segment_id) for segment_id in lost)]
