"""Knows which files the prefix cache has, how large they are and when they were used last."""

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_MOST_STALE: Final = 64
"""The queue may have this many outdated entries, on top of twice the number of files."""


class Use(NamedTuple):
    """When a file was used last, in nanoseconds since the epoch, and its bytes."""

    used_ns: int
    nbytes: int


class PrefixIndex:
    """What is known of the files, without a look at the disk. A change costs the same however many
    files there are; the cost of :meth:`oldest` grows with their logarithm."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._uses: dict[Path, Use] = {}
        # Sorted by the time of use when the entry was made. That time only ever becomes later, so
        # the
        # first entry is put right when it comes up, and not at each use.
        self._queue: list[tuple[int, Path]] = []

    def __contains__(self, path: Path) -> bool:
        return path in self._uses

    def paths(self) -> Iterator[Path]:
        """Yield all files, in no particular order."""
        return iter(self._uses)

    def replace(self, found: Iterable[tuple[Path, Use]]) -> None:
        """Replace everything with ``found``."""
        self._uses = dict(found)
        self.total_bytes = sum(use.nbytes for use in self._uses.values())
        self._rebuild()

    def put(self, path: Path, use: Use) -> None:
        """Add a file, or update what is known of it."""
        known = self._uses.get(path)
        self._uses[path] = use
        self.total_bytes += use.nbytes - (known.nbytes if known else 0)
        if known is None or use.used_ns < known.used_ns:
            heapq.heappush(self._queue, (use.used_ns, path))
            if len(self._queue) > 2 * len(self._uses) + _MOST_STALE:
                self._rebuild()

    def use(self, path: Path, used_ns: int) -> None:
        """Note that a file is in use; one that isn't known is ignored."""
        known = self._uses.get(path)
        if known is not None and used_ns > known.used_ns:
            self._uses[path] = known._replace(used_ns=used_ns)

    def drop(self, path: Path) -> None:
        """Forget a file."""
        known = self._uses.pop(path, None)
        if known is not None:
            self.total_bytes -= known.nbytes

    def oldest(self) -> tuple[Path, Use] | None:
        """Return the least recently used file; None if there are no files."""
        while self._queue:
            used_ns, path = self._queue[0]
            known = self._uses.get(path)
            if known is None:
                heapq.heappop(self._queue)
            elif known.used_ns > used_ns:
                heapq.heapreplace(self._queue, (known.used_ns, path))
            else:
                return path, known
        return None

    def _rebuild(self) -> None:
        self._queue = [(use.used_ns, path) for path, use in self._uses.items()]
        heapq.heapify(self._queue)
