"""The content of the prefix cache: segments in memory within a budget, and their files."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import structlog

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.mlx.prefix.disk import Finished, Outcome, PrefixDisk
from lmx.worker.mlx.prefix.file import SegmentRecord
from lmx.worker.mlx.prefix.state import CacheLayout, arrays_of, describe, expose
from lmx.worker.mlx.prefix.tree import Hit, PrefixTree, Segment, Tokens
from lmx.worker.scheduling.engine_errors import is_device_failure

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Payload:
    """What a segment holds in memory."""

    arrays: dict[str, mx.array]
    structure: Any = None
    """The structure of a state; None for a run."""

    @property
    def nbytes(self) -> int:
        """The size of the arrays; it is known before they are evaluated."""
        return sum(array.nbytes for array in self.arrays.values())


class PrefixStore:
    """Keeps segments in memory and on disk. Engine thread.

    Segments that don't fit into memory stay on disk, if they were written; a segment that is in
    neither is removed from ``tree``.
    """

    def __init__(self, layout: CacheLayout, spec: PrefixCacheSpec, namespace: str) -> None:
        self.tree = PrefixTree()
        self._layout = layout
        self._budget_bytes = spec.memory_bytes
        self._limit_bytes = spec.memory_bytes
        self._held_bytes = 0
        self._reading: set[bytes] = set()
        # Segments whose write is queued or has begun.
        self._writing: set[bytes] = set()
        # Those of them that were given up, but are still being written.
        self._leaving: dict[bytes, int] = {}
        self._disk = self._open_disk(spec, namespace)

    @property
    def bytes_held(self) -> int:
        """The bytes in memory."""
        return self._held_bytes + sum(self._leaving.values())

    def add(
        self,
        parent: Segment,
        captured: Sequence[tuple[int, Tokens, Payload]],
        keep: Collection[Segment],
    ) -> list[Segment]:
        """Add segments, each as the child of the one before, and evaluate them; return those for
        which the budget has capacity besides ``keep``. If they can't be evaluated, none is kept,
        and the error is raised."""
        added: list[Segment] = []
        for start, tokens, payload in captured:
            if not self.evict_for(payload.nbytes, [*keep, *added]):
                break
            parent = self.tree.add(parent, start, tokens)
            self._hold(parent, payload)
            added.append(parent)
        # They are evaluated now: a lazy graph would hold the live cache.
        try:
            mx.eval([list(payload_of(segment).arrays.values()) for segment in added])
        except Exception:
            for segment in reversed(added):
                self._forget(segment)
            raise
        for segment in added:
            self._write(segment)
        return added

    def touch(self, segments: Sequence[Segment]) -> None:
        """Note that segments are in use, each with all segments before it from which it grows."""
        self.tree.touch(segments)
        if self._disk is not None and segments:
            self._disk.touch([segment.segment_id for segment in segments])

    def bring(self, hit: Hit) -> bool:
        """Begin to read the segments that aren't in memory and fit there. True: there is
        nothing to wait for."""
        sizes = [segment.nbytes for segment in hit.segments]
        if self._disk is None or (hit.state is not None and sum(sizes) > self._limit_bytes):
            return True
        complete = True
        total_bytes = 0
        for segment, size in zip(hit.segments, sizes, strict=True):
            total_bytes += size
            if total_bytes > self._limit_bytes:
                break
            if segment.payload is None:
                if segment.segment_id not in self._reading:
                    if not self._disk.read(segment.segment_id):
                        return True
                    self._reading.add(segment.segment_id)
                complete = False
        return complete

    def wait(self, timeout_s: float) -> None:
        """Wait until the disk has done something."""
        if self._disk is not None:
            self._disk.wait(timeout_s)

    def settle(self, keep: Collection[Segment] = ()) -> None:
        """Take in what the disk has done. Segments that were read may displace others, but not
        those of ``keep``."""
        for finished in self._disk.collect() if self._disk else ():
            segment = self.tree.get(finished.segment_id)
            self._leaving.pop(finished.segment_id, None)
            if finished.outcome is Outcome.READ:
                self._reading.discard(finished.segment_id)
                if segment is not None:
                    self._load(segment, finished, keep)
            elif segment is not None:
                segment.on_disk = finished.outcome is Outcome.WRITTEN
                if not segment.on_disk and segment.payload is None:
                    self._forget(segment)
            if finished.outcome is Outcome.LOST:
                self._reading.discard(finished.segment_id)
            elif finished.outcome is not Outcome.READ:
                self._writing.discard(finished.segment_id)

    def close(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` until everything has been written."""
        if self._disk is not None:
            self._disk.close(timeout_s)

    def evict_for(self, size: int, keep: Collection[Segment]) -> bool:
        """Give up the least recently used segments until ``size`` bytes fit; return False if they
        can't."""
        if self.bytes_held + size <= self._limit_bytes:
            return True
        kept = {segment.segment_id for segment in keep}
        kept_bytes = sum(segment.nbytes for segment in keep if segment.payload is not None)
        if kept_bytes + size > self._limit_bytes:
            return False
        for segment in self.tree.coldest():
            if segment.segment_id in kept:
                continue
            self._give_up(segment)
            if self.bytes_held + size <= self._limit_bytes:
                return True
        return False

    def shrink(self) -> None:
        """Give up half of the segments in memory, first those that are also on disk, and hold no
        more than the rest from now on. A segment that is being written leaves once it is
        written."""
        self.settle()
        self._limit_bytes = self.bytes_held // 2
        for segment in self.tree.coldest():
            if self.bytes_held <= self._limit_bytes:
                return
            if segment.on_disk:
                self._give_up(segment)
        self.evict_for(0, ())

    def regrow(self) -> None:
        """Hold as much as the budget allows again."""
        self._limit_bytes = self._budget_bytes

    def _open_disk(self, spec: PrefixCacheSpec, namespace: str) -> PrefixDisk | None:
        if spec.disk_path is None or spec.disk_bytes <= 0:
            return None
        try:
            disk = PrefixDisk(Path(spec.disk_path), namespace, spec.disk_bytes)
        except OSError as error:
            log.warning("prefix_cache.disk_unavailable", path=spec.disk_path, reason=str(error))
            return None
        for record in disk.stored:
            # A segment whose parent is gone is useless, and will be removed too.
            segment = self.tree.adopt(record.parent_id, record.start, record.tokens)
            if segment is not None:
                segment.on_disk = True
                segment.nbytes = record.nbytes
        return disk

    def _hold(self, segment: Segment, payload: Payload) -> None:
        if segment.payload is None:
            self.tree.hold(segment, payload)
            segment.nbytes = payload.nbytes
            self._held_bytes += segment.nbytes

    def _write(self, segment: Segment) -> None:
        if self._disk is None or segment.on_disk or segment.segment_id in self._writing:
            return
        assert segment.parent is not None
        payload = payload_of(segment)
        data, held = expose(payload.arrays)
        record = SegmentRecord(
            segment.parent.segment_id,
            segment.start,
            segment.tokens,
            describe(payload.arrays),
            payload.structure,
        )
        self._writing.add(segment.segment_id)
        self._disk.write(record, data, held)

    def _give_up(self, segment: Segment) -> None:
        self.tree.release(segment)
        self._held_bytes -= segment.nbytes
        if segment.on_disk:
            return
        if self._disk is not None and self._disk.cancel(segment.segment_id):
            self._writing.discard(segment.segment_id)
        if segment.segment_id in self._writing:
            self._leaving[segment.segment_id] = segment.nbytes
        else:
            self._forget(segment)

    def _load(self, segment: Segment, read: Finished, keep: Collection[Segment]) -> None:
        assert read.record is not None
        if not self._layout.fits(read.record):
            self._forget(segment)
        elif segment.payload is None and self.evict_for(segment.nbytes, keep):
            if self.tree.get(segment.segment_id) is not segment:
                return  # What it continues was given up for it.
            try:
                arrays = arrays_of(read.record.tensors, read.data)
            except Exception as error:  # Such as for memory that is short.
                if is_device_failure(error):
                    raise
                log.warning("prefix_cache.not_loaded", reason=str(error))
                self._forget(segment)
                return
            self._hold(segment, Payload(arrays, read.record.structure))

    def _forget(self, segment: Segment) -> None:
        for gone in self.tree.remove(segment):
            if gone.payload is not None:
                self._held_bytes -= gone.nbytes
                gone.payload = None


def payload_of(segment: Segment) -> Payload:
    """Return what a segment in memory holds."""
    assert isinstance(segment.payload, Payload)
    return segment.payload
