"""The thread that writes and reads the prefix cache's files, while the engine continues."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import structlog

from lmx.protocol.host.lasting import keep_up_in_thread
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
    """A job that is done."""

    outcome: Outcome
    segment_id: bytes
    held: Any = None
    """The object that was passed to a write, so that its last reference is dropped where the caller
    wants it."""
    record: SegmentRecord | None = None
    """What a read has found; so is ``data``."""
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
    """Calls never wait for the disk; ``collect`` returns what has finished. All methods are for one
    caller's thread. The caller limits the queue: it can cancel writes."""

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
        self._thread = keep_up_in_thread(self._run, "prefix-disk")
        self._thread.start()

    def write(self, record: SegmentRecord, data: Sequence[memoryview], held: Any) -> None:
        """Queue a segment to be written. It ends with WRITTEN or NOT_WRITTEN, unless it is
        cancelled."""
        with self._changed:
            self._writes.append(_Write(record.segment_id, record, data, held))
            self._changed.notify_all()

    def touch(self, segment_ids: Sequence[bytes]) -> None:
        """Note that segments were used, each with the segments before it from which it grows."""
        with self._changed:
            if self._writes and isinstance(waiting := self._writes[-1], _Touch):
                # There are never more of them than writes and one, however long the disk hangs.
                segment_ids = tuple(dict.fromkeys([*segment_ids, *waiting.segment_ids]))
                self._writes.pop()
            self._writes.append(_Touch(segment_ids))
            self._changed.notify_all()

    def read(self, segment_id: bytes) -> bool:
        """Read a segment before anything is written. It ends with READ or LOST. False: closed."""
        with self._changed:
            self._reads.append(segment_id)
            self._changed.notify_all()
            return not self._closed

    def cancel(self, segment_id: bytes) -> bool:
        """Cancel a write that hasn't begun; return False if it has."""
        with self._changed:
            for job in self._writes:
                if isinstance(job, _Write) and job.segment_id == segment_id:
                    self._writes.remove(job)
                    return True
        return False

    def collect(self) -> list[Finished]:
        """Return the jobs that have finished since the last call."""
        with self._changed:
            finished, self._finished = self._finished, []
        return finished

    def wait(self, timeout_s: float) -> None:
        """Wait until ``collect`` has something to give."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished or self._closed, timeout_s)

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is queued; return False if that takes longer than ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(self._idle, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write the queued segments as far as the time allows; then end."""
        if not self.settle(timeout_s):
            log.warning("prefix_cache.write_failed", segments=len(self._writes))
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _idle(self) -> bool:
        return self._closed or not (self._reads or self._writes or self._busy)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                finished = self._do(job)
            except Exception:  # One segment that trips over a bug costs itself alone.
                log.exception("prefix_cache.failed")
                finished = _failed(job)
            # It may take long until the next job comes, and this one holds buffers.
            del job
            with self._changed:
                self._finished.extend(finished)
                self._busy = False
                self._changed.notify_all()
            del finished

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
                log.warning("prefix_cache.write_failed", reason=str(error))
            self._failing = True
            outcome, lost = Outcome.NOT_WRITTEN, self._folder.take_lost()
        else:
            self._failing = False
            outcome = Outcome.WRITTEN
        ended = Finished(outcome, job.segment_id, job.held)
        return [ended, *(Finished(Outcome.LOST, segment_id) for segment_id in lost)]


def _failed(job: bytes | _Write | _Touch) -> list[Finished]:
    match job:
        case bytes():
            return [Finished(Outcome.LOST, job)]
        case _Write():
            return [Finished(Outcome.NOT_WRITTEN, job.segment_id, job.held)]
        case _Touch():
            return []
