"""Which files the prefix cache has, how large they are and when they were used last. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_MOST_STALE: Final = 64
"""So many entries of the queue more than twice the files may be out of date."""


class Use(NamedTuple):
    """When a file was used last, in nanoseconds since the epoch, and its bytes."""

    used_ns: int
    nbytes: int


class PrefixIndex:
    """What is known of the files, without a look at the disk. A change costs no more when there are
    more of them; :meth:`oldest` grows with the logarithm."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._uses: dict[Path, Use] = {}
        # By time of use as it was when the entry was made. It only ever becomes later, so that the
        # first entry is put right when it comes up, and not at each use.
        self._queue: list[tuple[int, Path]] = []

    def __len__(self) -> int:
        return len(self._uses)

    def __contains__(self, path: Path) -> bool:
        return path in self._uses

    def paths(self) -> Iterator[Path]:
        """Give all files, in no order."""
        return iter(self._uses)

    def replace(self, found: Iterable[tuple[Path, Use]]) -> None:
        """Forget all that is known, for what was found."""
        self._uses = dict(found)
        self.total_bytes = sum(use.nbytes for use in self._uses.values())
        self._rebuild()

    def put(self, path: Path, use: Use) -> None:
        """Enter a file, or what is known better of it."""
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
        """Return the file that was not used for longest, None when there is none."""
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
